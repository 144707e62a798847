"""What a configuration may say: every key of every shipped choice, with values that it cannot have."""

import copy
import functools
import math
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt
from hydra import compose, initialize_config_dir
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from fedem_lightning import FederatedAlgorithm, UserError
from fedem_lightning.algorithms.trainer_options import TRAINER
from fedem_lightning.run.gate import check_configuration, check_group
from fedem_lightning.settings.check import parameters
from fedem_lightning.settings.keys import KEYS
from fedem_lightning.settings.ranges import PositiveInt, Share
from helpers.commands import CONFIG_DIR

GROUPS = [key.name for key in KEYS if key.kind in ("one", "optional", "named")]
NEEDED = [key.name for key in KEYS if key.kind == "one"]
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((CONFIG_DIR / group).glob("*.yaml"))]
WRONG: dict[type, list[Any]] = {  # by the type of what the package ships
    bool: ["no", "off", "abc", 1, math.nan],
    int: ["abc", 1.5, True, math.nan, [1]],
    float: ["abc", True, math.nan, [0.5]],
    str: [3, True, ["abc"]],
    list: [True, 3, {"a": 1.5}],
    type(None): [{"a": 1.5}],
}


WRITTEN_AS_WHOLE = {"grace_seconds", "every_seconds"}
"""Numbers of which the package's configurations write whole ones."""


class Mine(FederatedAlgorithm):
    """A user's own method; the gate reads its annotations alone."""

    def __init__(  # type: ignore[no-untyped-def]
        self,
        backbone: Any,
        n_clients: int,
        strength: Share,
        rule: Literal["near", "far"] = "near",
        sizes: list[PositiveInt] | None = None,
        untyped=None,
        **options: Any,
    ) -> None:
        raise AssertionError("the gate makes nothing")


@functools.cache
def plain() -> Any:
    """The default configuration without interpolations; under `all` every choice of every group. One composition."""
    more = [f"+{group}@all.{group}.{name}={name}" for group, name in CHOICES]
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", more)
    return OmegaConf.to_container(config, resolve=True)


def default() -> DictConfig:
    return OmegaConf.create({key: value for key, value in plain().items() if key != "all"})


def chosen(group: str, name: str) -> Any:
    tree: Any = copy.deepcopy(plain()["all"].get(group, {}).get(name) or {})
    if (group, name) == ("dataset", "torch"):  # whose function is always the user's
        tree["data"]["_target_"] = "helpers.federations.torch_clients"
    return tree


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The keys of a choice with their values, but not what Hydra reads."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        elif not key.startswith("_"):
            yield (*path, key), value


def refusal(group: str, tree: Any, path: tuple[str, ...], value: Any) -> str:
    """What the gate says if one key has another value; empty if it lets it pass."""
    changed = copy.deepcopy(tree)
    place = functools.reduce(lambda node, key: node[key], path[:-1], changed)
    place[path[-1]] = value
    try:
        check_group(group, changed)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_every_shipped_choice_passes(group: str, name: str) -> None:
    check_group(group, chosen(group, name))


def test_the_default_configuration_passes() -> None:
    check_configuration(default())


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["paper", "reference"])
@pytest.mark.parametrize("name", sorted(path.stem for path in (CONFIG_DIR / "experiment").glob("*.yaml")))
def test_every_experiment_passes(name: str, fidelity: str) -> None:
    """`test_configs.py` runs all of them, through the gate; this one without their data."""
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        check_configuration(compose("config", [f"+experiment={name}", f"fidelity={fidelity}"]))


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_a_value_of_another_type_is_one_line_that_names_the_key(group: str, name: str) -> None:
    tree = chosen(group, name)
    for path, default in leaves(tree):
        key, kind = ".".join((group, *path)), float if path[-1] in WRITTEN_AS_WHOLE else type(default)
        for value in WRONG[kind]:
            said = refusal(group, tree, path, value)
            assert said.startswith(f"{key}: expected "), f"{key}={value}: {said!r}"
            assert "\n" not in said


def bounds(hint: Any) -> list[float]:
    """Numbers just outside of the ranges in an annotation."""
    outside = {Ge: lambda b: b.ge - 1, Gt: lambda b: b.gt, Le: lambda b: b.le + 1, Lt: lambda b: b.lt}
    found = [outside[type(limit)](limit) for limit in getattr(hint, "__metadata__", ()) if type(limit) in outside]
    parts = getattr(hint, "__args__", ())
    return found + [value for part in parts for value in bounds(part)]


@pytest.mark.parametrize(("group", "name"), CHOICES)
def test_a_number_out_of_its_range_is_one_line_that_names_the_key(group: str, name: str) -> None:
    tree = chosen(group, name)
    for path, _ in leaves(tree):
        part = functools.reduce(lambda node, key: node[key], path[:-1], tree)
        if "_target_" not in part or path[-1] in ("devices", "title"):  # several ranges; no argument
            continue
        hint = parameters(get_object(part["_target_"])).known[path[-1]].hint
        hint = TRAINER.get(path[-1], hint) if group == "trainer" else hint
        listed = "Sequence" in str(hint)
        for bound in bounds(hint):
            value = [bound] * 3 if listed else bound
            said = refusal(group, tree, path, value)
            assert said.startswith(f"{'.'.join((group, *path))}: expected "), f"{path}={value}: {said!r}"


