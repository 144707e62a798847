"""Wrong words: every option of every command, Hydra's flags and own keys, folders of configurations."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from fedem_lightning.report import __main__ as report
from wrong_inputs.case import Case
from wrong_inputs.folders import finished, with_data
from wrong_inputs.settings import TINY

HOSTILE = {
    "empty": "",
    "space": " ",
    "minus": "-7",
    "zero": "0",
    "text": "zz",
    "float": "1.5",
    "inf": "1e400",
    "nan": "nan",
    "digits": "9" * 5000,
    "million": "1000000",
    "port": "99999",
    "newline": "a\nb",
    "bytes": os.fsdecode(b"a\xffb"),
    "unicode": "\u00fcn\u00ef \u4e2d\u6587",
    "long": "x" * 5000,
    "proc": "/proc/nothing/x",
    "below a file": "data.npz/x",
    "device": "/dev/null",
    "folder": "folder",
    "markup": "[red]x[/nothing]",
    "interpolation": "${oc.env:HOME}",
}
"""Values that some option cannot take; what an option may take after all is not held against the command."""

GOOD: dict[str, tuple[str, ...]] = {
    "report": ("out", "--out", "reported"),
    "evaluate": ("out", "data.npz", "--out", "evaluated"),
    "predict": ("out", "data.npz", "--out", "predicted.csv"),
    "personalize": ("out", "new.npz", "--out", "personal.safetensors"),
    "export": ("out", "--client", "0", "--format", "safetensors", "--out", "exported"),
}
"""What each command is given beside the wrong word; a later option counts."""
_PARSERS = {"report": report}
_TEXT = {"--client", "--client-column", "--label-column", "--trust", "--table", "--compare"}
_FEW = {"empty", "bytes", "long", "interpolation"}
"""Values that options for names are given."""
_LEGAL = {("--steps", "million"), ("--steps", "port")}
"""What an option takes, and then works on for long."""
_SLOW = {"--few-shot", "--push-to-hub"}


def cases() -> Iterator[Case]:
    """Every wrong word."""
    run = finished()
    prepare = functools.partial(with_data, run, None)
    yield from (vars_of(case, prepare) for case in _options())
    yield from (vars_of(case, prepare) for case in _positional())
    yield from _overrides()
    yield from _hydra()
    yield from _configurations()


def vars_of(case: Case, prepare: Callable[[Path], None]) -> Case:
    """The case with its files."""
    return Case(**(vars(case) | {"prepare": prepare}))


def _options() -> Iterator[Case]:
    words: tuple[str, ...]
    for command, module in _PARSERS.items():
        for action in module._parser()._actions:
            option = action.option_strings[-1] if action.option_strings else ""
            if not option or action.nargs == 0 or option in _SLOW:
                continue
            for name, value in HOSTILE.items():
                if ((action.choices or option in _TEXT) and name not in _FEW) or (option, name) in _LEGAL:
                    continue
                values = [value] * (action.nargs if isinstance(action.nargs, int) else 1)
                words = (*GOOD[command], f"{option}={value}") if len(values) == 1 else (*GOOD[command], option, *values)
                yield Case(f"commands/{command}/{option}={name}", words, f"fedem_lightning.{command}", refused=False)


def _positional() -> Iterator[Case]:
    words: tuple[str, ...]
    for name, value in HOSTILE.items():
        yield Case(
            f"commands/report/DIR={name}", (value,), "fedem_lightning.report", refused=name not in ("folder", "empty")
        )
        for command in ("evaluate", "predict", "personalize"):
            out = GOOD[command][2:]
            full = f"fedem_lightning.{command}"
            yield Case(f"commands/{command}/RUN={name}", (value, "data.npz", *out), full)
            yield Case(f"commands/{command}/DATA={name}", ("out", value, *out), full)
        yield Case(f"commands/export/RUN={name}", (value, *GOOD["export"][1:]), "fedem_lightning.export")
        for words in (("list", f"data_dir={value}"), ("list", value), ("download", value), ("describe", value)):
            yield Case(f"commands/data {words[0]}/{words[-1][:9]}{name}", words, "fedem_lightning.data", refused=False)
        for words in (("convert", "femnist", value, "made.npz"), ("convert", "mnist", "data.npz", value)):
            yield Case(f"commands/data convert/{words.index(value)}={name}", words, "fedem_lightning.data")
        words = ("describe", "synthetic", *TINY[1:4], f"--figure={value}")
        yield Case(f"commands/data describe/figure={name}", words, "fedem_lightning.data")
    for command in ("data", "report", "evaluate", "predict", "personalize", "export"):
        for words in ((), ("--nope",), ("--",), ("-m",), ("-",), ("=3",), ("",)):
            shown, can = " ".join(words) if words else "none", command == "report" and words == ("",)
            yield Case(f"commands/{command}/words={shown}", words, f"fedem_lightning.{command}", refused=not can)
    for words in (("=3",), ("a=1e400",), ("seed=" + "9" * 5000,), ("seed=[",), ("+x=${nope}",), ("data_dir=${nope}",)):
        for begin in (("list",), ("describe", "synthetic", *TINY[1:4])):
            name = f"commands/data {begin[0]}/{words[0][:12]}"
            yield Case(name, (*begin, *words), "fedem_lightning.data", refused=False)


def _overrides() -> Iterator[Case]:
    digits = "9" * 5000
    for word, says in {
        "=3": "=3",
        "+=3": "+=3",
        "~=3": "~=3",
        "==": "==",
        "~": "~",
        "+": "+",
        "seed": "seed",
        "seed=": "seed",
        f"seed={digits}": "seed",
        "seed=1e400": "seed",
        "seed=inf": "seed",
        "seed=-1e400": "seed",
        f"trainer.max_epochs={digits}": "trainer.max_epochs",
        "trainer.max_epochs=inf": "trainer.max_epochs",
        "trainer.max_epochs=1e400": "trainer.max_epochs",
        f"dataset.n_clients={digits}": "dataset.n_clients",
        "dataset.n_clients=inf": "dataset.n_clients",
        "dataset.dimension=1e400": "dataset.dimension",
        f"algorithm.n_components={digits}": "algorithm.n_components",
        "algorithm.n_components=inf": "n_components",
        "algorithm.client_optimizer.lr=1e400": "lr",
        f"algorithm.client_optimizer.lr={digits}": "lr",
        f"algorithm.participation={digits}": "participation",
        f"algorithm.batch_size={digits}": "batch_size",
        "algorithm.batch_size=1e400": "batch_size",
        f"algorithm.local_epochs={digits}": "local_epochs",
        f"trainer.devices={digits}": "trainer.devices",
        "trainer.devices=1e400": "trainer.devices",
        f"callbacks.checkpoint.every_n_rounds={digits}": "every_n_rounds",
        f"n_components={digits}": "n_components",
        "data_dir=${nope}": "nope",
        "run_dir=${nope}": "nope",
        "+x=${nope}": "x",
        "dataset.dimension=${nope}": "dataset.dimension",
        "dataset.dimension=${nope.more}": "dataset.dimension",
        "dataset.dimension=${oc.env:NO_SUCH_VARIABLE}": "NO_SUCH_VARIABLE",
        "dataset.dimension=${oc.env:}": "dataset.dimension",
        "dataset.dimension=${nope:3}": "dataset.dimension",
        "dataset.dimension=${dataset.dimension}": "dataset.dimension",
        "dataset.dimension=${oc.decode:'['}": "dataset.dimension",
        "dataset.dimension=${": "dataset.dimension",
        "dataset.dimension=???": "dataset.dimension",
        "+dataset.${nope}=3": "nope",
        "algorithm._target_=nope.Nope": "algorithm._target_",
        "algorithm._target_=nope": "algorithm._target_",
        "algorithm._target_=fedem_lightning.Nope": "algorithm._target_",
        "algorithm._target_=''": "algorithm._target_",
        "algorithm._target_=.": "algorithm._target_",
        "algorithm._target_=os.": "algorithm._target_",
        "algorithm._target_=a..b": "algorithm._target_",
        "algorithm._target_=null": "algorithm._target_",
        "algorithm._target_=builtins.int": "algorithm._target_",
        "algorithm._target_=sys.exit": "algorithm",
        "backbone._target_=nope.Nope": "backbone._target_",
        "backbone._target_=torch.nn.Nope": "backbone._target_",
        "backbone._target_=builtins.exit": "backbone",
        "dataset._target_=nope.Nope": "dataset._target_",
        "algorithm.client_optimizer._target_=nope": "client_optimizer._target_",
        "algorithm.server_optimizer._target_=nope.X": "server_optimizer._target_",
        "trainer._target_=nope.X": "trainer._target_",
        "callbacks.checkpoint._target_=nope.X": "checkpoint._target_",
        "+callbacks.mine._target_=nope.X": "mine._target_",
        "+logger.mine._target_=nope.X": "mine._target_",
        "+network._target_=nope.X": "network",
        os.fsdecode(b"run_dir=a\xffb"): "run_dir",
        os.fsdecode(b"seed=a\xffb"): "seed",
        os.fsdecode(b"\xff=3"): "=3",
        "seed=a\nb": "seed",
        "a\nb=3": "=3",
        "seed=\x1b[2J": "seed",
        "x" * 5000 + "=3": "x",
        "seed=" + "[" * 2000 + "]" * 2000: "seed",
        "\u4e2d=3": "\u4e2d",
        "++": "++",
        "seed=1,2": "-m",
        "algorithm@x=fedem": "algorithm@x",
        "algorithm@=fedem": "algorithm@",
        "@=3": "@",
        "algorithm=a/b": "algorithm",
        "algorithm=../config": "algorithm",
        "algorithm=/": "algorithm",
        "+experiment=[digits,nope]": "nope",
    }.items():
        yield Case(f"commands/run/{word[:40]}", (*TINY, word), says=says, refused=word not in ("run_dir=a\udcffb",))
    for name, value in HOSTILE.items():
        for key in ("run_dir", "data_dir", "ckpt_path", "+logger.csv.name"):
            yield Case(f"commands/run/{key}={name}", (*TINY, f"{key}='{value}'"), refused=False)


def _hydra() -> Iterator[Case]:
    """Flags, and the keys of Hydra itself."""
    words: tuple[str, ...]
    for words in (
        *(("--cfg",), ("--cfg", "nope"), ("--cfg", "job", "--package"), ("--cfg", "job", "--package", "nope")),
        *(("--cfg", "job", "--package", "a.b[0]"), ("--package", "x"), ("--resolve",), ("--info",), ("--info", "nope")),
        *(("--cfg", "job", "--resolve", "+x=${nope}"), ("--cfg", "job", "--resolve", "+x=${oc.env:NO_SUCH}")),
        *(("--cfg", "all", "--resolve"), ("--cfg", "hydra", "--resolve"), ("--cfg", "job", "seed=" + "9" * 5000)),
        *(("--cfg", "job", "--resolve", "+x=${x}"), ("--cfg", "job", "+x=1e400"), ("--cfg", "job", "=3")),
        *(("--info", "all"), ("--info", "config"), ("--info", "defaults"), ("--info", "defaults-tree")),
        *(("--info", "plugins"), ("--info", "searchpath"), ("--info", "searchpath", "=3"), ("--info", "all", "a=b")),
        *(("--multirun",), ("--multirun", "nope"), ("--multirun", "seed="), ("--multirun", "seed=range(0)")),
        *(("--multirun", "seed=range(1,2,0)"), ("--multirun", "seed=choice()"), ("--multirun", "seed=interval(0,1)")),
        *(("--multirun", "seed=glob(*)"), ("--multirun", "seed=shuffle(3)"), ("--multirun", "seed=1,[")),
        *(("--multirun", "algorithm=glob(nope*)"), ("--multirun", "algorithm=fedem,nope"), ("-m", "-m", "seed=x,y")),
        *(("--multirun", "=1,2"), ("--multirun", "seed=int(a,b)"), ("--multirun", "+x=${nope},1")),
        *(("--run", "--multirun"), ("--run", "--cfg", "job", "--info"), ("--experimental-rerun",)),
        *(("--experimental-rerun", "missing.pickle"), ("--experimental-rerun", "folder"), ("--shell-completion",)),
        *(("--shell-completion", "install=nope"), ("-sc", "install=bash", "uninstall=bash"), ("-sc", "query=bash")),
        *(("--config-dir",), ("--config-dir", "missing"), ("--config-dir", "file.txt"), ("--config-dir", "")),
        *(
            ("-cd", "/proc/nothing"),
            ("-cd", "folder", "+algorithm=nope"),
            ("--config-name",),
            ("--config-name", "nope"),
        ),
        *(("--config-name", ""), ("-cn", "../x"), ("-cn", "config.yaml"), ("-cn", "/etc/passwd"), ("-cn", "a\nb")),
        *(("--config-path", "missing"), ("-cp", "folder"), ("-cp", "file.txt"), ("-cp", ""), ("-cp", "pkg://nope")),
        *(("--hydra-help", "--cfg"), ("--verbose",), ("-x",), ("---",), ("--",), ("-",), ("--cfg=job=x",)),
    ):
        shown = " ".join(words)[:60]
        yield Case(f"commands/hydra/{shown}", (*words, *TINY), prepare=_folders, refused=False)
    for word in (
        *(
            "hydra.run.dir=/proc/x",
            "hydra.run.dir=''",
            "hydra.run.dir=null",
            "hydra.run.dir=[a]",
            "hydra.run.dir=file.txt",
        ),
        *("hydra.run.dir=file.txt/x", "hydra.run.dir=${nope}", "hydra.run.dir=???", "hydra.run=null", "hydra=null"),
        *("hydra/launcher=nope", "hydra/sweeper=nope", "hydra/job_logging=nope", "hydra/hydra_logging=nope"),
        *("hydra/output=nope", "hydra/help=nope", "hydra/env=nope", "hydra/callbacks=nope", "hydra/launcher=null"),
        *("hydra.mode=NOPE", "hydra.mode=3", "hydra.mode=MULTIRUN", "hydra.verbose=nope", "hydra.verbose=[a]"),
        *("hydra.verbose=3", "hydra.verbose={a: 1}", "hydra.searchpath=[nope]", "hydra.searchpath=3"),
        *("hydra.searchpath=[file:///proc/nothing]", "hydra.searchpath=[pkg://nope]", "hydra.searchpath=['']"),
        *(
            "hydra.searchpath=[[a]]",
            "hydra.searchpath={a: 1}",
            "hydra.searchpath=null",
            "hydra.nope=3",
            "+hydra.nope=3",
        ),
        *("hydra.job.chdir=abc", "hydra.job.chdir=3", "hydra.output_subdir=/proc/x", "hydra.output_subdir=[a]"),
        *(
            "hydra.output_subdir=../x",
            "hydra.output_subdir=null",
            "hydra.output_subdir=''",
            "hydra.output_subdir=" + "x" * 300,
        ),
        *("hydra.job.name=3", "hydra.job.name=a/b", "hydra.job.name=null", "hydra.job.name=" + "x" * 300),
        *("+hydra.job.env_set.A=[1]", "+hydra.job.env_set.A=3", "hydra.job.env_copy=3", "hydra.job.env_copy=[A]"),
        *("+hydra.job.env_set.OMP_NUM_THREADS=a", "hydra.job_logging.version=3", "hydra.job_logging=null"),
        *("hydra.job_logging.root.level=NOPE", "hydra.job_logging.handlers.file.filename=/proc/x"),
        *("hydra.hydra_logging.version=3", "hydra.hydra_logging=null", "hydra.launcher._target_=os.getcwd"),
        *(
            "hydra.launcher._target_=nope.X",
            "hydra.sweeper._target_=nope.X",
            "hydra.sweeper=null",
            "hydra.callbacks=null",
        ),
        *("+hydra.callbacks.x._target_=nope.X", "+hydra.callbacks.x=3", "+hydra.callbacks.x._target_=os.getcwd"),
        *("hydra.help.template=${nope}", "hydra.help=null", "hydra.runtime.output_dir=x", "hydra.runtime=null"),
        *("hydra.overrides.task=[=3]", "hydra.overrides=null", "hydra.job=null", "hydra.job.config=null"),
        *(
            "hydra.job.config.override_dirname.item_sep=[a]",
            "hydra.job.num=x",
            "hydra.job.id=[a]",
            "~hydra",
            "~hydra.run",
        ),
    ):
        yield Case(f"commands/hydra/{word[:60]}", (*TINY, word), prepare=_folders, refused=False)
    for word in (
        *("hydra.sweep.dir=file.txt", "hydra.sweep.dir=/proc/x", "hydra.sweep.dir=''", "hydra.sweep.dir=null"),
        *("hydra.sweep.subdir=/proc/x", "hydra.sweep.subdir=''", "hydra.sweep.subdir=null", "hydra.sweep.subdir=../x"),
        *("hydra.sweep.subdir=same", "hydra.sweep.dir=${nope}", "hydra.sweep.subdir=${nope}", "hydra.sweep=null"),
        *("hydra.sweep.subdir=" + "x" * 300, "hydra.sweeper.max_batch_size=abc", "hydra.sweeper.max_batch_size=0"),
        *("hydra.sweeper.params=abc", "hydra.sweeper.params={a: 1}", "hydra.sweeper.params={seed: '='}"),
        *("hydra.sweeper.params={=: 1}", "hydra.launcher=null", "hydra/launcher=nope", "hydra/sweeper=nope"),
        *("hydra.mode=RUN", "hydra/launcher=joblib", "hydra.sweeper.nope=3"),
    ):
        words = ("-m", *TINY, "seed=0,1", word)
        yield Case(f"commands/sweep/{word[:60]}", words, prepare=_folders, refused=False, leaves=True)
    for word in (
        "n_trials=abc",
        "n_trials=0",
        "direction=nope",
        "sampler=null",
        "params={seed: abc}",
        "storage=nope://x",
    ):
        words = ("-m", *TINY, "seed=0,1", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=1", f"hydra.sweeper.{word}")
        yield Case(f"commands/optuna/{word}", words, prepare=_folders, refused=False, leaves=True, heard=False)


def _folders(place: Path) -> None:
    (place / "folder").mkdir()
    (place / "file.txt").write_text("mine")


_FILES: dict[str, bytes] = {
    "not YAML": b"a: [1\n",
    "a tab": b"a:\n\t- 1\n",
    "a list": b"[1, 2]\n",
    "a number": b"3\n",
    "empty": b"",
    "not UTF-8": b"a: \xff\xfe\n",
    "binary": bytes(range(256)),
    "NUL": b'# @package _global_\nrun_dir: "a\\0b"\n',
    "an unknown interpolation": b"_target_: fedem_lightning.FedAvg\nlocal_epochs: ${nope}\n",
    "a cycle": b"_target_: fedem_lightning.FedAvg\nlocal_epochs: ${algorithm.local_epochs}\n",
    "an unknown default": b"defaults: [nope]\n",
    "itself as default": b"defaults: [mine]\n",
    "defaults that are text": b"defaults: abc\n",
    "defaults that are keys": b"defaults: {a: b}\n",
    "an unknown target": b"_target_: nope.Nope\n",
    "no target": b"a: 1\n",
    "a target that is a list": b"_target_: [a]\n",
    "a Python tag": b"a: !!python/object/apply:os.getcwd []\n",
    "an unknown tag": b"a: !nope 3\n",
    "two keys alike": b"a: 1\na: 2\n",
    "a number as a key": b"3: 1\n_target_: fedem_lightning.FedAvg\n",
    "a null as a key": b"? \n: 1\n",
    "a list as a key": b"? [a]\n: 1\n",
    "a huge number": b"_target_: fedem_lightning.FedAvg\nlocal_epochs: " + b"9" * 5000 + b"\n",
    "an infinite number": b"_target_: fedem_lightning.FedAvg\nlocal_epochs: .inf\n",
    "deep": b"a: " + b"[" * 3000 + b"]" * 3000 + b"\n",
    "an unknown package": b"# @package ${nope}\na: 1\n",
    "a wrong package": b"# @package\na: 1\n",
    "a wrong header": b"# @nope x\na: 1\n",
    "windows": b"\xef\xbb\xbf_target_: fedem_lightning.Nope\r\n",
}
"""Files of a user's own choice of an algorithm, and what is wrong with them."""


