"""The tables of `benchmarks/gpu.py`, in Markdown."""

from statistics import median
from typing import Any

from gpu_plan import JOB_ROUNDS, JOBS

Row = dict[str, Any]
"""A measurement, its status and what it has found."""

TITLES = {"femnist": "FEMNIST's CNN", "synthetic": "the synthetic mixture"}
NAMES = {"sequential": "sequential PyTorch", "loop": "engine=loop", "vmap": "engine=vmap"}


def tables(rows: list[Row]) -> str:
    """Everything found so far."""
    sections = ["# One card"]
    environments = {_environment(row): None for row in rows if "environment" in row}  # each once, in order
    sections += list(environments)
    methods = [row for row in rows if row["kind"] == "method" and row["status"] in ("done", "failed")]
    if methods:
        sections.append(_methods(methods))
    for job in JOBS:
        begun = [row for row in rows if row["kind"] == "job" and row["job"] == job and row.get("seconds")]
        if begun:
            sections.append(_job(job, begun))
    federations = [row for row in rows if row["kind"] == "federation" and row.get("seconds")]
    if federations:
        sections.append(_federations(federations))
    for work in TITLES:
        timed = [row for row in rows if row["kind"] == "rounds" and row["work"] == work]
        if timed:
            sections.append(_speed(work, timed))
    profiled = [row for row in rows if row["kind"] == "profile" and row["status"] == "done"]
    if profiled:
        sections.append(_profile(profiled))
    agreeing = [row for row in rows if row["kind"] == "agreement" and row["status"] == "done"]
    if agreeing:
        sections.append(_agreement(agreeing))
    unfinished = [_unfinished(row) for row in rows if row["status"] != "done"]
    if unfinished:
        sections.append("Not finished:\n\n" + "\n".join(unfinished))
    return "\n\n".join(sections) + "\n"