def test_the_ranges_that_are_tried_are_many() -> None:
    """The test above would pass if no annotation had a range."""
    hints = [s.hint for kind in (FederatedAlgorithm,) for s in parameters(kind).known.values()]
    assert sum(bool(bounds(hint)) for hint in hints) >= 9


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("value", [3, 0.5, "abc", True, [1, 2], {"a": 1}])
def test_a_group_that_is_no_choice_is_one_line(group: str, value: Any) -> None:
    """As in a file of the user's own; on the command line Hydra does not know such a choice."""
    config = default()
    config[group] = value
    line = rf"^{group}(\.a)?(\._target_)?: (expected|it is missing|Mean takes no)"
    with pytest.raises(UserError, match=line) as caught:
        check_configuration(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("group", NEEDED)
@pytest.mark.parametrize("value", [None, {}])
def test_a_group_that_the_run_needs_is_there(group: str, value: Any) -> None:
    config = default()
    config[group] = value
    with pytest.raises(UserError, match=rf"^{group}: expected one of .*, got "):
        check_configuration(config)


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in NEEDED])
def test_other_groups_may_be_empty(group: str) -> None:
    config = default()
    config[group] = None
    check_configuration(config)


LINES = [
    ("dataset.one_hot", "no", "dataset.one_hot: expected true or false, got 'no'"),
    ("seed", "abc", "seed: expected a whole number of at least 0 and below 4294967296, got 'abc'"),
    ("seed", None, "seed: expected a whole number of at least 0 and below 4294967296, got null"),
    ("seed", 2**32, "seed: expected a whole number of at least 0 and below 4294967296, got 4294967296"),
    ("fidelity", "papper", "fidelity: expected paper or reference, got 'papper'; did you mean paper?"),
    ("ckpt_path", True, "ckpt_path: expected text or null, got true"),
    ("ckpt_path", 5, "ckpt_path: expected text or null, got 5"),
    ("ckpt_path", ["a"], "ckpt_path: expected text or null, got ['a']"),
    ("run_dir", True, "run_dir: expected text, a number or null, got true"),
    ("data_dir", 3, "data_dir: expected text, got 3"),
    ("mixing_weights", "fmcc", "mixing_weights: expected metropolis or fmmc, got 'fmcc'; did you mean fmmc?"),
    ("learning_rates", 0.5, "learning_rates: expected keys with values, got 0.5"),
    ("learning_rates", None, "learning_rates: expected keys with values, got null"),
    ("learning_rates", [1], "learning_rates: expected keys with values, got [1]"),
    ("learning_rates.fedem", "abc", "learning_rates.fedem: expected a number above 0, got 'abc'"),
    ("learning_rates.fedem", 0, "learning_rates.fedem: expected a number above 0, got 0"),
    ("learning_rates.fedem", math.inf, "learning_rates.fedem: expected a finite number above 0, got inf"),
    ("learning_rates.fedeem", 0.1, "learning_rates.fedeem: nothing reads it; did you mean fedem?"),
    ("method_settings.fedprox.mu", [1], "method_settings.fedprox.mu: expected a number, text or null, got [1]"),
    ("method_settings.mocha.penalty", 1, "method_settings.mocha.penalty: nothing reads it; use algorithm.penalty"),
    (
        "method_settings.pfedme.penaltyy",
        1,
        "method_settings.pfedme.penaltyy: nothing reads it; expected penalty or outer_lr",
    ),
    ("method_settings.fedproxx.mu", 1, "method_settings.fedproxx: nothing reads it; did you mean fedprox?"),
    ("local_training", 3, "local_training: expected keys with values, got 3"),
    ("local_training.batch_size", 0, "local_training.batch_size: expected a whole number of at least 1, got 0"),
    ("local_training.state", "kep", "local_training.state: expected restart or keep, got 'kep'; did you mean keep?"),
    (
        "trainer.check_val_every_n_epoch",
        0,
        "trainer.check_val_every_n_epoch: expected a whole number of at least 1 or null, got 0",
    ),
    (
        "trainer.precision",
        "bf16-true",
        "trainer.precision: expected 32-true, 64-true, bf16-mixed, auto or null, "
        "got 'bf16-true'; did you mean 64-true?",
    ),
    ("trainer.max_epochs", -1, "trainer.max_epochs: expected a whole number of at least 0, got -1"),
    ("trainer.benchmark", "abc", "trainer.benchmark: expected true, false or null, got 'abc'"),
    ("trainer.epochs", 3, "trainer.epochs: Trainer takes no such argument"),
    (
        "algorithm.server_optimizer.lr",
        -1,
        "algorithm.server_optimizer: the optimiser refuses lr=-1 (Invalid learning rate: -1)",
    ),
    (
        "algorithm.server_optimizer",
        3,
        "algorithm.server_optimizer: expected a function that makes an optimiser, such as functools.partial(SGD, "
        "lr=1.0) or null, got 3",
    ),
    (
        "algorithm.server_optimizer._partial_",
        "yes",
        "algorithm.server_optimizer._partial_: expected true or false, got 'yes'",
    ),
    (
        "algorithm.client_optimizer",
        3,
        "algorithm.client_optimizer: expected a client optimiser such as ClientSGD(lr=0.1, momentum=0.9) or null, "
        "got 3",
    ),
    (
        "algorithm.client_optimizer._target_",
        "torch.optim.SGD",
        "algorithm.client_optimizer._target_: expected a ClientOptimizer, got torch.optim.SGD",
    ),
    ("algorithm._target_", 3, "algorithm._target_: expected text, got 3"),
    (
        "algorithm._target_",
        "fedem_lightning.MLP",
        "algorithm._target_: expected a FederatedAlgorithm, got fedem_lightning.MLP",
    ),
    ("algorithm._target_", "torch.pi", "algorithm._target_: expected a class or a function, torch.pi is none"),
    ("dataset._target_", "nowhere.Data", "dataset._target_: cannot import 'nowhere.Data' (No module named 'nowhere')"),
    (
        "algorithm.participation",
        1.5,
        "algorithm.participation: expected a fraction up to 1 or a number from 2 on, got 1.5",
    ),
    ("algorithm.pretrained", 3, "algorithm.pretrained: expected a list of text or text, got 3"),
    ("backbone.in_shape", 3, "backbone.in_shape: expected a list of whole numbers of at least 1, got 3"),
    ("backbone.n_outputs", -1, "backbone.n_outputs: expected a whole number of at least 1, got -1"),
    ("backbone.dropout", 2, "backbone.dropout: Linear takes no such argument"),
    ("callbacks.progress", "abc", "callbacks.progress: expected keys with a _target_, or null, got 'abc'"),
    ("callbacks.checkpoint.keep", 0, "callbacks.checkpoint.keep: expected a whole number of at least 1, got 0"),
    (
        "engine.memory_gb",
        {"_target_": "os.getcwd"},
        "engine.memory_gb: expected a number above 0 or null, got {'_target_': 'os.getcwd'}",
    ),
    (
        "dataset.unseen",
        "north",
        "dataset.unseen: expected a list of clients' names such as [a,b] (null, true and 1.5 need quotes), got 'north'",
    ),
]


