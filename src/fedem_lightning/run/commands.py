"""What all commands share: one line for a mistake; and the help of the main one."""

import argparse
import io
import os
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from fedem_lightning.errors import UserError
from fedem_lightning.settings.keys import CONFIG_DIR, choices

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
python -m fedem_lightning.evaluate clients.safetensors new.csv     scores of rows, calibration, confusion
python -m fedem_lightning.personalize runs/a new.csv --out clients.safetensors     models for new clients
python -m fedem_lightning.predict clients.safetensors new.csv --out p.csv          a prediction for every row
python -m fedem_lightning.export runs/a --all --format onnx     trained models as files for other programs
python -m fedem_lightning.data describe cifar10                 what a data set holds; also download"""

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


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises a `UserError` for wrong arguments."""

    def error(self, message: str) -> NoReturn:
        """Raises the error as one line, as for every mistake of the user."""
        raise UserError(f"{message}; {self.prog} --help explains")


@contextmanager
def one_line_for_mistakes() -> Iterator[None]:
    """Exits with one line: with code 2 for a user's mistake, with code 1 after Ctrl-C or an error nobody foresaw.

    A warning is one line, too. HYDRA_FULL_ERROR=1 shows the trace, as for a run.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # paths may have bytes that are no text
    before, warnings.formatwarning = warnings.formatwarning, lambda message, *_, **__: f"warning: {message}\n"
    try:
        yield
        sys.stdout.flush()  # on a full disk this fails, and Python's own exit would tell nobody
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        from fedem_lightning.run.failures import end  # loads Hydra

        end(error, full=os.environ.get("HYDRA_FULL_ERROR") == "1")
    finally:
        warnings.formatwarning = before


def usage() -> str:
    """The help text: usage, groups with their choices, examples, and the place of the documentation."""
    import yaml  # which other commands do not wait for

    entries = yaml.safe_load((CONFIG_DIR / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    defaults = {group: choice for entry in entries if isinstance(entry, dict) for group, choice in entry.items()}
    defaults["rates"] = "by dataset and backbone"
    offered, lines = choices(), []
    for group in sorted(offered, key=lambda g: (list(defaults).index(g) if g in defaults else len(defaults), g)):
        name = f"{group} [{defaults[group]}]" if group in defaults else f"+{group}"
        begin, rest = f"  {name:<25} ", " " * 28
        listed = ", ".join(offered[group])
        lines.append(textwrap.fill(listed, 118, initial_indent=begin, subsequent_indent=rest, break_on_hyphens=False))
    root = CONFIG_DIR.parent
    here = f"{root / 'README.md'}, {root / 'docs'}"
    where = here if (root / "docs").is_dir() else "README.md and docs/ of the repository"
    return _TEXT.format(groups="\n".join(lines), examples=textwrap.indent(_EXAMPLES, "  "), docs=where)
