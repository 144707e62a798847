"""What people type after `python -m fedem_lightning.`, and what the line says."""

NPZ = {
    "none.npz": "dataset.path: no file none.npz",
    "folder": "dataset.path: no file folder",
    "half.npz": "dataset.path: half.npz is no .npz file, or only a part of one",
    "no_client.npz": "dataset.path: no_client.npz lacks client",
    "half_clients.npz": "client: expected whole numbers or strings, got dtype float64",
    "good.npz dataset.task=rank": "dataset.task: expected 'classification', 'binary', 'regression',",
    "good.npz dataset.unseen=[nobody]": "dataset.unseen: no client is named nobody",
}
"""After `data describe npz dataset.path=`."""
TABLES = {
    "good.csv dataset.label=z": "dataset.label: no column 'z'",
    "header.csv": "dataset.path: header.csv has no rows",
    "headless.csv": "dataset.path: headless.csv has several columns of the name 0",
    "folder.csv": "dataset.path: no file folder.csv",
    "mine.txt": "dataset.path: expected a .csv or .parquet file, got mine.txt",
}
"""After `data describe table dataset.label=y dataset.client=client dataset.path=`."""
OTHERS = {
    "data describe npz": "dataset.path: expected an .npz file, e.g. dataset.path=my.npz",
    "data describe pfllib dataset.path=folder": "dataset.path: no .npz file in folder/train; expected PFLlib's folder",
    "data describe cifar10 --colour=red": "unknown option --colour=red",
    "data describe torch": "dataset.data._target_: expected MODULE.NAME of a class or a function,",
    "data describe torch dataset.data._target_=mine.nothing": "dataset.data._target_: cannot import mine.nothing",
    "data describe no_such": "dataset=no_such: no such choice",
    "data download mnist data_dr=x": "data_dr: no such key; did you mean data_dir?",
    "report": "the following arguments are required: DIR",
    "report none": "none: no such folder",
    "report folder": "no run can be read: folder: no run in it or below",
    "report run --out run/results.json": "--out: run/results.json is no folder",
    "report run --out report": "--out: report already holds report.html",
    "report run --compare fedavgg fedem": "--compare: no table has both 'fedavgg' and 'fedem'; the rows are ",
    "evaluate folder good.npz": "folder: no checkpoint here",
    "evaluate run none.npz": "DATA: no file none.npz",
    "evaluate run good.npz --out evaluated": "--out: evaluated already holds evaluation.json",
    "predict run good.npz --out there.csv": "--out: there.csv is already there",
    "predict run good.npz --out folder.csv": "--out: expected the name of a file that ends in .parquet",
    "predict run good.csv --out good.csv --force": "--out: good.csv is what the command reads",
    "predict run new.npz --out p.csv": "DATA: 4 of 4 clients have no model: 100, 101, 102, ...",
    "predict run wide.npz --out p.csv": "x: expected shape [n, 3] as in training, got [40, 5]",
    "personalize run new.npz --out p.csv": "--out: expected the name of a file that ends in .safetensors, got p.csv",
    "personalize run no_y.npz --out p.safetensors": "DATA: no_y.npz has no labels",
    "personalize run new.npz --out text.safetensors": "--out: text.safetensors is already there",
    "export run --client nobody --format safetensors": "--client: nobody is none of the 4 clients with a model",
    "export run --all --format safetensors --out text.safetensors": "--out: text.safetensors is no folder",
}
"""The command, and its words."""
ROWS = {
    **{f"data describe npz dataset.path={typed}": says for typed, says in NPZ.items()},
    **{
        f"data describe table dataset.label=y dataset.client=client dataset.path={typed}": says
        for typed, says in TABLES.items()
    },
    **OTHERS,
}