@pytest.mark.parametrize(("key", "value", "line"), LINES)
def test_the_line_of_a_mistake(key: str, value: Any, line: str) -> None:
    config = default()
    OmegaConf.update(config, key, value, merge=False, force_add=True)
    with pytest.raises(UserError) as caught:
        check_configuration(config)
    assert str(caught.value) == line


def test_unknown_keys_are_for_interpolations_to_read() -> None:
    config = default()
    config.merge_with({"rate": {"any": ["thing", None]}, "learning_rates": {"my_own": 0.1}})
    OmegaConf.update(config, "learning_rates.fedavg2", 0.3)
    config.method_settings.mocha = {"mine": 2}
    OmegaConf.update(config, "algorithm.local_epochs", "${method_settings.mocha.mine}")
    OmegaConf.update(config, "algorithm.client_optimizer.lr", "${learning_rates.fedavg2}")  # which is read here
    check_configuration(config)


def test_parts_of_an_unknown_group_are_checked() -> None:
    config = default()
    sgd = {"_target_": "fedem_lightning.ClientSGD", "lr": -1}
    config.merge_with({"mine": {"_target_": "builtins.dict", "inner": [sgd]}})
    with pytest.raises(UserError, match=r"^mine\.inner\.0\.lr: expected a number above 0, got -1"):
        check_configuration(config)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"strength": 2}, "algorithm.strength: expected a number from 0 to 1, got 2"),
        ({"rule": "neat"}, "algorithm.rule: expected near or far, got 'neat'; did you mean near?"),
        ({"sizes": [1, 0]}, "algorithm.sizes: expected a list of whole numbers of at least 1 or null, got [1, 0]"),
        ({"batch_size": "many"}, "algorithm.batch_size: expected a whole number of at least 1, got 'many'"),
        ({"force": 1}, "algorithm.force: Mine takes no such argument"),
        ({"untyped": "anything"}, ""),
        ({"untyped": {"_target_": "fedem_lightning.ClientSGD", "lr": 1}}, ""),
        (
            {"untyped": {"_target_": "fedem_lightning.ClientSGD", "lr": 0}},
            "algorithm.untyped.lr: expected a number above 0, got 0",
        ),
    ],
)
def test_a_users_own_class_is_read_as_ours(given: dict[str, Any], line: str) -> None:
    part = {"_target_": f"{__name__}.Mine", "strength": 0.5, **given}
    if not line:
        check_group("algorithm", part)
        return
    with pytest.raises(UserError) as caught:
        check_group("algorithm", part)
    assert str(caught.value) == line
