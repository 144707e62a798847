"""What this machine can do at most, and the share of it that a round reaches.

    python benchmarks/roofs.py [--rounds 5] [--threads N] [--bf16] [--json FILE]

Roofs: a matrix product of 1024 x 1024, a convolution (5 x 5, 32 to 64 channels, 12 x 12 pixels, batch 128), a large
read and a large copy; with one thread and with N (default: torch's choice). Rounds: FedAvg with the public code's CNN
on random images, whose floating-point operations are counted on one local step and multiplied by the samples, beside
the matrix product; FedEM on the synthetic mixture, whose bytes are those of `traffic`, beside the read. Everything runs
in turn in one process. Then a profile of one round of each.
"""

import argparse
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from common import (
    Timing,
    Way,
    alternate,
    finish,
    images,
    make_trainer,
    mixture,
    n_samples,
    now,
    one_round,
    print_header,
    print_row,
    read_options,
    round_parser,
)
from fedem_lightning import ClientSGD, FedAvg, FedEM, FederatedAlgorithm, FederatedDataModule, Linear, ReferenceCNN

Rounds = dict[str, tuple[FederatedAlgorithm, FederatedDataModule]]

FEDAVG, FEDEM = "FedAvg, ReferenceCNN", "FedEM, synthetic mixture"
PRODUCT, READ = "matrix product, float32", "read"
ROWS = 12
"""Of a profile."""


def repeated(call: Callable[[], Any], device: torch.device, least: float = 0.2) -> Way:
    """Calls for at least `least` seconds; the seconds of one call."""

    def run() -> float:
        calls, start = 0, now(device)
        while True:
            call()
            calls += 1
            spent = now(device) - start  # waits for the device: a call has to be long beside that
            if spent >= least:
                return spent / calls

    return run


