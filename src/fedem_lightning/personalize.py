"""`python -m fedem_lightning.personalize RUN DATA --out FILE`: models for clients that did not train."""

import argparse
from pathlib import Path

from fedem_lightning.errors import require
from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.serving.options import add_data_options, check_folder, check_out, check_rows_file, check_run
from fedem_lightning.startup.process import loading

FEW_SHOT_FILES = ("few_shot.csv", "few_shot.png")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2."""
    with one_line_for_mistakes():
        chosen = _parser().parse_args(arguments)
        _check(chosen)
        with loading():
            from fedem_lightning.serving.personalizing import run_few_shot, run_personalize  # takes seconds
        if chosen.few_shot is not None:
            run_few_shot(chosen)
        else:
            run_personalize(chosen)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m fedem_lightning.personalize",
        description="Models for clients that did not train, from their samples. Training rows (all rows, if DATA has "
        "no split) give the models; test rows are scored.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a .ckpt file")
    parser.add_argument("data", type=Path, metavar="DATA", help="samples of the clients: .npz, .csv, .tsv or .parquet")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the clients' models, a .safetensors file")
    parser.add_argument("--force", action="store_true", help="write over earlier files")
    parser.add_argument(
        "--trust", action="append", default=[], metavar="PACKAGE", help="a package of yours that RUN's model needs"
    )
    add_data_options(parser)
    group = parser.add_argument_group("personalisation, where the method has these (fedem)")
    group.add_argument("--steps", type=int, metavar="N", help="E-steps and updates of the mixture weights")
    group.add_argument(
        "--tolerance", type=float, metavar="X", help="a client stops once its weights move by less than X"
    )
    group = parser.add_argument_group("few samples")
    group.add_argument(
        "--few-shot",
        metavar="K,...",
        help="scores after 0, 1, 2, ... training samples a client, or all: --few-shot 0,1,2,5,all; needs --out-dir",
    )
    group.add_argument("--out-dir", type=Path, metavar="DIR", help="where few_shot.csv and few_shot.png go")
    group.add_argument("--compare", type=Path, nargs="+", default=[], metavar="RUN", help="further runs, a line each")
    group.add_argument(
        "--test-fraction",
        type=float,
        metavar="X",
        help="without a split in DATA: share of a client's rows for the test",
    )
    group.add_argument("--seed", type=int, default=0, help="of the samples drawn (default: 0)")
    return parser


def _check(chosen: argparse.Namespace) -> None:
    check_run(chosen.run)
    check_rows_file(chosen.data)
    require(0 <= chosen.seed < 2**32, f"--seed: expected a whole number of at least 0, got {chosen.seed}")
    if chosen.few_shot is None:
        given = {"--out-dir": chosen.out_dir, "--compare": chosen.compare, "--test-fraction": chosen.test_fraction}
        wrong = [option for option, value in given.items() if value not in (None, [])]
        require(not wrong, f"{', '.join(wrong)}: only with --few-shot")
        require(chosen.out is not None, "--out: expected a .safetensors file for the models")
        check_out(chosen.out, (".safetensors",), chosen.force, (chosen.run, chosen.data))
        return
    require(chosen.out is None, "--out: not with --few-shot, which writes scores into --out-dir and no models")
    require(chosen.out_dir is not None, "--few-shot: expected --out-dir DIR as well")
    check_folder("--out-dir", chosen.out_dir, FEW_SHOT_FILES, chosen.force)


if __name__ == "__main__":
    main()
