"""Wrong settings: every key of every choice of every group, with values that it cannot take."""

from collections.abc import Iterator
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from fedem_lightning.settings.shipped import choices
from helpers.commands import CONFIG_DIR
from wrong_inputs.case import Case

TINY = (
    *("dataset=synthetic", "dataset.n_clients=4", "dataset.dimension=3", "dataset.test_size=9"),
    *("trainer.max_epochs=1", "trainer.accelerator=cpu", "trainer.enable_progress_bar=false"),
)
GROUPS = (
    *("algorithm", "adaptation", "aggregation", "faults", "dataset", "backbone", "engine", "network", "trainer"),
    *("callbacks", "logger"),
)
WRONG: dict[type, tuple[str, ...]] = {
    bool: ("no", "off", "abc", "nan", "2", "[true]"),
    int: ("abc", "1.5", "true", "nan", "[1]", "-7", "{a: 1}"),
    float: ("abc", "true", "nan", "[1]", "-7", "{a: 1}"),
    str: ("[a]", "{a: 1}", "true", "3.5"),
    list: ("abc", "7.5", "{a: 1}", "[[[1]]]", "[null]"),
    type(None): ("{zz: 1}", "[[[1]]]"),
}
"""By the kind of a key's default."""
LEGAL = {
    ("faults=scaling", "faults.factor", "-7"): "the opposite of the update, longer",
}
"""Values that a key of a choice takes after all, and why."""
FIRST_DAY = {
    "~trainer.profiler": "null already",
    "trainer.gradient_clip_val=1": "does not see the gradients",
    "trainer.accumulate_grad_batches=2": "the clients take the steps",
    "trainer.strategy=ddp_spawn": "expected ddp",
    "algorithm=fedem,fedavg": "need -m",
    "algorithm.client_optimizer._target_=torch.optim.SGD": "expected a ClientSGD",
    "+callbacks.mean._target_=pytorch_lightning.callbacks.WeightAveraging": "WeightAveraging: ",
}
"""What users of Hydra and Lightning try first, and what the line must contain."""
_OF_SEVERAL = ("network", "callbacks", "logger", "experiment", "adaptation", "faults", "aggregation")
"""Groups that may be empty: [] chooses nothing."""
_TEXT = {
    *("name", "project", "group", "experiment_name", "run_name", "tracking_uri"),
    *("data_dir", "path", "run_dir", "label", "title"),
}
"""Keys that take any text."""


def cases() -> Iterator[Case]:
    """Every wrong setting."""
    yield from _groups()
    for word, says in FIRST_DAY.items():
        yield Case(f"settings/first day/{word}", (*TINY, word), says=says)
    seen: set[tuple[str, str, str]] = set()
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        for group in GROUPS:
            for choice in choices(CONFIG_DIR)[group]:
                config = compose("config", [f"{group}={choice}"])
                node = config[group]
                target = str(node.get("_target_", "")) if isinstance(node, DictConfig) else ""
                for key, value in _leaves(node, group):
                    owner = "" if _is_base(key) else target or choice
                    if (key, owner, repr(value)) not in seen:
                        seen.add((key, owner, repr(value)))
                        yield from _wrong(f"{group}={choice}", key, value)
        config = compose("config", [])
        for key in [str(k) for k in config if k not in GROUPS]:
            for leaf, value in _leaves(config[key], key):
                yield from _wrong("", leaf, value)


def _is_base(key: str) -> bool:
    """Keys that all algorithms share are tried with one of them."""
    name = key.removeprefix("algorithm.")
    return name in OmegaConf.load(CONFIG_DIR / "algorithm_base.yaml") or name.startswith(
        ("client_optimizer", "server_optimizer")
    )


def _wrong(choice: str, key: str, value: Any) -> Iterator[Case]:
    name = key.rpartition(".")[2]
    values = [*WRONG[type(value)]]
    if isinstance(value, str) and name not in _TEXT:
        values.append(value[:-1])
    words = tuple(word for word in TINY if not choice.startswith("dataset=") or not word.startswith("dataset"))
    for wrong in values:
        if (choice, key, wrong) in LEGAL or (isinstance(value, str) and name in _TEXT and wrong in ("true", "3.5")):
            continue
        yield Case(
            f"settings/{choice or 'root'}/{key}={wrong}",
            (*words, *([choice] if choice else []), f"{key}={wrong}"),
            says=name,
        )


def _leaves(node: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Keys with their defaults; a list counts as one value."""
    plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    yield from _walk(plain, prefix)


def _walk(plain: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(plain, dict):
        yield prefix, plain
        return
    for key, value in plain.items():
        if not str(key).startswith("_"):
            yield from _walk(value, f"{prefix}.{key}")


def _groups() -> Iterator[Case]:
    """Groups given something else than the name of a choice."""
    for group in (*GROUPS, "experiment"):
        plus = "+" if group == "experiment" else ""
        for wrong in ("5", "-1.5", "true", "[]", "[1, 2]", "[null]", "[[a]]", "nan", "''", "{a: 1}", "no_such"):
            if wrong == "[]" and group in _OF_SEVERAL:
                continue
            yield Case(f"settings/groups/{group}={wrong}", (*TINY, f"{plus}{group}={wrong}"), says=group)
    for group in ("algorithm", "dataset", "backbone", "engine", "trainer"):
        yield Case(f"settings/groups/{group}=null", (*TINY, f"{group}=null"), says=group)
        yield Case(f"settings/groups/~{group}", (*TINY, f"~{group}"), says=group)
