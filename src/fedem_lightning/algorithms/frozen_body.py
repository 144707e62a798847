"""Frozen bodies in a run: where only heads train, the body sees each sample once, and clients train heads on features.

It holds for a `Pretrained` network of which nothing but the head trains. It does not where images are augmented, where
the method or the adaptation reads the samples themselves, and where clients are processes of their own.
"""

import time
import warnings
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from pytorch_lightning.utilities import rank_zero_only

from fedem_lightning.backbones.pretrained import Pretrained
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.samples import hash_of
from fedem_lightning.models.cached_features import CachedFeatures, can_cache, with_features
from fedem_lightning.models.parts import users_network
from fedem_lightning.models.tensors import frozen_tensors, trained_parameters

if TYPE_CHECKING:
    from fedem_lightning.algorithms.base import FederatedAlgorithm


_MADE: WeakKeyDictionary[Federation, dict[str, Federation]] = WeakKeyDictionary()
"""Federations with features, by the federation and the digest of the body: several algorithms share them."""


def takes_features(algorithm: "FederatedAlgorithm", federation: Federation) -> bool:
    """Whether a run on this federation computes the features of its samples once."""
    if isinstance(federation.samples, CachedFeatures):
        return True
    reads = algorithm.facts.reads_inputs or (algorithm.adaptation is not None and algorithm.adaptation.reads_samples)
    return not reads and not algorithm.is_deployed and can_cache(users_network(algorithm.components[0]), federation)


def train_heads(algorithm: "FederatedAlgorithm", federation: Federation) -> None:
    """Lets local training see the head alone if it gets features; the engine is the one for that network."""
    network: Any = algorithm.components[0]
    alone = network is users_network(network) and takes_features(algorithm, federation)
    algorithm.local.use(network.head_on_features() if alone else network)


def say_how_components_start(algorithm: "FederatedAlgorithm") -> None:
    """Prints in which tensors components with a pretrained body differ before the first round."""
    networks = [users_network(component) for component in algorithm.components]
    if not isinstance(networks[0], Pretrained):
        return
    warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")  # Lightning's; the body is meant
    if len(networks) == 1 or algorithm.statistics.rounds:
        return
    first, second = (trained_parameters(network) for network in networks[:2])
    other = [name for name, p in first.items() if not torch.equal(p, second[name])]
    parts = {"head": "their heads", "body": "the matrices A of their adapters"}
    told = " and ".join(words for part, words in parts.items() if any(name.startswith(part) for name in other))
    rank_zero_only(print)(f"components start at the same pretrained body; they differ in {told or 'nothing'}")


def with_cached_features(algorithm: "FederatedAlgorithm", federation: Any, quiet: bool = False) -> Any:
    """The federation with features in place of its samples, made at the first call; others as they are."""
    has = not isinstance(federation, Federation) or isinstance(federation.samples, CachedFeatures)
    if has or not takes_features(algorithm, federation):
        return federation
    if algorithm._features is None or algorithm._features[0] is not federation:
        algorithm._features = (federation, _made(algorithm, federation, quiet))
    return algorithm._features[1]


def _made(algorithm: "FederatedAlgorithm", federation: Federation, quiet: bool) -> Federation:
    """The federation with features; those of another algorithm with the same body and data, if there are any."""
    start, network = time.perf_counter(), users_network(algorithm.components[0])
    known = _MADE.setdefault(federation, {})
    body = hash_of(tensor for _, tensor in sorted(frozen_tensors(network), key=lambda named: named[0])).hexdigest()
    if body not in known:
        known[body] = with_features(federation, network)  # type: ignore[arg-type]
        rows, seconds = known[body].samples.rows, time.perf_counter() - start  # type: ignore[attr-defined]
        told = f"{len(rows)} samples once, {rows.shape[1]} numbers each ({rows.nbytes / 1e6:.1f} MB, {seconds:.1f} s)"
        if not quiet:
            rank_zero_only(print)(f"the frozen body has computed the features of {told}; clients train heads on them")
    return known[body]
