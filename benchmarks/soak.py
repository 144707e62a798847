"""A long run through the command line's own code: its seconds a round, memory and open files, window by window.

    python benchmarks/soak.py [--rounds 2000] [--windows 8] [--clients 20] [--json FILE]

The exit code is 1 if the last window needs a tenth more memory or 4 open files more than the second, or half as much
time again for a round. The first window warms up.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hydra import compose, initialize_config_dir

from common import bare_parser, finish, print_header, print_row
from fedem_lightning.run import cli, execute  # noqa: F401  (cli registers the resolvers)
from fedem_lightning.settings.shipped import CONFIG_DIR


class Gauge(pl.Callback):
    """Reads memory and open files at the end of every window.

    Args:
        every: rounds of a window.

    """

    def __init__(self, every: int) -> None:
        self.every, self.rows = every, list[dict[str, float]]()
        self._start = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """A round has ended."""
        if (trainer.current_epoch + 1) % self.every:
            return
        now, folder = time.perf_counter(), Path(trainer.default_root_dir)
        self.rows.append(
            {
                "rounds": trainer.current_epoch + 1,
                "ms": 1000 * (now - self._start) / self.every,
                "megabytes": resident_bytes() / 1e6,
                "open files": len(os.listdir("/proc/self/fd")),
                "files": sum(path.is_file() for path in folder.rglob("*")),
            }
        )
        self._start = now


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(options: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Runs FedEM; the readings by window."""
    gauge = Gauge(options.rounds // options.windows)
    small = [f"dataset.n_clients={options.clients}", "dataset.dimension=10", "dataset.test_size=50"]
    words = [*small, f"trainer.max_epochs={options.rounds}", "trainer.enable_progress_bar=false", "backbone=mlp"]
    with initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        config = compose("config", words)
    made: Any = execute.build_callbacks
    execute.build_callbacks = lambda *given: [*made(*given), gauge]
    names = {"algorithm": "fedem", "adaptation": "none", "dataset": "synthetic", "backbone": "mlp"}
    execute.run(config, folder, names, words)
    return gauge.rows


def main() -> None:
    """Measures and prints."""
    parser = bare_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--clients", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = soak(options, Path(folder) / "run")
    columns = list(rows[0])
    print_header(f"FedEM, {options.clients} clients, {options.rounds} rounds", *columns)
    for row in rows:
        print_row(*(f"{row[name]:.4g}" for name in columns))
    finish(options, torch.device("cpu"), rows=rows)
    early, late = rows[min(1, len(rows) - 1)], rows[-1]
    grew = late["megabytes"] > 1.1 * early["megabytes"] or late["open files"] > early["open files"] + 4
    if grew or late["ms"] > 1.5 * early["ms"]:
        raise SystemExit("not flat: memory, open files or the time of a round has grown")


if __name__ == "__main__":
    main()
