"""Wrong run folders: what a run, a resumption and the commands for trained models find there."""

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from wrong_inputs.case import Case, meet
from wrong_inputs.settings import TINY
from wrong_inputs.special_files import FEW

RUN = (*TINY, "algorithm=fedem", "callbacks.checkpoint.every_n_rounds=1", "run_dir=out")


@functools.cache
def finished() -> Path:
    """The folder of a run of two rounds with two checkpoints, made once, before workers are forked."""
    place = Path(os.environ.setdefault("WRONG_INPUTS_RUN", f"/tmp/wrong-inputs-run-{os.getpid()}"))
    outcome = meet(Case("folders/first", (*RUN, "trainer.max_epochs=2")), place)
    assert outcome.code == 0, outcome.err
    return place / "work" / "out"


def cases() -> Iterator[Case]:
    """Every wrong folder."""
    run = finished()
    for name, spoil in _spoilt(run).items():
        for command, words in _COMMANDS.items():
            module = "fedem_lightning" if command.startswith("resume") else f"fedem_lightning.{command}"
            yield Case(
                f"folders/{command}/{name}", words, module, functools.partial(with_data, run, spoil), refused=False
            )
    for name, make in _places().items():
        yield Case(f"folders/new/{name}", RUN, prepare=make)
        yield Case(
            f"folders/new-auto/{name}", (*RUN, "ckpt_path=auto"), prepare=make, refused=name in ("file", "below-a-file")
        )
    for value in ("true", "3", "[a]", "{a: 1}", "missing.ckpt", ".", "''", "/dev/null", "1.5"):
        yield Case(f"folders/ckpt_path={value}", (*TINY, f"ckpt_path={value}"), says="ckpt_path")
    for value in ("[a]", "{a: 1}", "''", "/proc/nothing", "/dev/null/x", "a" * 300):
        yield Case(f"folders/run_dir={value[:20]}", (*TINY, f"run_dir={value}"), says="run_dir")
    for changed in (
        "seed=1",
        "algorithm=fedavg",
        "dataset.n_clients=5",
        "algorithm.n_components=2",
        "dataset.noise=2.0",
        "trainer.max_epochs=1",
        "algorithm.client_optimizer.lr=0.3",
        "backbone=mlp",
        "fidelity=reference",
    ):
        words = (*RUN, "trainer.max_epochs=2", "ckpt_path=auto", changed)
        yield Case(
            f"folders/another/{changed}",
            words,
            prepare=functools.partial(with_data, run, None),
            refused=not changed.startswith("trainer"),
        )
    yield Case("folders/again", RUN, prepare=functools.partial(with_data, run, None), says="run_dir")


_COMMANDS: dict[str, tuple[str, ...]] = {
    "resume": (*RUN, "trainer.max_epochs=3", "ckpt_path=auto"),
    "resume-same": (*RUN, "trainer.max_epochs=2", "ckpt_path=auto"),
    "resume-file": (*RUN, "trainer.max_epochs=3", "ckpt_path=out/checkpoints/round-000002.ckpt"),
    "evaluate": ("out", "data.npz"),
    "predict": ("out", "data.npz", "--out", "predicted.csv"),
    "personalize": ("out", "new.npz", "--out", "personal.safetensors"),
    "export": ("out", "--client", "0", "--format", "safetensors", "--out", "exported"),
    "report": ("out", "--out", "reported"),
}


def with_data(run: Path, spoil: Callable[[Path], object] | None, place: Path) -> None:
    """The folder "out" of a run, spoilt; rows of its clients in "data.npz", and of others in "new.npz"."""
    shutil.copytree(run, place / "out", symlinks=True)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 2
    np.savez(place / "data.npz", x=x, y=y, client=np.repeat([0, 1], 6))
    np.savez(place / "new.npz", x=x, y=y, client=np.repeat([100, 101], 6))
    if spoil is not None:
        spoil(place / "out")


