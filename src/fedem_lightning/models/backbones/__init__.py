"""Backbones: the networks used as components. Any other `nn.Module` from features to outputs can be used too."""

from fedem_lightning.models.backbones.layers import Dropout as Dropout
from fedem_lightning.models.backbones.networks import CNN as CNN
from fedem_lightning.models.backbones.networks import LSTM as LSTM
from fedem_lightning.models.backbones.networks import MLP as MLP
from fedem_lightning.models.backbones.networks import Categorical as Categorical
from fedem_lightning.models.backbones.networks import CharLSTM as CharLSTM
from fedem_lightning.models.backbones.networks import LeNet5 as LeNet5
from fedem_lightning.models.backbones.networks import Linear as Linear
from fedem_lightning.models.backbones.networks import MobileNetV2 as MobileNetV2
from fedem_lightning.models.backbones.networks import ReferenceCNN as ReferenceCNN
from fedem_lightning.models.backbones.networks import ResNet18 as ResNet18
from fedem_lightning.models.backbones.pretrained import LoRA as LoRA
from fedem_lightning.models.backbones.pretrained import Pretrained as Pretrained