def kernels(options: argparse.Namespace) -> dict[str, tuple[Callable[[], Any], float]]:
    """What is measured: a call, and its floating-point operations or bytes in 10^9."""
    device, large = options.device, options.device.type == "cuda"
    n = 8192 if large else 1024  # a GPU needs more to be busy
    batch = 4096 if large else 128
    found: dict[str, tuple[Callable[[], Any], float]] = {}
    for dtype in (torch.float32, torch.bfloat16) if options.bf16 else (torch.float32,):
        name = str(dtype).removeprefix("torch.")
        a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
        x = torch.randn(batch, 32, 12, 12, device=device, dtype=dtype).to(memory_format=torch.channels_last)
        w = torch.randn(64, 32, 5, 5, device=device, dtype=dtype).to(memory_format=torch.channels_last)
        found[f"matrix product, {name}"] = (lambda a=a, b=b: a @ b), 2 * n**3 / 1e9
        flops = 2 * batch * 64 * 8 * 8 * 32 * 25 / 1e9  # 12 - 5 + 1 = 8 pixels out
        found[f"convolution, {name}"] = (lambda x=x, w=w: torch.conv2d(x, w)), flops
    source = torch.ones((options.megabytes * 10**6) // 4, device=device)
    target = torch.empty_like(source)
    found[READ] = source.sum, source.nbytes / 1e9
    found["copy"] = (lambda: target.copy_(source)), 2 * source.nbytes / 1e9
    return found


def make_rounds(options: argparse.Namespace) -> Rounds:
    """The two rounds, by name."""
    pictures = images(options.image_clients, 130)
    backbone = ReferenceCNN(pictures.n_outputs, pictures.in_shape)
    fedavg = FedAvg(backbone, pictures.n_clients, client_optimizer=ClientSGD(lr=0.01))
    mixed = mixture(options.clients)
    sgd = ClientSGD(lr=1.0, momentum=0.9)
    fedem = FedEM(Linear(mixed.in_shape, mixed.n_outputs), mixed.n_clients, 3, client_optimizer=sgd)
    return {FEDAVG: (fedavg, pictures), FEDEM: (fedem, mixed)}


def operations(model: FederatedAlgorithm, data: FederatedDataModule) -> float:
    """Floating-point operations of a FedAvg round in 10^9: of a local step's forward and backward pass, by sample."""
    block = data.federation.block(data.federation.clients()[:1], "train")
    rows = torch.arange(min(model.local.batch_size, len(block.index)))
    x, y = block.batch(rows, torch.tensor(0), torch.float32)
    with FlopCounterMode(display=False) as counter:
        data.federation.task.losses(model.components[0](x), y).mean().backward()
    model.zero_grad()
    return counter.get_total_flops() / len(rows) * n_samples(data) * model.local.epochs / 1e9


def traffic(model: FederatedAlgorithm, data: FederatedDataModule) -> float:
    """Bytes a FedEM round of linear models asks for, in 10^9; what a cache answers counts, too.

    Features (float32): read once in the E-step, read and written when a batch is gathered, read forward and backward;
    the components share each reading. Parameters and momentum of every component, at every local step: parameters read
    forward, gradients written and read, momentum read and written, parameters read and written.
    """
    federation = data.federation
    row = 4 * data.in_shape[0]
    steps = int((-(-federation.splits["train"].counts() // model.local.batch_size)).sum()) * model.local.epochs
    features = row * n_samples(data) * (1 + 4 * model.local.epochs)
    return (features + 7 * steps * len(model.components) * model.message_bytes) / 1e9


class ProfileRound(pl.Callback):
    """Profiles the round alone, without the Trainer's start."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
        self.profile = profile(activities=[ProfilerActivity.CPU, *on_gpu])

    def on_train_batch_start(self, *args: Any) -> None:
        """The round begins."""
        self.profile.start()

    def on_train_batch_end(self, *args: Any) -> None:
        """It ends."""
        self.profile.stop()


def print_profile(name: str, model: FederatedAlgorithm, data: FederatedDataModule, device: torch.device) -> list[Any]:
    """The operators that take most of a round, each without those it calls."""
    callback = ProfileRound(device)
    make_trainer(1, device, callbacks=[callback]).fit(model, data)
    key = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    events = sorted(callback.profile.key_averages(), key=lambda event: -getattr(event, key))
    total = sum(getattr(event, key) for event in events) or 1.0
    seconds = model.statistics.round_seconds[-1]
    print_header(
        f"Operators of one round of {name}, engine {model.local.engine.name}: they take {total / 1e6:.3g} s of its "
        f"{seconds:.3g} s under the profiler; Python has the rest",
        *("operator", "self time, % of the operators'", "calls"),
    )
    rows = [(event.key, 100 * getattr(event, key) / total, event.count) for event in events[:ROWS]]
    for operator, share, calls in rows:
        print_row(f"`{operator}`", f"{share:.1f}", calls)
    return rows


def with_threads(threads: int, way: Way) -> Way:
    """The same way with so many threads."""

    def run() -> float:
        torch.set_num_threads(threads)
        return way()

    return run


def print_roofs(timings: dict[str, Timing], work: dict[str, float], all_threads: list[int]) -> None:
    """What the machine does at most."""
    print_header("Roofs", "what", "threads", "unit", "median (min - max)")
    for name, amount in work.items():
        if name in (FEDAVG, FEDEM):
            continue
        for threads in all_threads:
            rates = Timing(seconds=[amount / s for s in timings[f"{name} x {threads}"].seconds])
            print_row(name, threads, "GB/s" if name in (READ, "copy") else "GFLOP/s", rates)


def print_shares(timings: dict[str, Timing], work: dict[str, float], all_threads: list[int]) -> list[dict[str, Any]]:
    """What share of its roof each round reaches; a roof is the best that was seen of it."""
    columns = ("round", "threads", "seconds, median (min - max)", "work", "a second", "roof", "share of the roof, %")
    print_header("Rounds", *columns)
    rows = []
    for name, roof, unit in ((FEDAVG, PRODUCT, "GFLOP"), (FEDEM, READ, "GB")):
        for threads in all_threads:
            timing = timings[f"{name} x {threads}"]
            best = work[roof] / min(timings[f"{roof} x {threads}"].seconds)
            reached = work[name] / timing.median
            share = 100 * reached / best
            amount = f"{work[name]:.4g} {unit}"
            print_row(name, threads, timing, amount, f"{reached:.4g}", f"{best:.4g} ({roof})", f"{share:.1f}")
            rows.append({"round": name, "threads": threads, "reached": reached, "roof": best, "share": share})
    return rows


def main() -> None:
    """Measures and prints."""
    parser = round_parser(__doc__)
    parser.add_argument("--bf16", action="store_true", help="also roofs of bfloat16")
    parser.add_argument("--clients", type=int, default=300, help="of the synthetic mixture")
    parser.add_argument("--image-clients", type=int, default=50)
    parser.add_argument("--megabytes", type=int, default=400, help="of the array that is read and copied")
    options = read_options(parser)
    most = torch.get_num_threads()
    all_threads = sorted({1, most}) if options.device.type == "cpu" else [most]
    measured, rounds = kernels(options), make_rounds(options)
    work = {name: amount for name, (_, amount) in measured.items()}
    work |= {FEDAVG: operations(*rounds[FEDAVG]), FEDEM: traffic(*rounds[FEDEM])}
    once = {name: repeated(call, options.device) for name, (call, _) in measured.items()}
    once |= {name: one_round(model, data, options.device) for name, (model, data) in rounds.items()}
    ways = {f"{name} x {n}": with_threads(n, way) for name, way in once.items() for n in all_threads}
    timings = alternate(ways, options.rounds)
    print_roofs(timings, work, all_threads)
    shares = print_shares(timings, work, all_threads)
    torch.set_num_threads(most)
    profiles = {name: print_profile(name, model, data, options.device) for name, (model, data) in rounds.items()}
    finish(options, options.device, work=work, timings=timings, shares=shares, profiles=profiles)


if __name__ == "__main__":
    main()
