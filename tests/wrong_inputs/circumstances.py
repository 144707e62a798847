"""Odd circumstances: the environment, closed and full outputs, full disks, folders that are gone or read-only."""

import codecs
import functools
import os
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from wrong_inputs.case import MAIN, Case
from wrong_inputs.commands import GOOD
from wrong_inputs.folders import RUN, finished, with_data
from wrong_inputs.settings import TINY

READ_AT_THE_START: dict[str, dict[str, str | None]] = {
    "MPLBACKEND": {"MPLBACKEND": "nope"},
    "MPLCONFIGDIR": {"MPLCONFIGDIR": "/proc/nothing", "MPLBACKEND": ""},
    "HOME": {"HOME": "/dev/null", "XDG_CONFIG_HOME": None, "XDG_CACHE_HOME": None, "USER": None, "PATH": ""},
    "ascii": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    "numbers": {
        "OMP_NUM_THREADS": "abc",
        "MKL_NUM_THREADS": "0",
        "CUDA_VISIBLE_DEVICES": "7",
        "PYTHONWARNINGS": "nope",
    },
}
"""Environment variables (None: there is none) that Python or a package reads while it is imported."""
READ_LATER: dict[str, dict[str, str | None]] = {
    "TMPDIR": {"TMPDIR": "/nothing/here"},
    "no HOME": {"HOME": None},
    "WANDB_MODE": {"WANDB_MODE": "nonsense"},
    "COLUMNS=1": {"COLUMNS": "1"},
    "COLUMNS=0": {"COLUMNS": "0", "LINES": "-3"},
    "COLUMNS=abc": {"COLUMNS": "abc"},
    "TERM": {"TERM": "dumb", "NO_COLOR": "1", "FORCE_COLOR": "1"},
    "no TERM": {"TERM": None},
    "HYDRA_FULL_ERROR": {"HYDRA_FULL_ERROR": "abc"},
    "TZ": {"TZ": "Nowhere/Nothing"},
}

COMMANDS: dict[str, tuple[str, ...]] = {
    "": (*RUN, "run_dir=new"),
    "data": ("describe", "synthetic", *TINY[1:4], "--figure=drawn.png"),
    **GOOD,
}


def cases() -> Iterator[Case]:
    """Every odd circumstance."""
    prepare = functools.partial(with_data, finished(), None)
    case = functools.partial(Case, prepare=prepare, refused=False)
    words: tuple[str, ...]
    within: Callable[[], object]
    for command, words in COMMANDS.items():
        module = f"{MAIN}.{command}" if command else MAIN
        name = f"circumstances/{command or 'run'}"
        for flag in ("-OO",) if command else ("-O", "-OO"):  # without asserts; and without docstrings
            yield case(f"{name}/{flag}", words, module, within=_compile_once, flags=(flag,))
        yield case(f"{name}/-OO/--help", ("--help",), module, within=_compile_once, flags=("-OO",))
        for label, values in (READ_AT_THE_START | READ_LATER).items():
            flags = () if label in READ_AT_THE_START else None
            yield case(f"{name}/{label}", words, module, within=functools.partial(_set, values), flags=flags)
        for label, within in _OUTPUTS.items():
            heard = "stderr" not in label and "both" not in label
            yield case(f"{name}/{label}", words, module, within=within, heard=heard, leaves=True)
            yield case(f"{name}/{label}/--nope", ("--nope",), module, within=within, heard=heard)
            yield case(f"{name}/{label}/--help", ("--help",), module, within=within, heard=heard)
        for label, within in _PLACES.items():
            yield case(f"{name}/{label}", words, module, within=within, flags=() if "working" in label else None)
        for size in (0, 4096):
            within = functools.partial(_limit_files, size)
            yield case(f"{name}/files of {size} bytes", words, module, within=within, leaves=True)
    yield from _full(case)


def _full(case: Callable[..., Case]) -> Iterator[Case]:
    """Where nothing more can be written: an earlier file stays as it was."""
    words: tuple[str, ...]
    within: Callable[[], object]
    for size in (0, 100, 4096):
        within = functools.partial(_limit_files, size)
        for kind in ("torch", "onnx", "safetensors"):
            for out in ("exported", f"one.{dict(torch='pt2').get(kind, kind)}"):
                words = ("out", "--client", "0", "--format", kind, "--out", out)
                yield case(f"circumstances/export/{kind} {out[:3]} {size}", words, f"{MAIN}.export", within=within)
        for out in ("p.csv", "p.parquet"):
            words = ("out", "data.npz", "--out", out, "--force")
            yield case(f"circumstances/predict/{out} {size}", words, f"{MAIN}.predict", within=within)
        words = ("out", "new.npz", "--few-shot", "0,1,2", "--out", "shot.csv")
        yield case(
            f"circumstances/personalize/few shot {size}", words, f"{MAIN}.personalize", within=within, leaves=True
        )
        words = ("convert", "femnist", "data.npz", "made.npz")
        yield case(f"circumstances/data/convert {size}", words, f"{MAIN}.data", within=within)
        words = (*RUN, "trainer.max_epochs=3", "ckpt_path=auto")
        yield case(f"circumstances/run/resume {size}", words, within=within, leaves=True)
        yield case(f"circumstances/run/cfg {size}", ("--cfg", "job"), within=within)
    for words in (("--help",), ("--version",), ("--cfg", "job"), ("--info", "all"), ("--hydra-help",)):
        for label, within in _OUTPUTS.items():
            yield case(f"circumstances/run/{label}/{words[0]}", words, within=within, heard="out" in label)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _compile_once() -> None:
    """Packages compiled without asserts are kept for the next case: it takes a minute."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / "wrong-inputs-compiled")


def _limit_files(size: int) -> None:
    """No file can grow beyond this size: as on a full disk, for every writer alike."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _open_as(path: str, *numbers: int) -> None:
    file = os.open(path, os.O_WRONLY)
    for number in numbers:
        os.dup2(file, number)


def _nobody_reads(number: int) -> None:
    read, write = os.pipe()
    os.dup2(write, number)
    os.close(write)
    os.close(read)


_OUTPUTS: dict[str, Callable[[], object]] = {
    "stdout closed": functools.partial(os.close, 1),
    "stderr closed": functools.partial(os.close, 2),
    "stdin closed": functools.partial(os.close, 0),
    "both closed": functools.partial(os.closerange, 0, 3),
    "stdout full": functools.partial(_open_as, "/dev/full", 1),
    "stderr full": functools.partial(_open_as, "/dev/full", 2),
    "both full": functools.partial(_open_as, "/dev/full", 1, 2),
    "stdout unread": functools.partial(_nobody_reads, 1),
    "stderr unread": functools.partial(_nobody_reads, 2),
}


def _become_nobody() -> None:
    """Root may write anywhere."""
    list(
        map(codecs.lookup, ("unicode-escape", "raw-unicode-escape"))
    )  # files of a virtual environment may be root's alone
    os.chmod(".", 0o555)
    if os.getuid() == 0:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def _no_working_directory() -> None:
    place = Path.cwd() / "gone"
    place.mkdir()
    os.chdir(place)
    place.rmdir()


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))


_PLACES: dict[str, Callable[[], object]] = {
    "read-only folder": _become_nobody,
    "no working directory": _no_working_directory,
    "few open files": _few_files,
}
