"""The summary table at the end of a run."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fedem_lightning.settings.errors import one_line
from fedem_lightning.settings.keys import implied_adaptation, method_title
from fedem_lightning.settings.measures import SPLITS, headline, in_words, title_of_sum

_TRUTH = {
    "pi_cosine_distance": "mixture weights' cosine distance {:.2g}",
    "theta_cosine_distance": "components' cosine distance {:.2g}",
    "group_accuracy": "clients in their true group {:.1%}",
}
"""What is said of `recovery`."""


def print_summary(results: dict[str, Any], console: Console | None = None, method: str | None = None) -> None:
    """Prints scores by split and population, the best possible score if known, seconds, and transmitted bytes."""
    adapted = results.get("adaptation") or "none"
    implied = adapted in ("none", implied_adaptation(results["algorithm"]))
    name = results["algorithm"] + ("" if implied else f"+{adapted}")
    where = "{dataset} ({backbone}), {rounds} rounds, seed {seed}".format(**results)
    table = Table(title=f"{one_line(method_title(name, method))} on {where}")
    measure, factor, unit = headline(results["train"])
    table.add_column(unit)
    sums = ("weighted", "pooled", "mean", "bottom_decile", "worst")
    for name in sums:
        table.add_column(title_of_sum(name), justify="right")
    n_clients, n_scored = results["n_clients"], results["n_scored_clients"]
    clients = f"{n_clients} clients" if n_scored == n_clients else f"{n_scored} of {n_clients} clients"
    rows = {f"{split}, {clients}": results[split] for split in SPLITS}
    if (results.get("honest") or {}).get("test"):
        rows[f"test, {results['honest']['n_clients']} honest clients"] = results["honest"]["test"]
    if results["unseen"]:
        rows[f"test, {results['n_scored_unseen_clients']} unseen clients"] = results["unseen"]["test"]
    for label, scores in rows.items():
        if scores:
            table.add_row(label, *(_number(scores[measure][name], factor) for name in sums))
    reference = results["reference"]
    if "bayes_accuracy" in reference:
        keys = ("bayes_accuracy" if name == "weighted" else f"bayes_accuracy_{name}" for name in sums)
        table.add_row("Bayes ceiling, test", *(_number(reference[key], factor) for key in keys))
    console = console or Console(markup=False, emoji=False, force_jupyter=False)
    console.print(table)
    for line in _lines(results):
        console.print(line, highlight=False, markup=False, emoji=False)


def _lines(results: dict[str, Any]) -> Iterator[str]:
    """What stands below the table."""
    notes, seconds, sent = results.get("data") or {}, results["seconds"], results["communication"]
    message = {"features": "", "targets": "", "task": "dataset.task: ", "missing_labels": "missing labels: "}
    yield from (f"{before}{notes[key]}" for key, before in message.items() if notes.get(key))
    yield from not_finite_lines(results)
    if everywhere := results.get("global"):
        measure, factor, unit = headline(everywhere)
        mean, median, worst = (_number(everywhere[measure][name], factor) for name in ("mean", "median", "worst"))
        yield f"{unit} of the clients' models on all clients' samples: mean {mean}, median {median}, worst {worst}"
    if (classes := results.get("class_scores")) and classes["imbalanced"]:
        base, worse = f"{100 * classes['majority_accuracy']['pooled']:.1f} %", f"{classes['worse_than_majority']:.0%}"
        majority = f"a client's majority class is right for {base} of the test samples"
        yield f"imbalanced classes: {majority}; {worse} of the clients' models are worse than that"
    if (minimum := results["reference"].get("minimum_loss")) is not None:
        loss = results["test"]["loss"]["weighted"]
        yield f"test loss {loss:.3f} nats, weighted; the least that a client's model could reach: {minimum:.3f}"
    if truth := [text.format(results["recovery"][key]) for key, text in _TRUTH.items() if key in results["recovery"]]:
        yield f"compared with the truth: {', '.join(truth)}"
    yield from _component_lines(results.get("components", {}))
    per_round = "no round" if seconds["per_round"] is None else f"{seconds['per_round']:.3g} s a round"
    engine = results["engine"]["name"]
    yield f"training {seconds['training']:.1f} s ({per_round}, engine {engine}), total {seconds['total']:.1f} s"
    yield f"sent {decimal(round(sent['up_bytes']))} up, {decimal(round(sent['down_bytes']))} down"
    if times := [f"{time:.4g} ({name})" for name, time in sent.get("time", {}).items()]:
        yield f"simulated time: {', '.join(times)}"
    if results.get("rejected_updates"):
        whose = sorted(results["faults"]["clients"], key=lambda entry: -entry["rounds"])[:5]
        names = ", ".join(f"{one_line(entry['name'])[:40]} ({entry['rounds']}, {entry['reason']})" for entry in whose)
        yield f"rejected updates: {results['rejected_updates']}; most of {names}"
    if results.get("privacy"):
        yield privacy_line(results["privacy"], results["n_clients"])


def print_result(results: dict[str, Any], title: str | None = None) -> None:
    """Prints the result of a run in words, the last line of its output."""
    split = next((split for split in ("test", "val", "train") if results[split]), None)
    if split is None:
        return
    measure = headline(results[split])[0]
    sums = {name: results[split][measure][name] for name in ("weighted", "bottom_decile")}
    whole, worst = ("not finite" if v is None else in_words(v, measure) for v in sums.values())
    line = f"{title or results['algorithm']}: {split} {measure} {whole}, worst tenth of the clients {worst}"
    Console(markup=False, emoji=False, force_jupyter=False).print(line, style="bold", highlight=False, soft_wrap=True)


def not_finite_lines(results: dict[str, Any]) -> list[str]:
    """A line about clients whose scores are not finite; none if all are."""
    result = results.get("not_finite") or {}
    n = max((result.get(split) or 0 for split in ("train", "val", "test")), default=0)
    if not n:
        return []
    names = [one_line(name)[:60] for name in result.get("clients", [])]
    listed = ", ".join(names[:5]) + ", ..." * (n > 5)
    whose = "1 client's loss is" if n == 1 else f"{n} clients' losses are"
    return [f"{whose} not finite ({listed}): predictions that are NaN count as wrong, and such a loss as the worst"]


def privacy_line(result: dict[str, Any], own: int) -> str:
    """What `evaluation.privacy.spent` has found for a run of so many clients of its own."""
    epsilon = "infinite" if result["epsilon"] is None else f"{result['epsilon']:.3g}"
    n = result["n_clients"]
    whose = "a client" if n == own else f"a client among {n}, with the noise for so many; the run has {own}"
    loose = " by RDP, a loose upper bound" if result.get("accountant") == "RDP" else ""
    message = f"privacy of {whose}: epsilon {epsilon} at delta {result['delta']:g}{loose}"
    assumed = result.get("assumptions") or []  # older runs say none
    return message + (f", if {assumed[0]}" if assumed and result["epsilon"] is not None else "")


def _number(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{factor * value:.2f}" if factor > 1 else f"{value:.4g}"


def _component_lines(components: dict[str, Any]) -> list[str]:
    """Lines about dead components and twins."""
    lines = [f"component {m} is dead: hardly a client gives it weight" for m in components.get("dead", [])]
    lines += [f"components {a} and {b} are twins: almost the same model" for a, b in components.get("twins", [])]
    if lines:
        lines.append("another learning rate, fewer components or, if it has one, algorithm.initialization may help")
    return lines