def _table(columns: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    return "\n".join([head, *(f"| {' | '.join(line)} |" for line in lines)])


def _environment(row: Row) -> str:
    facts = {key: value for key, value in row["environment"].items() if key != "date"}
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def _unfinished(row: Row) -> str:
    why = row.get("reason") or (f"after {row['limit']:g} s at the latest" if "limit" in row else "no time was left")
    return f"- {row['name']}: {row['status']} ({why})"


# --- methods --------------------------------------------------------------------------------------------------------


def _methods(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if row["status"] == "failed":
            lines.append((row["label"], "FAIL", row["reason"].replace("|", "/"), ""))
            continue
        same = "yes" if row["same_bits"] else "no"
        lines.append((row["label"], "PASS" if row["passed"] else "FAIL", f"{row['difference']:.2g}", same))
    passed = sum(line[1] == "PASS" for line in lines)
    title = (
        f"Every method in float32 without TF32, {rows[0]['rounds']} rounds on the CPU and twice on the device: "
        f"{passed} of {len(lines)} pass (difference up to 1e-4, and the same bits twice)"
    )
    columns = ("method", "status", "largest difference, relative to the largest parameter", "same bits")
    return f"{title}\n\n{_table(columns, lines)}"


# --- jobs -----------------------------------------------------------------------------------------------------------

RUNNERS = {"ours": "fedem-lightning", "pfl": "pfl", "plain": "plain PyTorch"}


def _job(job: str, rows: list[Row]) -> str:
    lines = []
    for row in rows:
        engine = f", engine={row['engine']}" if "engine" in row else ""
        whole = f"{_seconds(row) * JOB_ROUNDS:.4g}, extrapolated from {_n_timed(row)}"
        lines.append((RUNNERS[row["way"]] + engine, _spread(row), whole, _peak(row.get("peak_gb"))))
    facts, size = JOBS[job], rows[0]
    if "published_seconds" in facts:
        published = f"{facts['published_seconds']}, with an evaluation every 50 rounds, on its authors' GPUs"
        lines.append((f"published: {facts['published']}", "", published, ""))
    images = "random images" if size["random_images"] else "the file's writers, again and again"
    title = (
        f"{facts['title']}: FedAvg, CNN (two convolutions, 128 units, dropout), {size['clients']:,} clients "
        f"({images}), {size['cohort']} a round, batch {size['batch_size']}, one local epoch; without evaluation"
    )
    columns = ("by", "seconds a round, median (min - max)", f"seconds of {JOB_ROUNDS:,} rounds", "peak memory, GB")
    return f"{title}\n\n{_table(columns, lines)}"


def _n_timed(row: Row) -> str:
    timed = len(row["seconds"]) - 1
    return f"{timed} rounds" if timed > 1 else "one round"


def _peak(gigabytes: float | None) -> str:
    return "" if gigabytes is None else f"{gigabytes:.2f}"


# --- federations ----------------------------------------------------------------------------------------------------


def _federations(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        evaluations = ", ".join(f"{seconds:.3g}" for seconds in row.get("evaluations", []))
        engine = row.get("engine", "")
        size = (f"{row['clients']:,}", f"{row['samples']:,}", engine, f"{row['start_seconds']:.3g}")
        lines.append((row["method"], row["network"], *size, _spread(row), _peak(row.get("peak_gb")), evaluations))
    columns = (
        *("method", "network", "clients", "training samples", "engine", "seconds before the first round"),
        *(
            "seconds a round, median (min - max)",
            "peak memory, GB",
            "seconds of an evaluation (first, second)",
        ),
    )
    return f"Federations in float32; all clients in every round; mixtures have M = 3\n\n{_table(columns, lines)}"


# --- rounds ---------------------------------------------------------------------------------------------------------


def _speed(work: str, rows: list[Row]) -> str:
    begun = [row for row in rows if row.get("seconds")]
    if not begun:
        return f"FedEM, {TITLES[work]}: no round is over"
    base = {row["precision"]: _seconds(row) for row in begun if row["way"] == "sequential"}
    lines = []
    for row in begun:
        own, slow = _seconds(row), base.get(row["precision"])
        lines.append(
            (
                _way(row),
                row["precision"],
                _spread(row),
                f"{slow / own:.2f}" if slow else "",
                _peak(row.get("peak_gb")),
            )
        )
    size = begun[0]
    title = (
        f"FedEM, {TITLES[work]}, {size['clients']} clients, {size['samples']} training samples, M = 3; up to "
        f"{size['rounds']} rounds after one that warms up"
    )
    columns = ("way", "precision", "seconds a round, median (min - max)", "times faster", "peak memory, GB")
    return f"{title}\n\n{_table(columns, lines)}"


def _way(row: Row) -> str:
    blocks = f", memory_gb={row['memory_gb']}" if "memory_gb" in row else ""
    other = f" (ran as {row['engine']}: {row['reason']})" if row.get("engine", row["way"]) != row["way"] else ""
    return NAMES[row["way"]] + blocks + other


def _seconds(row: Row) -> float:
    """Of a round; the first only if there is no other."""
    return float(median(row["seconds"][1:] or row["seconds"]))


def _spread(row: Row) -> str:
    first, *timed = row["seconds"]
    if not timed:
        return f"{first:.4g} (first round, the only one)"
    few = f", {len(timed)} rounds" if len(timed) < row["rounds"] else ""
    return f"{median(timed):.4g} ({min(timed):.4g} - {max(timed):.4g}{few})"


# --- profile --------------------------------------------------------------------------------------------------------


def _profile(rows: list[Row]) -> str:
    lines = [
        (
            TITLES[row["work"]],
            f"{row['seconds'][0]:.3g}",
            f"{row['busy_seconds']:.3g}",
            f"{row['kernels']:,}",
            f"{row['reads']:,}",
        )
        for row in rows
    ]
    columns = ("work", "seconds", "seconds of kernels", "kernels", "numbers that the CPU waits for")
    longest = [
        f"| {TITLES[row['work']]} | {name} | {count:,} | {seconds:.3g} |"
        for row in rows
        for name, count, seconds in row["top"]
    ]
    head = "| work | kernel | launches | seconds |\n|---|---|---|---|"
    table = _table(columns, lines)
    return f"One round of engine=vmap in float32 under the profiler\n\n{table}\n\n" + "\n".join([head, *longest])


# --- agreement ------------------------------------------------------------------------------------------------------


def _agreement(rows: list[Row]) -> str:
    lines = [
        (
            TITLES[row["work"]],
            row["label"],
            engine,
            f"{apart['weights']:.2g}",
            f"{row['largest_weight']:.2g}",
            f"{apart['client_accuracy']:.2g}",
            f"{apart['mean_accuracy'] - row['mean_accuracy_cpu']:+.2g}",
        )
        for row in rows
        for engine, apart in row["apart"].items()
    ]
    columns = (
        *("data", "precision", "engine", "largest difference of a weight", "largest weight"),
        *("largest difference of a client's accuracy", "difference of the mean accuracy"),
    )
    size = rows[0]
    title = f"The same {size['rounds']} rounds on the CPU (engine=loop) and on the device, {size['clients']} clients"
    return f"{title}\n\n{_table(columns, lines)}"