def _configurations() -> Iterator[Case]:
    for name, content in _FILES.items():
        for flag in ((("-cd", "mine"),), (("hydra.searchpath=[file://mine]",),))[: 1 if name != "not YAML" else 2]:
            words = (*flag[0], *TINY, "algorithm=mine")
            yield Case(f"commands/config/{name}{len(flag[0])}", words, prepare=functools.partial(_mine, content))
        primary = functools.partial(_primary, content)
        yield Case(f"commands/config-name/{name}", ("-cd", "mine", "-cn", "main"), prepare=primary, refused=False)
    for name, make in _KINDS.items():
        yield Case(f"commands/config/{name}", ("-cd", "mine", *TINY, "algorithm=mine"), prepare=make)


def _mine(content: bytes, place: Path) -> None:
    (place / "mine" / "algorithm").mkdir(parents=True)
    (place / "mine" / "algorithm" / "mine.yaml").write_bytes(content)


def _primary(content: bytes, place: Path) -> None:
    (place / "mine").mkdir()
    (place / "mine" / "main.yaml").write_bytes(content)


def _special(make: Callable[[Path], object], place: Path) -> None:
    _mine(b"", place)
    path = place / "mine" / "algorithm" / "mine.yaml"
    path.unlink()
    make(path)


_KINDS: dict[str, Callable[[Path], None]] = {
    "a folder": functools.partial(_special, lambda path: path.mkdir()),
    "a dangling link": functools.partial(_special, lambda path: path.symlink_to("nowhere")),
    "a link to itself": functools.partial(_special, lambda path: path.symlink_to(path.name)),
    "a device": functools.partial(_special, lambda path: path.symlink_to("/dev/null")),
    "a pipe": functools.partial(_special, os.mkfifo),
    "a link to endless zeros": functools.partial(_special, lambda path: path.symlink_to("/dev/zero")),
}
