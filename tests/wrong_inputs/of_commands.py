"""What people type after `python -m fedem_lightning.`, and what the line says."""

ROWS = {
    "data download mnist data_dr=x": "data_dr: no such key; did you mean data_dir?",
    "report": "the following arguments are required: DIR",
    "report none": "none: no such folder",
    "report folder": "no run can be read: folder: no run in it or below",
    "report run --out run/results.json": "--out: run/results.json is no folder",
    "report run --out report": "--out: report already holds report.html",
    "evaluate folder good.npz": "folder: no checkpoint here",
    "evaluate run none.npz": "DATA: no file none.npz",
    "evaluate run good.npz --out evaluated": "--out: evaluated already holds evaluation.json",
    "predict run good.npz --out there.csv": "--out: there.csv is already there",
    "predict run good.npz --out folder.csv": "--out: expected the name of a file that ends in .parquet",
    "predict run good.csv --out good.csv --force": "--out: good.csv is what the command reads",
    "predict run new.npz --out p.csv": "DATA: 4 of 4 clients have no model: 100, 101, 102, ...",
    "predict run wide.npz --out p.csv": "x: expected shape [n, 3] as in training, got [40, 5]",
    "personalize run new.npz --out p.csv": "--out: expected the name of a file that ends in .safetensors, got p.csv",
    "personalize run no_y.npz --out p.safetensors": "y: expected the labels of the samples, got None",
    "personalize run new.npz --out text.safetensors": "--out: text.safetensors is already there",
    "export run --client nobody --format safetensors": "--client: nobody is none of the 4 clients with a model",
    "export run --all --format safetensors --out text.safetensors": "--out: text.safetensors is no folder",
}
"""The command, and its words."""
