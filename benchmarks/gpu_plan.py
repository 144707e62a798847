"""What `benchmarks/gpu.py` measures: three calls of at most ten minutes each, in order of worth.

    plan(CALLS[2], tiny=False)

are the measurements of the second call, in their order. The file has no command line.
"""

from collections.abc import Sequence
from typing import Any

Measurement = dict[str, Any]
"""Its "name", "part", "kind" (by which `gpu_worker.py` finds what measures it) and what the worker has to know."""

CALLS = {
    1: ("methods", "profile", "agreement"),
    2: ("jobs",),
    3: ("federations", "femnist", "synthetic", "memory"),
}
"""The parts of each call; those at the end are measured if time is left."""
MINUTES = 9.5
"""Of a call."""

PARTS = tuple(part for parts in CALLS.values() for part in parts)
WAYS = ("vmap", "loop", "sequential")
PRECISIONS = ("32-true", "bf16-mixed")
BLOCKS_GB = (8, 32)
"""`engine.memory_gb` of `vmap`, beside its own choice."""
JOBS = {
    "femnist": {"title": "FLUTE's FEMNIST job", "published": "FLUTE", "published_seconds": 502},
    "cifar10": {"title": "pfl's CIFAR-10 job"},
}
"""FLUTE's 8 min 22 s are those of arXiv 2203.13789 and its repository, with an evaluation every 50 rounds."""
JOB_ROUNDS = 1500
"""Of both jobs."""
TIMED = {"ours": 100, "pfl": 50, "plain": 30}
"""Rounds of a job that are timed."""
FEDERATIONS = (
    ("FedEM", "ReferenceCNN"),
    ("user-centric", "ReferenceCNN"),
    ("HypCluster", "ReferenceCNN"),
    ("FedEM", "MobileNetV2"),
    ("FedEM with LoRA", "ReferenceCNN"),
)

FULL: dict[str, dict[str, Any]] = {
    "methods": {"rounds": 3},
    "femnist": {"rounds": 5, "clients": 539, "samples": 130},
    "synthetic": {"rounds": 5, "clients": 300},
    "agreement": {"rounds": 3, "clients": 10, "samples": 130, "test_size": 500},
    "job femnist": {"clients": 3400, "samples": 130, "cohort": 10, "batch_size": 20},
    "job cifar10": {"clients": 1000, "samples": 50, "cohort": 50, "batch_size": 10},
    "federation": {"rounds": 3, "clients": 539, "samples": 144},
    "federation user-centric": {"clients": 100},  # with more than 100 the clients' models are on disk
    "federation MobileNetV2": {"rounds": 2, "clients": 80, "samples": 600},
}
TINY: dict[str, dict[str, Any]] = {
    "methods": {"rounds": 1},
    "femnist": {"rounds": 1, "clients": 2, "samples": 3},
    "synthetic": {"rounds": 1, "clients": 3},
    "agreement": {"rounds": 1, "clients": 2, "samples": 10, "test_size": 20},
    "job femnist": {"clients": 4, "samples": 5, "cohort": 2, "batch_size": 3, "rounds": 2},
    "job cifar10": {"clients": 4, "samples": 5, "cohort": 2, "batch_size": 3, "rounds": 2},
    "federation": {"rounds": 1, "clients": 3, "samples": 20},
    "federation user-centric": {},
    "federation MobileNetV2": {},
}


def plan(only: Sequence[str], tiny: bool, clients: int | None = None, rounds: int | None = None) -> list[Measurement]:
    """The measurements of these parts; `clients`: of FEMNIST's, None for 539; `rounds`: timed, None for 5."""
    sizes = {part: dict(size) for part, size in (TINY if tiny else FULL).items()}
    if clients is not None:
        sizes["femnist"]["clients"] = clients
    if rounds is not None:
        sizes["femnist"]["rounds"] = sizes["synthetic"]["rounds"] = rounds
    made = {
        "methods": _methods(sizes["methods"]) if "methods" in only else [],
        "jobs": [_job(job, way, sizes[f"job {job}"]) for job in JOBS for way in TIMED],
        "federations": [_federation(method, network, sizes, method == "FedEM") for method, network in FEDERATIONS],
        "femnist": _rounds("femnist", sizes["femnist"]),
        "synthetic": _rounds("synthetic", sizes["synthetic"]),
        "profile": [
            {**_round(work, "vmap", "32-true", sizes[work], "profile"), "kind": "profile", "name": f"profile, {work}"}
            for work in ("femnist", "synthetic")
        ],
        "agreement": [
            _agreement(work, precision, tf32, sizes["agreement"])
            for work in ("femnist", "synthetic")
            for precision, tf32 in (("64-true", True), ("32-true", True), ("32-true", False))
        ],
        "memory": [
            {**_round("femnist", "vmap", "32-true", sizes["femnist"], "memory"), "memory_gb": gb, "name": name}
            for gb in BLOCKS_GB
            for name in [f"femnist, vmap, 32-true, memory_gb={gb}"]
        ],
    }
    return [measurement for part in PARTS if part in only for measurement in made[part]]


def _methods(sizes: dict[str, int]) -> list[Measurement]:
    from gpu_methods import names  # it imports torch, which takes seconds

    return [
        {"name": f"method, {name}", "part": "methods", "kind": "method", "label": name, "row": row, **sizes}
        for row, name in enumerate(names())
    ]


def _job(job: str, way: str, sizes: dict[str, int]) -> Measurement:
    facts = {"name": f"{JOBS[job]['title']}, {way}", "part": "jobs", "kind": "job", "job": job, "way": way}
    return {**facts, "rounds": TIMED[way], **sizes}


def _federation(method: str, network: str, sizes: dict[str, dict[str, Any]], evaluated: bool) -> Measurement:
    name = f"federation, {method}, {network}"
    facts = {"name": name, "part": "federations", "kind": "federation", "method": method, "network": network}
    own = [sizes.get(f"federation {key}", {}) for key in (method, network)]
    return {**facts, "evaluations": 2 if evaluated else 0, **sizes["federation"], **own[0], **own[1]}


def _rounds(work: str, sizes: dict[str, int]) -> list[Measurement]:
    return [_round(work, way, precision, sizes, work) for precision in PRECISIONS for way in WAYS]


def _round(work: str, way: str, precision: str, sizes: dict[str, int], part: str) -> Measurement:
    facts = {"name": f"{work}, {way}, {precision}", "part": part, "kind": "rounds"}
    return {**facts, "work": work, "way": way, "precision": precision, **sizes}


def _agreement(work: str, precision: str, tf32: bool, sizes: dict[str, int]) -> Measurement:
    label = precision if tf32 else f"{precision} without TF32"
    facts = {"name": f"agreement, {work}, {label}", "part": "agreement", "kind": "agreement", "label": label}
    return {**facts, "work": work, "precision": precision, "tf32": tf32, **sizes}
