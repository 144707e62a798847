"""A client: it holds its data and its state, and answers the server's requests."""

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch

from fedem_lightning.aggregation import Models, Sent, all_finite, check_sent
from fedem_lightning.algorithms.base import FederatedAlgorithm
from fedem_lightning.algorithms.checkpoints import made_from, take_dtypes
from fedem_lightning.data.federation import Federation
from fedem_lightning.data.own_files import sample_form
from fedem_lightning.data.splits import SPLITS
from fedem_lightning.deploy.wire import Parcel, failed, packed, with_equal_ties, with_prefix
from fedem_lightning.errors import require, require_whole
from fedem_lightning.evaluation.scores import models_scored, scored_columns, scores_of
from fedem_lightning.models.client_model import ClientModels
from fedem_lightning.models.client_store import Owner
from fedem_lightning.models.personal_models import OwnModels
from fedem_lightning.models.tensors import trained_parameters
from fedem_lightning.records.files import replacing
from fedem_lightning.rejections import NOT_FINITE
from fedem_lightning.serving.model_files import write_clients
from fedem_lightning.serving.options import MODEL, STATE
from fedem_lightning.uploads import compressed, received_models

NEWEST, BEFORE = STATE, "before.safetensors"
RUN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Of a run, which the server names: it is a folder in the client's own."""
MOST_ROUNDS = 1_000_000
"""Larger numbers of rounds that a server names are refused: a client keeps a number for each."""

IN_CLEAR = ("describe", "score", "secure")
"""What a client answers that insists on secure aggregation; "secure" is masked."""


class OneProcess(NamedTuple):
    """What an algorithm asks its Trainer for."""

    world_size: int = 1
    global_rank: int = 0
    strategy: None = None


