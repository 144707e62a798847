"""How 193 states vote in the United Nations: the data as a federation, and the figure of what FedEM finds in it.

The votes are those of the R package unvotes 0.3.0 (CRAN; after Voeten, "Data and Analyses of Voting in the UN General
Assembly"), 1991 to 2019, as a table with the columns client (ISO code), item (roll call) and label (yes, abstain, no).
The features are embeddings of the resolutions' titles and descriptions by all-MiniLM-L6-v2, an array `emb`
[items, 384] in an .npz file. docs/reproduction/un_votes.md has the commands and the scores.

    python benchmarks/un_votes.py make VOTES.parquet EMBEDDINGS.npz un.npz
    python benchmarks/un_votes.py draw RUN un_votes.png

Do mixture weights change with the years? A state is four clients, two halves of its votes in each of two periods (the
table has a column year, too); the halves of a period say how far weights differ by chance.

    python benchmarks/un_votes.py make-years VOTES.parquet EMBEDDINGS.npz years.npz
    python benchmarks/un_votes.py drift RUN [RUN ...]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

VOTES = 200
"""Votes of each state, drawn at random."""
NAMED = (
    *("US", "GB", "FR", "DE", "IT", "ES", "PL", "NO", "JP", "KR", "AU", "CA", "NZ", "IL", "TR", "RU", "UA", "CN"),
    *("IN", "ID", "EG", "IR", "SA", "NG", "KE", "ZA", "BR", "AR", "MX", "CL", "CO", "PE", "CU", "UY", "KP", "FM"),
    *("CR", "FJ", "HN", "GT", "KI", "VU"),
)
"""States that the figure names, where there is room; the first ones first."""
PERIODS = (("1991-2000", 1991, 2000), ("2010-2019", 2010, 2019))
HALF = 100
"""Votes of a state in each half of a period."""
COLOURS = ("#c44601", "#2e8b57", "#0073b7")
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])


def make(votes: Path, embeddings: Path, out: Path) -> None:
    """Writes x float32 [n, 384], y and client."""
    write(pd.read_parquet(votes).groupby("client").sample(VOTES, random_state=0), embeddings, out)


def write(table: pd.DataFrame, embeddings: Path, out: Path) -> None:
    """Writes the votes of a table, with the embeddings of their texts."""
    with np.load(embeddings, allow_pickle=False) as file:
        x = file["emb"][table["item"]].astype(np.float32)
    np.savez(out, x=x, y=table["label"].to_numpy(str), client=table["client"].to_numpy(str))


def make_years(votes: Path, embeddings: Path, out: Path) -> None:
    """Writes x, y and client of the states that voted often enough in both periods; clients as "US 1991-2000 a"."""
    table = pd.read_parquet(votes)
    parts = {}
    for name, first, last in PERIODS:
        period = table[table["year"].between(first, last)]
        often = period.groupby("client").filter(lambda own: len(own) >= 2 * HALF)
        drawn = often.groupby("client").sample(2 * HALF, random_state=0)
        second = drawn.groupby("client").cumcount() >= HALF
        names = drawn["client"] + f" {name} " + second.map({False: "a", True: "b"})
        parts[name] = drawn.assign(state=drawn["client"], client=names)
    both = set.intersection(*(set(part["state"]) for part in parts.values()))
    write(pd.concat([part[part["state"].isin(both)] for part in parts.values()]), embeddings, out)


def drift(runs: list[Path]) -> None:
    """Prints how far mixture weights lie apart within a period and between periods, over states and runs."""
    found = []
    for run in runs:
        clients = pd.read_parquet(run / "clients.parquet")
        parts = clients["id"].str.rsplit(" ", n=2, expand=True)
        clients = clients.assign(state=parts[0], period=parts[1], half=parts[2])
        columns = [name for name in clients if name.startswith("pi_")]
        pi = clients.set_index(["period", "half", "state"])[columns].sort_index()
        (early, late), rows = (name for name, *_ in PERIODS), {}
        for name, one, other in (
            ("within", [(early, "a"), (late, "a")], [(early, "b"), (late, "b")]),
            ("between", [(early, "a"), (early, "b")], [(late, "a"), (late, "b")]),
        ):
            pairs = [(pi.loc[a] - pi.loc[b]).abs().sum(axis=1) / 2 for a, b in zip(one, other, strict=True)]
            rows[name] = sum(pairs) / len(pairs)  # total variation, a value for each state
        found.append(pd.DataFrame(rows))
    mean = sum(found) / len(found)
    more = mean["between"] - mean["within"]
    rng = np.random.default_rng(0)
    means = more.to_numpy()[rng.integers(len(more), size=(10_000, len(more)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    within, between = mean["within"].mean(), mean["between"].mean()
    print(f"{len(mean)} states, total variation of pi: {within:.3f} between halves of a period, ", end="")
    print(f"{between:.3f} between periods; difference {more.mean():.3f} ({low:.3f} to {high:.3f})")
    print("by run:", ", ".join(f"{each['between'].mean() - each['within'].mean():.3f}" for each in found))
    print("most:", ", ".join(f"{state} {value:.2f}" for state, value in more.nlargest(12).items()))


def draw(run: Path, out: Path) -> None:
    """Draws every state at its mixture weights, in the colour of its largest one."""
    clients = pd.read_parquet(run / "clients.parquet")
    pi = clients[["pi_0", "pi_1", "pi_2"]].to_numpy()  # [193, 3]
    points = pi @ CORNERS
    weight = dict(zip(clients["id"], pi, strict=True))
    figure, axes = plt.subplots(figsize=(6.4, 4.6), layout="constrained")
    axes.plot(*np.vstack([CORNERS, CORNERS[:1]]).T, color="#999999", linewidth=0.8)
    axes.scatter(*points.T, s=16, c=[COLOURS[m] for m in pi.argmax(axis=1)], alpha=0.7, linewidths=0)
    place, shown = dict(zip(clients["id"], points, strict=True)), [CORNERS[2] + [0.05, 0]]
    for name in NAMED:
        if all(np.abs((place[name] - other) / [0.06, 0.03]).max() > 1 for other in shown):  # else two names overlap
            axes.annotate(name, place[name], xytext=(4, 2), textcoords="offset points", fontsize=8)
            shown.append(place[name])
    for m, corner in enumerate(CORNERS):
        own = [name for name in NAMED if weight[name].argmax() == m]
        nearest = sorted(own, key=lambda name: -weight[name][m])[:7]
        below = m < 2
        axes.annotate(
            f"model {m + 1}: {int((pi.argmax(axis=1) == m).sum())} countries, nearest\n{', '.join(nearest)}",
            corner,
            xytext=(0, -30 if below else 8),
            textcoords="offset points",
            ha="center",
            color=COLOURS[m],
            fontsize=8.5,
        )
    axes.set_axis_off()
    axes.set_aspect("equal")
    figure.savefig(out, dpi=150)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, work, words, files in (
        ("make", make, "write the federation", ("votes", "embeddings", "out")),
        ("make-years", make_years, "write the federation of halves of periods", ("votes", "embeddings", "out")),
        ("draw", draw, "draw the mixture weights of a run", ("run", "out")),
    ):
        command = commands.add_parser(name, help=words)
        command.set_defaults(work=work)
        for file in files:
            command.add_argument(file, type=Path)
    apart = commands.add_parser("drift", help="print how far mixture weights moved between the periods")
    apart.set_defaults(work=drift)
    apart.add_argument("runs", nargs="+", type=Path)
    chosen = vars(parser.parse_args())
    chosen.pop("work")(**chosen)


if __name__ == "__main__":
    main()
