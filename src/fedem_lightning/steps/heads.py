"""The head of a user's network, for methods that treat it apart: known once data has gone through the network."""

import re
from typing import Any

from fedem_lightning.data.federation import Federation
from fedem_lightning.data.names import listed
from fedem_lightning.errors import require
from fedem_lightning.method import Method
from fedem_lightning.models.components import copied, model_state
from fedem_lightning.models.parts import one_sample, owner, split_body_head, users_network
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.settings.check import parameters
from fedem_lightning.steps.checks import check_fit


def use_computed_head(algorithm: Method, federation: Federation, begun: bool = False) -> None:
    """Makes an algorithm anew, in place, if its constructor took another layer for the head than computes the outputs.

    The constructor, which has no data, takes the layer that was made last. From here on the head is named among the
    algorithm's arguments, so that a checkpoint knows it. Where the user has named it, nothing happens. UserError:
    `computed_last` finds no head; or it is too late, as the training has `begun`.
    """
    key = _asks(algorithm)
    if not key:
        return
    network = users_network(algorithm.components[0])
    if algorithm.remote is None:
        check_fit(network, federation)  # it says best what does not fit
    made_last = split_body_head(network, key=key)
    result = split_body_head(network, key=key, x=one_sample(federation, network))
    if result == made_last:
        return
    named: Any = rf"^{re.escape(owner(result.head[0]))}\."
    if key == "shared":
        named = [name for name in trained_parameters(network) if name in result.body]
    reason = (
        f"{key}: the outputs come from {', '.join(result.head)}, but the model has taken {', '.join(made_last.head)}"
    )
    require(
        not begun and not algorithm.statistics.rounds, f"{reason}; make it anew, with {key}={named!r}, and train it"
    )
    networks = iter([copied(users_network(component)) for component in algorithm.components])
    made_with, like = algorithm.made_with, next(algorithm.components.parameters())
    arguments: dict[str, Any] = {**made_with, key: named, "backbone": lambda: next(networks)}
    kept = {name: getattr(algorithm, name) for name in ("_trainer", "remote", "cohort_secret", "deployed_before")}
    type(algorithm).__init__(algorithm, **arguments)
    vars(algorithm).update(kept, made_with={**made_with, key: named})
    algorithm.to(like.device, like.dtype)


def _asks(algorithm: Method) -> str:
    """The argument of an algorithm that could name the head, and does not; "": it treats no head apart."""
    made = algorithm.made_with
    if made.get("shared") == "body" and len(algorithm.components) > 1:
        return "shared"
    asks = "head" in parameters(type(algorithm)).known and made.get("head") is None  # type: ignore[arg-type]
    return "head" if asks else ""


def whose_parts(algorithm: Method) -> str:
    """A line that says whose values layers have, where some are each client's or component's; "": nothing to say."""
    network, own = algorithm.components[0], algorithm.own_parameters
    who, others = "each client's own", "averaged"
    if not own and (own := getattr(getattr(algorithm, "mixture", None), "own", ())):
        who, others = "each component's own", "common to all"
    names = model_state(network)
    if not own or len(own) == len(names):
        return ""
    layers = [dict.fromkeys(owner(name) or name for name in names if (name in own) == mine) for mine in (True, False)]
    return f"{who}: {listed(layers[0], 8)}; {others}: {listed(layers[1], 8)}"
