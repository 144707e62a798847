"""`python -m fedem_lightning.export RUN --client NAME|--all --format FORMAT`: trained models for other programs.

The exported files need neither this package nor Lightning. RUN is a run's folder, a .ckpt file, a .safetensors file of
clients' models, or the folder of a client of its own.
"""

import argparse
from pathlib import Path

from fedem_lightning.errors import require
from fedem_lightning.run.commands import Parser, one_line_for_mistakes
from fedem_lightning.startup.process import loading


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; a user's mistake ends it with one line and exit code 2.

    Args:
        arguments: arguments of the command; None: those of the process.

    """
    with one_line_for_mistakes():
        chosen = _parser().parse_args(arguments)
        require(bool(chosen.push_to_hub) or not chosen.private, "--private: only with --push-to-hub")
        with loading():
            from fedem_lightning.serving.exporting import export  # takes seconds, which --help should not
        export(chosen)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m fedem_lightning.export",
        description="Trained models as files for other programs, which need neither this package nor Lightning.",
    )
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="a run's folder, a .ckpt file, a .safetensors file of clients' models, or a client's folder",
    )
    whom = parser.add_mutually_exclusive_group(required=True)
    whom.add_argument("--client", metavar="NAME", help="the model of this client")
    whom.add_argument("--all", action="store_true", help="the models of all clients that trained")
    parser.add_argument(
        "--format",
        required=True,
        choices=("safetensors", "onnx", "torch"),
        help="safetensors: the weights, in one file; onnx: a .onnx file for each client; torch: a .pt2 file of "
        "torch.export for each client",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("exported"),
        metavar="PATH",
        help="a folder, or a single file with the format's ending (default: the folder exported)",
    )
    parser.add_argument("--force", action="store_true", help="write over an earlier export")
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="a package of yours whose classes RUN may name; can be given several times",
    )
    parser.add_argument(
        "--push-to-hub", metavar="NAME/REPO", help="also make this repository on the Hugging Face Hub, and upload"
    )
    parser.add_argument("--private", action="store_true", help="with --push-to-hub: the repository is private")
    return parser


if __name__ == "__main__":
    main()