def _spoilt(run: Path) -> dict[str, Callable[[Path], object]]:
    """What may have happened to a run's folder, file by file."""
    found: dict[str, Callable[[Path], object]] = {}
    names = [str(path.relative_to(run)) for path in sorted(run.rglob("*")) if path.is_file()]
    for name in names:
        if name.endswith(".png"):
            continue
        found |= {
            f"{name}-missing": functools.partial(_remove, name),
            f"{name}-empty": functools.partial(_rewrite, name, lambda content: b""),
            f"{name}-half": functools.partial(_rewrite, name, lambda content: content[: len(content) // 2]),
            f"{name}-random": functools.partial(_rewrite, name, lambda content: np.random.default_rng(2).bytes(2000)),
            f"{name}-folder": functools.partial(_instead, name, lambda path: path.mkdir()),
            f"{name}-dangling": functools.partial(_instead, name, lambda path: path.symlink_to("nowhere")),
        }
    for name in (*names, *_FURTHER):
        if not name.endswith(".png"):
            found |= {f"{name}-{kind}": functools.partial(_instead, name, make) for kind, make in FEW.items()}
    more: dict[str, Callable[[Path], object]] = {
        "all-checkpoints-missing": lambda out: shutil.rmtree(out / "checkpoints"),
        "checkpoints-a-file": functools.partial(_instead, "checkpoints", lambda path: path.write_text("")),
        "hydra-missing": lambda out: shutil.rmtree(out / ".hydra"),
        "hydra-a-file": functools.partial(_instead, ".hydra", lambda path: path.write_text("")),
        "empty": _emptied,
        "dangling-ckpt": lambda out: (out / "checkpoints" / "x.ckpt").symlink_to("nowhere"),
        "ckpt-folder": lambda out: (out / "checkpoints" / "round-000009.ckpt").mkdir(),
        "ckpt-text": lambda out: (out / "checkpoints" / "round-best.ckpt").write_text("") and None,
        "metrics-excel": functools.partial(_rewrite, "metrics.csv", _excel),
        "metrics-one-word": functools.partial(_rewrite, "metrics.csv", lambda c: b"hello"),
        "metrics-half-row": functools.partial(_rewrite, "metrics.csv", lambda content: content[:-8]),
        "config-list": functools.partial(_rewrite, ".hydra/config.yaml", lambda content: b"[1, 2]\n"),
        "config-anchors": functools.partial(_rewrite, ".hydra/config.yaml", _anchors),
        "config-env": functools.partial(_rewrite, ".hydra/config.yaml", lambda c: c + b"\nzz: ${oc.env:HOME}\n"),
        "config-tag": functools.partial(_rewrite, ".hydra/config.yaml", lambda c: c + _TAG),
    }
    return found | more


_FURTHER = (
    *(".hydra", "checkpoints", "checkpoints/other.ckpt", ".hydra/config.until-round-000001.yaml", "trackers.json"),
    *("coefficients.npz", "error.txt", ".fedem_lightning.lock", "mine.csv"),
)
"""Names of files and folders that a run's folder may have, too."""
_TAG = b"\nzz: !!python/object/apply:os.system ['touch touched']\n"


def _emptied(out: Path) -> None:
    shutil.rmtree(out)
    out.mkdir()


def _excel(content: bytes) -> bytes:
    return b"\xef\xbb\xbf" + content.replace(b",", b";").replace(b"\n", b"\r\n")


def _anchors(content: bytes) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    return content + "\n".join(["", *lines, ""]).encode()


def _remove(name: str, out: Path) -> None:
    (out / name).unlink()


def _rewrite(name: str, change: Callable[[bytes], bytes], out: Path) -> None:
    (out / name).write_bytes(change((out / name).read_bytes()))


def _instead(name: str, make: Callable[[Path], object], out: Path) -> None:
    path = out / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    make(path)


def _places() -> dict[str, Callable[[Path], None]]:
    """Where a new run is asked to begin."""

    def file(place: Path) -> None:
        (place / "out").write_text("mine")

    def users_figure(place: Path) -> None:
        (place / "out").mkdir()
        (place / "out" / "accuracy_by_round.png").write_text("mine")

    def users_metrics(place: Path) -> None:
        (place / "out").mkdir()
        (place / "out" / "metrics.csv").write_text("mine")

    def hydra_alone(place: Path) -> None:
        (place / "out" / ".hydra").mkdir(parents=True)
        (place / "out" / ".hydra" / "hydra.yaml").write_text("a: 1\n")

    def dangling(place: Path) -> None:
        (place / "out").symlink_to("/proc/no/such/place")

    return {
        "file": file,
        "users-figure": users_figure,
        "users-metrics": users_metrics,
        "hydra-alone": hydra_alone,
        "dangling": dangling,
    }
