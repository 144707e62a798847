"""The command `compare`: its options."""

import argparse
import sys
from pathlib import Path

from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.settings.errors import Interrupted, require
from fedem_lightning.settings.startup import loading


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2."""
    with one_line_for_mistakes():
        chosen, more = parser().parse_known_args(arguments)
        options = [argument for argument in more if argument.startswith("-")]
        require(not options, f"unknown option {', '.join(options)}; --help lists them")
        words = [*chosen.words, *more]
        data = words.pop(0) if words and _is_path(words[0]) else None
        require(bool(words) or data is not None, "DATA: expected a file, a folder, or words such as +experiment=digits")
        if data is not None and any(word.startswith("dataset=") for word in words):
            require(False, f"DATA: {data} and dataset=... both name data; give one")
        _check(chosen, data, words)
        print("loading PyTorch and Lightning ...", flush=True)
        with loading():
            from fedem_lightning.comparison.comparing import compare  # slow

        columns = {"label": chosen.label, "client": chosen.client}
        budget = {"minutes": chosen.minutes, "trials": chosen.trials, "seeds": chosen.seeds}
        try:
            compare(data, **columns, **budget, methods=chosen.methods, out=chosen.out, overrides=words)
        except Interrupted:
            print("stopped; the same command goes on", file=sys.stderr)
            sys.exit(1)


def _check(chosen: argparse.Namespace, data: str | None, words: list[str]) -> None:
    """UserError for what is wrong, as far as can be seen before PyTorch is loaded."""
    from fedem_lightning.comparison.inputs import words_of
    from fedem_lightning.comparison.trials import candidates
    from fedem_lightning.run.command_line import composed
    from fedem_lightning.run.gate import check_configuration, keys_typed

    candidates(chosen.methods, linear=True)
    config = composed([*words_of(data, chosen.label, chosen.client), *words, "algorithm=fedavg"])
    check_configuration(config, keys_typed(words))


def _is_path(word: str) -> bool:
    return Path(word).expanduser().exists() or "=" not in word


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    options = Parser(
        prog="python -m fedem_lightning.compare",
        description="Whether each client should have a model of its own, and which method gives the best ones.",
        epilog="The same command goes on where it was stopped.",
    )
    data = "a .csv, .parquet or .npz, a folder of images, a data set on disk, or PFLlib's folder"
    more = "further words as for training: backbone=mlp, +experiment=digits"
    options.add_argument("words", nargs="*", metavar="DATA", help=f"{data}; {more}")
    options.add_argument("--label", metavar="COLUMN", help="the label's column, of a table or a data set on disk")
    options.add_argument("--client", metavar="COLUMN", help="the client's column")
    options.add_argument("--methods", nargs="+", default=[], metavar="NAME", help="in place of the default ones")
    options.add_argument("--minutes", type=float, help="how long the runs may take (default: 8 trials of each method)")
    options.add_argument("--trials", type=int, default=8, help="of each method, without --minutes (default: 8)")
    options.add_argument("--seeds", type=int, default=5, help="of split and training (default: 5)")
    options.add_argument("--out", type=Path, default=Path("comparison"), metavar="DIR", help="default: comparison")
    return options
