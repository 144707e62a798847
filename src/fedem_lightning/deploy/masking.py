"""Secure aggregation, the client's side: Flower's SecAgg+ masks the update, or the client does not send it.

A request of kind "secure" has the content of one of Flower's messages as bytes, and the client's node id in the facts;
so has the reply. The client trusts no setting of the server: it takes the only ones that `secure.py` sends.
"""

import hashlib
import json
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from flwr.app import Context, Message, MessageType, Metadata, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, RECORD_KEY_STATE, Key, Stage
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.proto.recorddict_pb2 import RecordDict as Encoded

from fedem_lightning.deploy.wire import FEWEST, MOST, Parcel, with_prefix
from fedem_lightning.errors import require

CONTENT = "secure.content"
"""Name of the tensor that has a message's content."""

LIMIT = 8.0
"""Largest magnitude of an entry of an update; what is larger becomes this."""
STEPS, MODULUS = 2**22, 2**32
"""An entry becomes one of so many whole numbers; sums and masks are modulo the second."""

_one_at_a_time = threading.Lock()


def masks(seed: bytes, num_range: int, dimensions_list: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Arrays of whole numbers below 2^32, which look random to who does not know the seed: AES-256 in counter mode.

    It stands in for Flower's function of the same arguments, which takes 32 bits of a seed: a server could try all.
    """
    assert num_range == MODULUS
    cipher = Cipher(algorithms.AES(hashlib.sha256(seed).digest()), modes.CTR(bytes(16))).encryptor()
    sizes = [math.prod(shape) for shape in dimensions_list]
    numbers = np.frombuffer(cipher.update(bytes(4 * sum(sizes))), dtype="<u4").astype(np.int64)
    parts = np.split(numbers, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, dimensions_list, strict=True)]


def use_masks(code: Any) -> None:
    """Makes a function of Flower's, and those beside it, use `masks`.

    Raises:
        UserError: a version of Flower that has no such function to replace.

    """
    known = "pseudo_rand_gen" in code.__globals__
    require(known, "secure: this version of Flower makes masks in a way that is not known here; install flwr 1.42")
    code.__globals__["pseudo_rand_gen"] = masks


use_masks(secaggplus_mod)


class Failed(Exception):
    """The client has nothing to be masked."""

    def __init__(self, reply: Parcel) -> None:
        super().__init__()
        self.reply = reply


def threshold_of(n: int) -> int:
    """The number of n clients that must stay until the end, so that the masks can be removed: more than two thirds.

    With fewer, a server that tells clients different things about who is gone could learn the sum of two updates.
    """
    return 2 * n // 3 + 1


def packed_content(content: RecordDict) -> dict[str, torch.Tensor]:
    """The content of a Flower message as a tensor of bytes."""
    text = recorddict_to_proto(content).SerializeToString()
    return {CONTENT: torch.frombuffer(bytearray(text), dtype=torch.uint8)}


def content_in(parcel: Parcel) -> RecordDict:
    """The content that `packed_content` has packed."""
    return recorddict_from_proto(Encoded.FromString(parcel.tensors[CONTENT].numpy().tobytes()))


def new_context() -> Context:
    """Room for what Flower keeps between the stages of a sum."""
    return Context(1, 0, {}, RecordDict(), {})


def reply_to(request: Parcel, context: Context, answer: Callable[[Parcel], Parcel]) -> Parcel:
    """The client's reply to a request of kind "secure".

    Args:
        request: of `SecureLink`.
        context: Flower's, which keeps the client's keys from stage to stage.
        answer: the client's reply to the request for its update; its tensors do not leave without masks.

    Raises:
        UserError: with the server's settings, masks would be missing or could be removed.
        Exception: the server asks for a stage that is not the next one, or Flower's code has failed.

    """
    node, content = int(request.facts["node"]), content_in(request)
    # not the server's words: Flower's mod passes on, without masks, what is no TRAIN message
    metadata = Metadata(1, "1", 0, node, "", "", 0.0, 1e9, MessageType.TRAIN)
    message: Any = Message(metadata=metadata, content=content)  # type: ignore[call-overload]
    with _one_at_a_time:  # two requests at once could ask for both halves of a secret
        check_settings(content.config_records[RECORD_KEY_CONFIGS], context)
        try:
            reply = secaggplus_mod(message, context, lambda message, _: _update(message, answer)).content
        except Failed as failed:
            return failed.reply
    masked = not any(len(arrays) for arrays in reply.array_records.values())
    require(masked, "secure: this version of Flower leaves the update in the reply, so it is not sent")
    return Parcel({}, packed_content(reply))


def check_settings(configs: Any, context: Context) -> None:
    """Raises UserError unless more than two thirds of at least three clients must agree to remove masks.

    Flower checks types, and that stages come in their order; a stage without the one before it has no keys.
    """
    stage: Any = configs.get(Key.STAGE)
    state: Any = context.state.config_records.get(RECORD_KEY_STATE, {})
    if stage == Stage.SETUP:
        n, threshold = configs.get(Key.SHARE_NUMBER), configs.get(Key.THRESHOLD)
        scale = [configs.get(key) for key in (Key.CLIPPING_RANGE, Key.TARGET_RANGE, Key.MOD_RANGE)]
        require(
            type(n) is int and FEWEST <= n <= MOST,
            f"secure: this client adds its update to a sum of {FEWEST} to {MOST} clients only, got {n}",
        )
        require(
            type(threshold) is int and threshold_of(n) <= threshold <= n,
            f"secure: this client wants {threshold_of(n)} to {n} of {n} clients to agree before masks are removed, "
            f"got {threshold}",
        )
        require(scale == [LIMIT, STEPS, MODULUS], f"secure: this client masks modulo 2^32 only, got {scale}")
    elif stage == Stage.COLLECT_MASKED_VECTORS:
        _check_distinct("clients that share keys", configs.get(Key.SOURCE_LIST, []))
    elif stage == Stage.UNMASK:
        active, gone = configs.get(Key.ACTIVE_NODE_ID_LIST, []), configs.get(Key.DEAD_NODE_ID_LIST, [])
        _check_distinct("clients that stay or are gone", [*active, *gone])
        require(state.get("nid") in active, "secure: this client is there, and does not give away its own key")


def _check_distinct(what: str, nodes: list[Any]) -> None:
    distinct = all(type(node) is int for node in nodes) and len(set(nodes)) == len(nodes)
    require(distinct, f"secure: {what}: the server names one of them twice")


def _update(message: Message, answer: Callable[[Parcel], Parcel]) -> Message:
    """The message with the update that Flower's mod masks; its weight and the facts are not masked."""
    fit = compat.recorddict_to_fitins(message.content, keep_input=True)
    reply = answer(Parcel.from_bytes(fit.parameters.tensors[0]))
    if "needs_start" in reply.facts:
        reply = Parcel({"error": "the client has no state of this run"}, {})
    if "error" in reply.facts:
        raise Failed(reply)
    models = with_prefix(reply.tensors, "models.")
    arrays = [models[name].double().numpy() for name in sorted(models)]
    weight, facts = int(reply.tensors["weights"]), {"facts": json.dumps(reply.facts)}
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), weight, facts)  # type: ignore[arg-type]
    return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)
