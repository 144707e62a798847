"""One client's model as an ONNX graph: the mixture of Eq. 5 of the FedEM paper.

Input `x` has a free batch axis; output is `probabilities` or `mean`. The graph computes in float32, whatever the
precision of the training was.
"""

import contextlib
import copy
import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedem_lightning.data.samples import MASK, Inputs
from fedem_lightning.data.schema import Schema
from fedem_lightning.data.tasks import Regression
from fedem_lightning.models.backbones.networks import LSTM
from fedem_lightning.models.personal_models import ClientModel
from fedem_lightning.settings.errors import UserError, require

LARGEST_DIFFERENCE = 1e-5
"""The largest difference from the library that an export may have."""
OPSET = 18
"""Version of ONNX's operators: the one for which torch's exporter is written."""
BATCHES = (1, 7)
"""Batch sizes with which a file is compared with the library."""


def names_of(schema: Schema) -> tuple[list[str], str]:
    """What the model takes, x or the arrays of a sample; and what it returns."""
    inputs = list(schema.in_shape) if isinstance(schema.in_shape, Mapping) else ["x"]
    return inputs, "mean" if isinstance(schema.task, Regression) else "probabilities"


def random_inputs(schema: Schema, n: int) -> Inputs:
    """Samples as the networks take them, from a fixed seed: whole numbers int64 [n, ...], others float32 [n, ...]."""
    generator = torch.Generator().manual_seed(n)
    whole = {"x": len(schema.vocabulary)} if schema.vocabulary is not None else schema.whole

    def drawn(name: str, shape: Sequence[int]) -> Tensor:
        if name not in whole:
            return torch.randn(n, *shape, generator=generator)
        if name == MASK:  # of a sequence, the first positions are real
            return (torch.arange(shape[0]) <= torch.randint(shape[0], (n, 1), generator=generator)).long()
        return torch.randint(whole[name], (n, *shape), generator=generator)

    if isinstance(schema.in_shape, Mapping):
        return {name: drawn(name, shape) for name, shape in schema.in_shape.items()}
    return drawn("x", schema.in_shape)


def _for_export(model: ClientModel) -> ClientModel:
    """A copy in float32 that an exporter can read: networks that count, torch's own LSTM layers, usual strides."""
    counted = torch.nonzero(model.weights).flatten()  # a network with weight 0 changes nothing
    copies = copy.deepcopy(model.networks)  # together: they go on sharing frozen tensors
    own = ClientModel([copies[m] for m in counted.tolist()], model.weights[counted], model.schema, model.name)
    for name, layer in [(name, layer) for name, layer in own.named_modules() if type(layer) is LSTM]:
        sizes = (layer.input_size, layer.hidden_size, layer.num_layers)  # ours, step by step, would be a large graph
        fused = nn.LSTM(*sizes, bias=layer.bias, batch_first=layer.batch_first).requires_grad_(False).eval()
        fused.load_state_dict(layer.state_dict())
        own.set_submodule(name, fused)
    for tensor in (*own.float().parameters(), *own.buffers()):
        tensor.data = tensor.data.contiguous()
    return own


def _program(model: ClientModel) -> torch.export.ExportedProgram:
    """The model as a program with a free batch axis."""
    shapes, batch = model.schema.in_shape, torch.export.Dim("batch")
    free: Any = {0: batch}
    if isinstance(shapes, Mapping):  # a sequence may have any length, too
        length = {1: torch.export.Dim.AUTO}
        free = {name: {0: batch} | (length if shape == shapes.get(MASK) else {}) for name, shape in shapes.items()}
    example = (random_inputs(model.schema, 2),)
    return torch.export.export(_for_export(model), example, dynamic_shapes={"x": free})


def write_onnx(model: ClientModel, path: Path) -> None:
    """Writes the graph; UserError: torch cannot export the network."""
    inputs, output = names_of(model.schema)
    options: dict[str, Any] = {"opset_version": OPSET, "dynamo": True, "verbose": False}
    try:  # an exporter fails in many ways
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")  # of torch's own code
            written = torch.onnx.export(_program(model), input_names=inputs, output_names=[output], **options)
            assert written is not None
            content = written.model_proto
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
        message = f"--format: torch cannot export the network of client {model.name} ({reason})"
        raise UserError(f"{message}; --format safetensors takes any network") from error
    graph = content.graph
    for value in (*graph.input, *graph.output):  # a sequence's length has another name
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for part in (content, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")  # what the exporter notes of its work: half of a small file, with paths
        part.ClearField("doc_string")
    graph.ClearField("value_info")
    path.write_bytes(content.SerializeToString())


@torch.no_grad()
def measured(path: Path, model: ClientModel) -> float:
    """The largest difference of a file's model from the library's; UserError above `LARGEST_DIFFERENCE`.

    It is that of probabilities. Means of a regression may be large: theirs counts in units of the largest mean where
    that is above 1.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    worst, dtype = 0.0, model.weights.dtype
    for n in BATCHES:
        x = random_inputs(model.schema, n)
        expected = model(tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, x)).double()
        given = x if isinstance(x, dict) else {"x": x}
        result = torch.from_numpy(session.run(None, {name: given[name].numpy() for name in names})[0]).double()
        apart = float((result - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        message = f"--format: the exported model of client {model.name} differs from the library's by {apart:.1e}"
        equal = apart <= LARGEST_DIFFERENCE  # False for NaN, too
        require(equal, f"{message}, more than {LARGEST_DIFFERENCE:g}; nothing was written")
        worst = max(worst, apart)
    return worst
