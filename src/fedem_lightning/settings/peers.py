"""Names of methods: those that PFLlib, FL-bench, fluke, pfl-research and Flower use, and what stands for them here."""

import difflib
from collections.abc import Iterable

from fedem_lightning.settings.keys import choices, shipped

SAME = {
    **{name: "per_fedavg" for name in ("peravg", "perfedavgfo", "fedmaml", "reptile")},
    **{name: "fedavg_plus" for name in ("fedavgft", "fedavgfinetune", "finetune", "ft")},
    **{name: "fedavg aggregation=private" for name in ("dpfedavg", "dpfedavgfixed", "dpfedavgadaptive", "fedavgdp")},
    **{name: "qffl" for name in ("qfedavg", "qffedavg")},
    **{name: "clustered" for name in ("cfl", "clusteredfl")},
    **{name: "local" for name in ("localonly", "standalone", "separate")},
    **{name: "fedavg aggregation=multi_krum" for name in ("krum", "multikrum")},
    **{name: f"fedavg algorithm/server_optimizer={name}" for name in ("fedadam", "fedyogi", "fedadagrad")},
    "fedopt": "fedavg algorithm/server_optimizer=fedadam",
    "fedavgm": "fedavg +algorithm.server_optimizer.momentum=0.9",
    "fedmedian": "fedavg aggregation=median",
    "fedtrimmedavg": "fedavg aggregation=trimmed_mean",
    "fedmtl": "mocha",
    "ifca": "hypcluster",
    "perfedavghf": "per_fedavg algorithm.hessian=differences",
}
"""What to write after `algorithm=`, by the folded name that peers use for the same method."""
NEAREST = {
    **{name: "scaffold" for name in ("feddyn", "fedadmm")},
    **{name: "fedprox" for name in ("moon", "fedntd", "adafedprox", "fedsam")},
    **{name: "fedavg" for name in ("fednova", "fedsgd", "fedexp", "fedlc", "fedrs", "fedgc", "elastic", "ccvr")},
    **{name: "user_centric" for name in ("fedamp", "pfedsim", "fedap")},
    **{name: "fedfomo" for name in ("apple", "pfedla", "pfedhn", "pefll", "metafed")},
    **{name: "fedala" for name in ("fedphp", "fedcac", "fedah")},
    **{name: "fedper" for name in ("fedas", "fedaws", "fedcp", "gpfl")},
    **{name: "fedrep" for name in ("fedpac", "flute")},
    **{name: "fedrod" for name in ("feddbe", "fedlogit")},
    **{name: "fedproto" for name in ("fedgh", "fedpcl", "fedtgp", "fednh", "fedhp", "fd", "feddistill")},
    **{name: "fedproto" for name in ("fedmd", "fedgen")},
    **{name: "ditto" for name in ("fml", "fedkd")},
    **{name: "apfl" for name in ("superfed", "pflda")},
    "fedcross": "fedavg_ensemble",
    "floco": "floral",
    "pfedfda": "fedgmm",
    "bulyan": "fedavg aggregation=multi_krum",
}
"""The nearest method that is there, by the folded name of one that is not."""


def fold(name: str) -> str:
    """A name without case and separators: LG-FedAvg and lg_fedavg are the same."""
    return "".join(filter(str.isalnum, name)).lower()


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that somebody may have meant: in other case, with two letters swapped, or spelt alike."""
    folded, typed = {fold(other): other for other in names}, fold(name)
    swapped = (other for other in folded if sorted(other) == sorted(typed))
    near = typed if typed in folded else next(iter([*swapped, *difflib.get_close_matches(typed, folded, n=1)]), None)
    return None if near is None else folded[near]


def method_of_peers(name: str) -> str | None:
    """What to write for a method by a peer's name, or that there is none yet, in words; None: the name is unknown."""
    typed = fold(name)
    if typed in SAME:
        return f"here it is algorithm={SAME[typed]}"
    return f"no such method yet; the nearest is algorithm={NEAREST[typed]}" if typed in NEAREST else None


def class_of_peers(name: str) -> str | None:
    """The same for a class of Python, also for the name of a method here in another case, such as SCAFFOLD."""
    typed = fold(name)
    ours = {fold(method): method for method in choices()["algorithm"]}
    means = SAME.get(typed) or NEAREST.get(typed) or ours.get(typed)
    if means is None:
        return None
    kind = shipped("algorithm")[means.partition(" ")[0]]["_target_"].rpartition(".")[2]
    there = "no such method yet; the nearest is" if typed in NEAREST else "here it is"
    return f"{there} {kind}" + ("" if fold(kind) == fold(means) else f" with what algorithm={means} sets in a run")
