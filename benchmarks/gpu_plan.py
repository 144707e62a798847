"""What `benchmarks/gpu.py` measures, in order of worth."""

from typing import Any

Measurement = dict[str, Any]
"""Its "name", "part", "kind" ("rounds", "profile" or "agreement") and what the worker has to know."""

PARTS = ("femnist", "synthetic", "profile", "agreement", "memory")
WAYS = ("vmap", "loop", "sequential")
PRECISIONS = ("32-true", "bf16-mixed")
BLOCKS_GB = (8, 32)
"""`engine.memory_gb` of `vmap`, beside its own choice."""

FULL = {
    "femnist": {"rounds": 5, "clients": 539, "samples": 130},
    "synthetic": {"rounds": 5, "clients": 300},
    "agreement": {"rounds": 3, "clients": 10, "samples": 130, "test_size": 500},
}
TINY = {
    "femnist": {"rounds": 1, "clients": 2, "samples": 3},
    "synthetic": {"rounds": 1, "clients": 3},
    "agreement": {"rounds": 1, "clients": 2, "samples": 10, "test_size": 20},
}


def plan(only: list[str], tiny: bool, clients: int | None = None, rounds: int | None = None) -> list[Measurement]:
    """The measurements of these parts; `clients`: of FEMNIST's, None for 539; `rounds`: timed, None for 5."""
    sizes = {part: dict(size) for part, size in (TINY if tiny else FULL).items()}
    if clients is not None:
        sizes["femnist"]["clients"] = clients
    if rounds is not None:
        sizes["femnist"]["rounds"] = sizes["synthetic"]["rounds"] = rounds
    made = {
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


def _rounds(work: str, sizes: dict[str, int]) -> list[Measurement]:
    return [_round(work, way, precision, sizes, work) for precision in PRECISIONS for way in WAYS]


def _round(work: str, way: str, precision: str, sizes: dict[str, int], part: str) -> Measurement:
    facts = {"name": f"{work}, {way}, {precision}", "part": part, "kind": "rounds"}
    return {**facts, "work": work, "way": way, "precision": precision, **sizes}


def _agreement(work: str, precision: str, tf32: bool, sizes: dict[str, int]) -> Measurement:
    label = precision if tf32 else f"{precision} without TF32"
    facts = {"name": f"agreement, {work}, {label}", "part": "agreement", "kind": "agreement", "label": label}
    return {**facts, "work": work, "precision": precision, "tf32": tf32, **sizes}