class Node:
    """One client. Its state and its model lie in its folder, in one for each run; they never leave it.

    Args:
        federation: its data, a federation of one client.
        folder: of its state.
        trust: packages of the user's whose classes the server may name.
        require_secure: whether its updates leave it masked, for secure aggregation, or not at all.

    """

    def __init__(
        self, federation: Federation, folder: Path, trust: Sequence[str] = (), require_secure: bool = False
    ) -> None:
        require(federation.n_clients == 1, f"expected the data of one client, got {federation.n_clients} clients")
        self.federation, self.folder, self.trust, self.require_secure = federation, folder, trust, require_secure
        self.context: Any = None  # Flower's, which has the keys of the sum that goes on

    def answer(self, request: Parcel) -> Parcel:
        """The reply to a request; one with "error" if the client fails."""
        answers = {"describe": self._describe, "train": self._train, "answer": self._answer, "score": self._score}
        try:
            kind = request.facts["kind"]
            require(
                not self.require_secure or kind in IN_CLEAR,
                "require_secure: this client sends updates only in a sum that hides them, so it does not answer "
                f"{kind!r} in clear text; the server's option is --secure",
            )
            with torch.inference_mode(False), torch.no_grad():
                return self._masked(request) if kind == "secure" else answers[kind](request)
        except Exception as error:
            return failed(error)

    def _masked(self, request: Parcel) -> Parcel:
        """The reply to a stage of secure aggregation, in one of which the update leaves, masked."""
        found = importlib.util.find_spec("flwr") is not None
        require(found, 'secure aggregation needs Flower: pip install "fedem-lightning[flower]"')
        from fedem_lightning.deploy import masking  # imports Flower

        self.context = self.context or masking.new_context()
        return masking.reply_to(request, self.context, self._update)

    def _update(self, request: Parcel) -> Parcel:
        """The update that is masked afterwards."""
        for_a_sum = request.facts["kind"] == "train" and request.facts.get("summed") is True
        require(for_a_sum, "secure: this client masks an update for a sum, and nothing else")
        return self._train(request)

    def _describe(self, request: Parcel) -> Parcel:
        """The client's name, the form of its samples, and the number of them that it trains on."""
        name, n_train = str(self.federation.names[0]), int(self.federation.splits["train"].counts().sum())
        path = self._path(request.facts["run"], NEWEST)
        newest = _round_of(path) if path.is_file() else None
        return Parcel({"name": name, "form": sample_form(self.federation), "n_train": n_train, "round": newest}, {})

    def _train(self, request: Parcel) -> Parcel:
        """The client update of a round, and the rows of client state that the method reports."""
        facts, zero = request.facts, torch.zeros(1, dtype=torch.int64)
        algorithm = self._algorithm(request, before=facts["round"])
        if algorithm is None:
            return Parcel({"needs_start": True}, {})
        block, message = self.federation.block(zero, "train"), {}
        sent = algorithm.client_update(block, facts["round"])
        check_sent(algorithm, sent)
        if facts.get("summed"):
            sent = _summable(algorithm, sent)
            if not all_finite(sent.models).all():  # a sum with it would be finite, and wrong
                return Parcel({"error": NOT_FINITE, "not_finite": True}, {})
        elif sent is not None and algorithm.compression is not None:
            upload = compressed(algorithm, sent, block, facts["round"])
            message = {f"message.{name}": rows for name, rows in upload.message.items()}
            sent = sent._replace(models={})
        self._keep(algorithm, facts["run"], facts["round"])
        reported = {f"reported.{name}": rows for name, rows in sorted(algorithm.states.of(Owner.REPORTED).items())}
        metrics = {name: list(pair) for name, pair in algorithm.round_metrics.sums().items()}
        rejected = [list(rejection[1:]) for rejection in algorithm.round_metrics.rejections]
        n_groups = 1 if sent is None else sent.n_groups
        tensors = packed(sent) | message | reported
        return Parcel({"n_groups": n_groups, "metrics": metrics, "rejected": rejected}, tensors)

    def _answer(self, request: Parcel) -> Parcel:
        """The answer to a question outside of training."""
        algorithm, zero = self._algorithm(request), torch.zeros(1, dtype=torch.int64)
        if algorithm is None:
            return Parcel({"needs_start": True}, {})
        given, block = with_prefix(request.tensors, "given."), self.federation.block(zero, "train")
        answer: Any = getattr(algorithm, "answer", None)
        require(
            answer is not None, f"{type(algorithm).__name__} has no answer to {str(request.facts['question'])[:40]!r}"
        )
        found = answer(request.facts["question"], block, given)
        return Parcel({}, {f"answer.{name}": rows for name, rows in found.items()})

    def _score(self, request: Parcel) -> Parcel:
        """The mean scores of the client's model on each split; the model is kept. What scoring changes is forgotten."""
        algorithm, zero = self._algorithm(request), torch.zeros(1, dtype=torch.int64)
        if algorithm is None:
            return Parcel({"needs_start": True}, {})
        if algorithm.facts.personalizes_seen:
            algorithm.personalize_clients(self.federation, zero)
        _, personal = next(models_scored(algorithm, self.federation, zero, zero))
        measures = scores_of(personal, self.federation)
        sizes = {split: int(self.federation.splits[split].counts().sum()) for split in SPLITS}
        found = personal.columns if isinstance(personal, OwnModels) else {}
        columns = {name: float(found[name][0]) for name in scored_columns(algorithm)}
        assert algorithm.schema is not None  # `_algorithm` has prepared it
        models = ClientModels((algorithm.schema.name(0),), personal, algorithm.schema)
        reported = {"round": request.facts["round"], "measures": measures}
        notes = {"recipe": request.facts["recipe"], "reported": reported}
        notes |= {"samples": self.federation.notes.get("load_client")}
        write_clients(self._path(request.facts["run"], MODEL), models, notes)
        return Parcel({"measures": measures, "sizes": sizes, "columns": columns}, {})

    def _algorithm(self, request: Parcel, before: int | None = None) -> FederatedAlgorithm | None:
        """The server's algorithm for this client alone, with its state; None: it has no state to start from.

        Args:
            request: has the recipe, the server's tensors and, for a client without state, its start.
            before: the number of a round: the state is that from before it; None: the newest.

        """
        facts = request.facts
        for name in ("round", "planned_rounds"):
            require_whole(name, facts[name], at_least=0, below=MOST_ROUNDS)
        state = self._state(facts["run"], before)
        if state is None:
            state = with_prefix(request.tensors, "start.")
        if not state:
            return None
        given = {"n_clients": 1, "participation": 1.0, "scored_clients": 1.0, "faults": None, "networks": None}
        algorithm: FederatedAlgorithm = made_from(facts["recipe"], None, self.trust, given, state)
        state = state | with_prefix(request.tensors, "sent.")
        take_dtypes(algorithm, state)
        algorithm.load_state_dict(with_equal_ties(algorithm, state))
        self.federation.keys = torch.tensor([facts["client"]])
        algorithm.statistics.planned_rounds = facts["planned_rounds"]
        algorithm.statistics.round_seconds = [0.0] * facts["round"]
        algorithm.trainer = OneProcess()  # type: ignore[assignment]
        algorithm.prepare_for(self.federation)
        return algorithm

    # --- state ------------------------------------------------------------------------------------------------------

    def _path(self, run: Any, name: str) -> Path:
        """The place of a run's file, in the client's folder.

        Raises:
            UserError: the run has no plain name, or a link leads out of the client's folder.

        """
        plain = isinstance(run, str) and RUN_NAME.fullmatch(run) is not None
        require(plain, f'run: expected a name of 1 to 64 letters, digits, "_" or "-", got {str(run)[:40]!r}')
        path = self.folder / run / name
        require(path.resolve() == self.folder.resolve() / run / name, f"{path}: a link leads elsewhere")
        return path

    def _state(self, run: str, before: int | None) -> Models | None:
        """The newest state from before a round, or the newest (`before` is None); None: the client has to start.

        A server that starts again asks for the rounds after its checkpoint a second time. If that is further back than
        the states that are kept, the older one serves.
        """
        paths = [path for name in (NEWEST, BEFORE) if (path := self._path(run, name)).is_file()]
        fitting = [path for path in paths if before is None or _round_of(path) < before]
        if not fitting and before:
            fitting = paths[-1:]
        return safetensors.torch.load_file(fitting[0]) if fitting else None

    def _keep(self, algorithm: FederatedAlgorithm, run: str, round_: int) -> None:
        newest = self._path(run, NEWEST)
        if newest.is_file() and _round_of(newest) < round_:
            newest.replace(self._path(run, BEFORE))
        tensors = {name: tensor.contiguous().clone() for name, tensor in algorithm.state_dict().items()}
        with replacing(newest) as path:
            safetensors.torch.save_file(tensors, path, {"round": str(round_)})


def _summable(algorithm: FederatedAlgorithm, sent: Sent | None) -> Sent:
    """The client's update theta_t - theta, which can be added to those of others.

    Raises:
        UserError: it sends something else, too, or several averages, or weights that are not whole numbers.

    """
    kind = type(algorithm).__name__
    fits = sent is not None and sent.group is None and sent.weights.ndim == 1 and not sent.extras
    require(fits, f"secure: {kind} does not send one update for one average")
    assert sent is not None
    whole = not sent.weights.is_floating_point() and sent.included is None
    require(whole, f"secure: {kind} has weights that are not whole numbers, or sends some of its components")
    received = received_models(algorithm, torch.zeros(1, dtype=torch.int64))
    more = sorted(set(sent.models) - set(trained_parameters(algorithm.components[0])))
    require(not more, f"secure: clients also send {', '.join(more[:3])} (statistics of BatchNorm)")
    return sent._replace(models={name: rows - received[name] for name, rows in sent.models.items()})


def _round_of(path: Path) -> int:
    with safetensors.safe_open(path, "pt") as file:
        return int(file.metadata()["round"])
