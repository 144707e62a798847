"""The keys of a configuration that the package treats apart, a row each: what they take, and who may change them.

Other keys of parts, such as algorithm.batch_size, have no row: the constructor that takes them says all there is to
say. The module imports nothing slow, so annotations and classes that are slow to import stand as their paths.
"""

import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

KindOfKey = Literal["one", "optional", "named", "own", "part"]
"""A group of which a run needs one choice; a group that may be null; a group that holds several parts by name, or none;
a value that the run itself reads; a key of a part, or a group whose choices set keys of other parts."""
EffectOfKey = Literal["result", "passed on", "repetition", "none", "words"]
"""What a key changes: the results; the results, through keys of the algorithm, where reports see it; which repetition
of an experiment the run is; nothing that is scored; the words of figures and tables."""


class Key(NamedTuple):
    """A key of a configuration.

    Args:
        name: with dots; of a group within another with a slash, as on the command line.
        kind: see `KindOfKey`.
        takes: of a value its annotation, or the path of one; of a group the paths of the classes that it makes.
        null: whether a value may be null as well.
        needed: whether something reads the key whatever is chosen, so that ~KEY cannot remove it.
        single: whether KEY=[a,b] is refused; choices of other groups are combined.
        handed: arguments of the target that the run hands over; a configuration cannot set them.
        effect: see `EffectOfKey`.
        may_change: whether a resumed run may have another value.
        calls_run: whether results.json calls the run by the choice.
        listed: whether trackers name the run by KEY=VALUE where the user has typed it.
        finds_run: whether the key says where the run is, and nothing of the run itself.
        of_setting: whether runs that differ in it stand in different tables.
        path: whether it is a path, which is typed relative to the working directory.

    """

    name: str
    kind: KindOfKey
    takes: Any = None
    null: bool = False
    needed: bool = False
    single: bool = False
    handed: tuple[str, ...] = ()
    effect: EffectOfKey = "result"
    may_change: bool = False
    calls_run: bool = False
    listed: bool = True
    finds_run: bool = False
    of_setting: bool = False
    path: bool = False


_one = functools.partial(Key, kind="one", needed=True, single=True)
_optional = functools.partial(Key, kind="optional")
_named = functools.partial(Key, kind="named")
_own = functools.partial(Key, kind="own", needed=True)
_passed_on = functools.partial(Key, kind="own", needed=True, effect="passed on", may_change=True)
_part = functools.partial(Key, kind="part")
_ignored = functools.partial(Key, kind="part", effect="none")
_of_the_machine = functools.partial(Key, kind="part", effect="none", listed=False)

_METHOD, _DATA = ("fedem_lightning.algorithms.FederatedAlgorithm",), ("fedem_lightning.data.FederatedDataModule",)
_ENGINES = ("fedem_lightning.engine.Engine", "fedem_lightning.engine.AutoEngine")
_OF_METHOD = (
    *("backbone", "n_clients", "adaptation", "engine", "networks", "aggregation", "compression", "faults"),
    "seed",
)
_OF_TRAINER = ("callbacks", "logger", "plugins", "default_root_dir")
_ADAPTATION = ("fedem_lightning.adaptation.Adaptation",)
_PART = Mapping[str, Any]

KEYS: tuple[Key, ...] = (
    # Groups, in the order in which results.json has their choices.
    _one("algorithm", takes=_METHOD, handed=_OF_METHOD, calls_run=True, listed=False),
    _optional("adaptation", takes=_ADAPTATION, needed=True, single=True, calls_run=True, listed=False),
    _one("dataset", takes=_DATA, calls_run=True, listed=False, of_setting=True),
    _one("backbone", takes=("torch.nn.Module",), calls_run=True, of_setting=True),
    _one("engine", takes=_ENGINES, effect="none"),
    _one("trainer", takes=("pytorch_lightning.Trainer",), handed=_OF_TRAINER, may_change=True),
    _optional("faults", takes=("fedem_lightning.faults.Faults",)),
    _optional("aggregation", takes=("fedem_lightning.aggregation.Aggregation",)),
    _optional("compression", takes=("fedem_lightning.compression.Compression",)),
    _named("callbacks", takes=("pytorch_lightning.Callback",), needed=True, effect="none", may_change=True),
    _named("logger", takes=("pytorch_lightning.loggers.Logger",), needed=True, effect="none", may_change=True),
    _named("network", takes=("fedem_lightning.network.Network",)),
    _part("dataset/augmentation", single=True),
    _part("algorithm/client_optimizer", single=True),
    _part("algorithm/server_optimizer", single=True),
    _part("experiment", calls_run=True, listed=False),
    _ignored("hydra"),
    # Values that the run itself reads, in the order in which they are checked.
    _own("fidelity", takes=Literal["paper", "reference"], of_setting=True),
    _own("seed", takes="fedem_lightning.settings.ranges.Seed", effect="repetition", listed=False),
    _own("data_dir", takes=str, effect="none", path=True),
    _own("run_dir", takes=str | float, null=True, effect="none", may_change=True, finds_run=True),  # 3 is a number
    _own("ckpt_path", takes=str, null=True, effect="none", may_change=True, finds_run=True, path=True),
    _own("mixing_weights", takes="fedem_lightning.mixing.Weights"),
    _passed_on("n_components", takes="fedem_lightning.settings.ranges.PositiveInt", null=True),
    _passed_on("initialization", takes="fedem_lightning.algorithms.start.Initialization"),
    _passed_on("personalize_steps", takes="fedem_lightning.settings.ranges.PositiveInt"),
    _passed_on("learning_rates", takes=_PART),
    _passed_on("default_lr", takes="fedem_lightning.settings.ranges.Positive"),
    _passed_on("chosen_for", takes=Mapping[str, Mapping[str, _PART]], null=True, needed=False),
    _passed_on("local_training", takes=_PART, may_change=False),
    _passed_on("method_settings", takes=Mapping[str, _PART]),
    # Keys of parts.
    _part("algorithm.title", takes=str, null=True, effect="words", may_change=True, listed=False),
    _part("adaptation.proxy", path=True),
    _part("network.devices.path", path=True),
    _part("dataset.path", path=True),
    _ignored("dataset.data_dir"),
    _ignored("dataset.mmap"),
    _part("trainer.max_epochs", needed=True),
    _part("trainer.precision", needed=True),
    _of_the_machine("trainer.devices", needed=True),
    _of_the_machine("trainer.accelerator"),
    _of_the_machine("trainer.num_nodes"),
    _of_the_machine("trainer.strategy"),
    _of_the_machine("trainer.profiler"),
    _of_the_machine("trainer.enable_progress_bar"),
    _ignored("trainer.deterministic"),
    _ignored("trainer.benchmark"),
    _ignored("trainer.check_val_every_n_epoch"),
    _ignored("trainer.log_every_n_steps"),
    _ignored("trainer.num_sanity_val_steps"),
    _ignored("trainer.enable_model_summary"),
    _ignored("trainer.enable_checkpointing"),
    _ignored("trainer.inference_mode"),
    _ignored("trainer.use_distributed_sampler"),
    _ignored("trainer.default_root_dir"),
)

BY_NAME = {key.name: key for key in KEYS}


def handed_by_run(part: str) -> tuple[str, ...]:
    """The arguments that a run itself hands to the target of this part of a configuration."""
    return BY_NAME[part].handed if part in BY_NAME else ()
