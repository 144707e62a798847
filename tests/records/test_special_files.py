"""Readers of files that may come from elsewhere wait for nothing: FIFOs, sockets and devices are no files."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedem_lightning import UserError
from fedem_lightning.callbacks.mixture_weights import _read as read_mixture_weights
from fedem_lightning.data.formats.leaf import read_hub_images, read_hub_text, read_leaf_images, read_leaf_text
from fedem_lightning.data.formats.npz import read_npz
from fedem_lightning.data.formats.plays import read_plays
from fedem_lightning.data.formats.table import read_table
from fedem_lightning.data.formats.torchvision import read_torchvision
from fedem_lightning.data.own_files import load_client
from fedem_lightning.data.sources import read_arrays
from fedem_lightning.network.networks import DeviceNetwork
from fedem_lightning.records.configs import read_yaml
from fedem_lightning.records.files import regular
from fedem_lightning.report.collect import find_runs, read_run
from fedem_lightning.report.finished_run import Run
from fedem_lightning.run.metrics_file import RoundCSVLogger
from fedem_lightning.run.resuming import continued, find_checkpoint, newest_checkpoint, read_own_config
from fedem_lightning.run.run_folder import LOCK, check_kinds, finished_results, only_run_in
from fedem_lightning.run.trackers import _ids
from fedem_lightning.serving.export_places import _earlier as earlier_exports
from fedem_lightning.serving.export_places import _results, _settings
from fedem_lightning.serving.model_files import load, load_clients
from fedem_lightning.serving.options import check_rows_file
from fedem_lightning.serving.retest import _config as config_of
from helpers.commands import CONFIG_DIR
from helpers.runs import make_run
from wrong_inputs.special_files import SPECIAL

Reader = Callable[[Path], Any]
RUN, DATA = "run", "data"
CONFIG, ROUND = ".hydra/config.yaml", "checkpoints/round-000004.ckpt"


def finished(folder: Path) -> Any:
    class Planned:
        class trainer:
            max_epochs = 4

    return finished_results(folder, Planned)  # type: ignore[arg-type]


def locked(folder: Path) -> None:
    with only_run_in(folder):
        pass


OF_A_RUN: dict[str, tuple[str, Reader]] = {  # the file that is something else, and who reads the folder
    "config": (CONFIG, read_own_config),
    "parts": (CONFIG, config_of),
    "tree": (CONFIG, lambda folder: read_yaml(folder / CONFIG)),
    "card-settings": (CONFIG, _settings),
    "report-config": (CONFIG, read_run),
    "continued": (".hydra/config.until-round-000002.yaml", continued),
    "results": ("results.json", read_run),
    "report": ("results.json", lambda folder: find_runs([folder])),
    "finished": ("results.json", finished),
    "card-results": ("results.json", lambda folder: _results(folder, 4)),
    "metrics": ("metrics.csv", lambda folder: Run(folder, {}, {}).metrics),
    "rows": ("metrics.csv", lambda folder: RoundCSVLogger(folder / "metrics.csv").begin(2)),
    "clients": ("clients.parquet", lambda folder: Run(folder, {}, {}).clients),
    "samples": ("test_samples.npz", lambda folder: read_run(folder).samples),
    "arrays": ("coefficients.npz", lambda folder: Run(folder, {}, {}).arrays("coefficients")),
    "mixture-weights": ("mixture_weights.npz", lambda folder: read_mixture_weights(folder / "mixture_weights.npz")),
    "trackers": ("trackers.json", _ids),
    "newest": (ROUND, newest_checkpoint),
    "resume": (ROUND, lambda folder: find_checkpoint("auto", folder)),
    "ckpt-path": (ROUND, lambda folder: find_checkpoint(str(folder / ROUND), folder)),
    "load": (ROUND, load),
    "load-file": (ROUND, lambda folder: load(folder / ROUND)),
    "load-clients": ("m.safetensors", lambda folder: load_clients(folder / "m.safetensors")),
    "earlier-exports": ("index.json", earlier_exports),
    "lock": (LOCK, locked),
    "kinds": (ROUND, check_kinds),
}
OF_DATA: dict[str, tuple[str, Reader]] = {
    "npz": ("d.npz", lambda path: read_npz(path, ("x",))),
    "mapped": ("d.npz", lambda path: read_npz(path, ("x",), mmap=True)),
    "one-client": ("d.npz", load_client),
    "csv": ("d.csv", read_table),
    "tsv": ("d.tsv", read_table),
    "parquet": ("d.parquet", read_table),
    "leaf-images": ("d.json", read_leaf_images),
    "leaf-text": ("d.json", read_leaf_text),
    "leaf-folder": ("d.json", lambda path: read_leaf_images(path.parent)),
    "hub-images": ("d.parquet", read_hub_images),
    "hub-text": ("d.csv", read_hub_text),
    "hub-folder": ("d.parquet", lambda path: read_hub_images(path.parent)),
    "plays": ("d.txt", read_plays),
    "plays-folder": ("d.txt", lambda path: read_plays(path.parent)),
    "source": ("d.json", lambda path: read_arrays("femnist", path)),
    "source-folder": ("d.txt", lambda path: read_arrays("shakespeare", path.parent)),
    "idx": ("MNIST/raw/train-images-idx3-ubyte", lambda path: read_torchvision("mnist", path.parents[2])),
    "cifar": ("cifar-10-batches-py/data_batch_1", lambda path: read_torchvision("cifar10", path.parents[1])),
    "devices": ("d.csv", DeviceNetwork),
    "checked": ("d.csv", check_rows_file),
}
CASES = [
    *((RUN, name, kind) for name in OF_A_RUN for kind in SPECIAL),
    *((DATA, name, kind) for name in OF_DATA for kind in SPECIAL),
]


class StillWaitingError(BaseException):
    """No `Exception`, which a reader might take for a damaged file."""


@contextmanager
def within_seconds(seconds: float) -> Iterator[None]:
    """Ends the test if something in it waits."""

    def stop(*_: object) -> None:
        raise StillWaitingError(f"after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def line_of(reader: Reader, path: Path) -> str:
    """The line with which a reader refuses; empty: it found nothing to read."""
    try:
        reader(path)
    except UserError as error:
        return str(error)
    return ""


def meet(place: Path, room: str, name: str, kind: str) -> None:
    """Puts the special file in its place, and reads."""
    file, reader = (OF_A_RUN if room == RUN else OF_DATA)[name]
    folder = place / f"{name}-{kind}"
    if room == RUN:
        shutil.copytree(place / "whole", folder)
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    SPECIAL[kind](path)
    with within_seconds(5):
        said = line_of(reader, folder if room == RUN else path)
    assert len(said.splitlines()) <= 1
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a run's folder, `whole`."""
    place = tmp_path_factory.mktemp("special")
    run = make_run(place / "whole")
    shutil.copy(CONFIG_DIR / "settings.yaml", run / ".hydra" / "config.until-round-000002.yaml")
    (run / "checkpoints").mkdir()
    (run / ROUND).write_bytes(b"")
    (run / "trackers.json").write_text(json.dumps({"wandb": "x"}))
    np.savez(run / "coefficients.npz", a=np.zeros(3))
    return place


@pytest.mark.parametrize("kind", ["fifo", "dev-zero"])
@pytest.mark.parametrize("room", [RUN, DATA])
def test_readers_do_not_wait(room: str, kind: str, place: Path) -> None:
    for name in OF_A_RUN if room == RUN else OF_DATA:
        meet(place, room, name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("room", [RUN, DATA])
def test_no_reader_waits_for_anything(room: str, kind: str, place: Path) -> None:
    assert len(CASES) > 700
    for name in OF_A_RUN if room == RUN else OF_DATA:
        meet(place, room, name, kind)


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_regular_files_with_content_are_read(kind: str, tmp_path: Path) -> None:
    SPECIAL[kind](tmp_path / "file")
    with pytest.raises(OSError, match=r"no regular file|empty|No such|Too many"):
        regular(tmp_path / "file")


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert regular(tmp_path / "link").read_text() == "x"


@pytest.mark.parametrize("name", ["results.json", "metrics.csv", "a.npz", "a.png", CONFIG, ROUND, "trackers.json"])
def test_a_run_does_not_go_on_beside_special_files(name: str, place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(place / "whole", folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(UserError, match=r"^run_dir: .* is no regular file, but a run writes a file of that name"):
        check_kinds(folder)
