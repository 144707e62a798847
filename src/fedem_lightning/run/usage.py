"""The text of `python -m fedem_lightning --help`."""

import textwrap
from pathlib import Path

from omegaconf import OmegaConf

from fedem_lightning.settings.shipped import choices

_EXAMPLES = """\
python -m fedem_lightning                                       FedEM on the synthetic mixture
python -m fedem_lightning algorithm=fedavg dataset=digits backbone=mlp trainer.max_epochs=50
python -m fedem_lightning algorithm=fedem adaptation=finetune   tune every client's models before they are scored
python -m fedem_lightning -m algorithm=fedem,fedavg,local seed=0,1,2       a sweep: nine runs
python -m fedem_lightning +experiment=femnist                   the data and settings of a paper
python -m fedem_lightning algorithm=fedem --cfg job             the whole configuration, and no run
python -m fedem_lightning dataset=npz dataset.path=mine.npz     your own data
python -m fedem_lightning dataset=table dataset.path=mine.csv dataset.label=y dataset.client=hospital     a table
python -m fedem_lightning +trainer.benchmark=true               an option of Lightning's Trainer that is not listed
python -m fedem_lightning run_dir=runs/a                        choose the run's folder
python -m fedem_lightning run_dir=runs/a ckpt_path=auto         continue it after Ctrl-C or a crash
python -m fedem_lightning.report runs                           runs side by side, and beside the papers' numbers
python -m fedem_lightning.evaluate runs/a                       the run's scores again, calibration, confusion
python -m fedem_lightning.personalize runs/a new.csv --out clients.safetensors     models for new clients
python -m fedem_lightning.predict clients.safetensors new.csv --out p.csv          a prediction for every row
python -m fedem_lightning.export runs/a --all --format onnx     trained models as files for other programs
python -m fedem_lightning.data list                             known data sets; also download, convert, describe"""

_TEXT = """\
Personalised federated learning in simulation: FedEM and the methods it is compared with.

usage: python -m fedem_lightning [-m] [GROUP=CHOICE ...] [KEY=VALUE ...] [+KEY=VALUE ...] [~KEY ...]

  GROUP=CHOICE  takes another part, e.g. algorithm=fedavg
  KEY=VALUE     sets a key of the configuration, e.g. trainer.max_epochs=50
  +KEY=VALUE    adds a key that the configuration does not list; +GROUP=CHOICE a group without a default
  ~KEY          removes a key
  -m            runs every combination of values that are separated by commas

Groups, with their defaults in brackets:

{groups}

Examples:

{examples}

Other options:

  --cfg job          prints the configuration instead of running it
  --config-dir DIR   finds more choices in DIR, e.g. your own DIR/algorithm/mine.yaml
  --version          prints the version
  --hydra-help       explains the options of Hydra, which composes the configuration
  -sc install=bash   completes in your shell: eval "$(fedem-lightning -sc install=bash)"; also zsh, fish

Exit codes: 0 done, 2 what you gave is wrong (one line says what), 1 anything else.
Documentation: {docs}"""


def usage(config_dir: Path) -> str:
    """The help text: usage, groups with their choices in `config_dir`, examples, and the place of the documentation."""
    entries = OmegaConf.select(OmegaConf.load(config_dir / "config.yaml"), "defaults")
    defaults = {group: choice for entry in entries if not isinstance(entry, str) for group, choice in entry.items()}
    docs = config_dir.parent / "docs"
    here = f"{config_dir.parent / 'README.md'}, {docs}"
    where = here if docs.is_dir() else "README.md and docs/ of the repository"
    return _TEXT.format(groups=_groups(config_dir, defaults), examples=textwrap.indent(_EXAMPLES, "  "), docs=where)


def _groups(config_dir: Path, defaults: dict[str, str]) -> str:
    offered = choices(config_dir)
    lines = []
    for group in sorted(offered, key=lambda g: (list(defaults).index(g) if g in defaults else len(defaults), g)):
        name = f"{group} [{defaults[group]}]" if group in defaults else f"+{group}"
        lines.append(
            textwrap.fill(
                ", ".join(offered[group]),
                width=118,
                initial_indent=f"  {name:<25} ",
                subsequent_indent=" " * 28,
                break_on_hyphens=False,
            )
        )
    return "\n".join(lines)
