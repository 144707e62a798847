"""`python -m fedem_lightning.personalize`: the models are those of the run's own unseen clients."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from fedem_lightning import load, load_clients
from fedem_lightning.data.formats.npz import read_npz
from fedem_lightning.data.own_files import ARRAYS
from fedem_lightning.evaluate import main as evaluate
from fedem_lightning.personalize import main
from fedem_lightning.serving.output import print_table
from fedem_lightning.serving.personalizing import only_shots
from fedem_lightning.serving.rows import ClientRows, read_rows
from helpers.serving import refused


def of_results(path: Path) -> Any:
    return json.loads((path / "results.json").read_text())["unseen"]["test"]


@pytest.mark.parametrize("algorithm", ["fedem", "fedavg", "fedavg_plus", "local", "clustered"])
@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_unseen_clients_have_the_scores_of_their_run(
    algorithm: str, kind: str, place: Path, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """To the last bit, whether the rows come from an .npz or from a table."""
    run, data, out = run_of(algorithm), place / f"unseen.{kind}", tmp_path / "new" / "clients.safetensors"
    main([str(run), str(data), "--out", str(out)])
    evaluate([str(out), str(data), "--out", str(tmp_path / "scores")])
    scores = json.loads((tmp_path / "scores" / "evaluation.json").read_text())["scores"]
    assert scores == {"3": of_results(run)}


def test_scores_are_printed(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(place / "fedem"), str(place / "unseen.npz"), "--out", str(tmp_path / "c.safetensors")])
    out, sums = capsys.readouterr().out, of_results(place / "fedem")["accuracy"]
    assert "FedEM: 3 clients personalised on 45 training rows" in out
    assert all(f"{100 * sums[kind]:.2f}" in out for kind in ("weighted", "mean", "bottom_decile"))
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_a_long_name_cuts_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    """It is broken instead, within 80 columns."""
    numbers = [f"{i}12.3456789" for i in range(1, 6)]
    print_table("title", ["run", *(f"column {i}" for i in range(5))], [["a long name of a run, " * 6, *numbers]])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(all(number in line for number in numbers) for line in lines)


def test_rows_without_a_split_are_all_for_training(place: Path, tmp_path: Path) -> None:
    """And one client's rows need no column."""
    table = pd.read_csv(place / "unseen.csv")
    first = table[table.client == table.client[0]].drop(columns=["client", "split"])
    first.to_parquet(tmp_path / "one.parquet")
    main(
        [str(place / "fedem"), str(tmp_path / "one.parquet"), "--client", "x", "--out", str(tmp_path / "c.safetensors")]
    )
    model = load(place / "fedem")
    mine = model.personalize(first.drop(columns="y").to_numpy(), first.y.to_numpy(), "x")
    assert torch.equal(load_clients(tmp_path / "c.safetensors").personal.mixture[0], mine.weights)


def test_more_steps_move_the_weights_further(place: Path, tmp_path: Path) -> None:
    """As in the class's own argument."""
    files = {name: tmp_path / f"{name}.safetensors" for name in ("one", "many", "stopped")}
    start = [str(place / "fedem"), str(place / "unseen.npz")]
    main([*start, "--out", str(files["one"]), "--steps", "1"])
    main([*start, "--out", str(files["many"]), "--steps", "50"])
    main([*start, "--out", str(files["stopped"]), "--steps", "50", "--tolerance", "10"])
    one, many, stopped = (load_clients(file).personal.mixture for file in files.values())
    assert torch.equal(one, stopped)
    assert float((many - 1 / 3).abs().mean()) > float((one - 1 / 3).abs().mean())


def test_chunks_of_clients_change_nothing(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for size in (50_000, 20):
        monkeypatch.setattr("fedem_lightning.serving.clients_on_rows.CHUNK_ROWS", size)
        out = tmp_path / f"{size}.safetensors"
        main([str(place / "fedem"), str(place / "unseen.npz"), "--out", str(out)])
        found.append(load_clients(out))
    assert found[0].names == found[1].names
    torch.testing.assert_close(found[0].personal.mixture, found[1].personal.mixture)


# Few samples


def few_shot(tmp_path: Path, *arguments: str | Path) -> pd.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda figure, path, **options: path.write(b"png"))
        main([*map(str, arguments), "--out-dir", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few_shot.csv", "few_shot.png"]
    return pd.read_csv(tmp_path / "few_shot.csv", dtype={"k": str})


def test_all_samples_are_the_whole_split(place: Path, run_of: Callable[[str], Path], tmp_path: Path) -> None:
    runs = [run_of("fedavg"), run_of("fedavg_plus")]
    table = few_shot(
        tmp_path, place / "fedem", place / "unseen.npz", "--few-shot", "0,3,99,all", "--compare", *map(str, runs)
    )
    assert table["run"].unique().tolist() == ["FedEM", "FedAvg", "FedAvg + Finetune"]
    for run, (_, part) in zip([place / "fedem", *runs], table.groupby("run", sort=False), strict=True):
        assert part.k.tolist() == ["0", "3", "99", "all"]
        assert part.samples.tolist() == [0, 3, 15, 15]
        for kind, value in of_results(run)["loss"].items():
            assert part[f"loss_{kind}"].tolist()[2:] == [value, value]  # a client with fewer samples uses all


def test_without_samples_fedavg_serves_the_global_model(
    place: Path, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Worked out here from the component."""
    table = few_shot(tmp_path, run_of("fedavg_plus"), place / "unseen.npz", "--few-shot", "0")
    data = read_npz(place / "unseen.npz", ARRAYS)
    test = data["split"] == 2
    with torch.no_grad():
        outputs = load(run_of("fedavg_plus")).components[0](torch.from_numpy(data["x"][test]))
    right = outputs.argmax(dim=1).numpy() == data["y"][test]
    assert table.accuracy_pooled[0] == pytest.approx(right.mean(), abs=1e-12)


def test_draws_are_nested_and_belong_to_the_client(place: Path) -> None:
    schema = load(place / "fedem").schema
    assert schema is not None
    rows = read_rows(place / "unseen.npz", schema)
    codes = rows.codes()
    drawn = {k: only_shots(rows, codes, k, seed=0) == 0 for k in (0, 1, 2, 5, 10)}
    for less, more in zip((0, 1, 2, 5), (1, 2, 5, 10), strict=True):
        assert not (drawn[less] & ~drawn[more]).any()
        assert (np.bincount(rows.client[drawn[more]]) == more).all()
    places = {tuple(np.flatnonzero(drawn[5][rows.client == k])) for k in range(len(rows.names))}
    assert len(places) > 1  # clients draw apart
    other = only_shots(rows, codes, 5, seed=1) == 0
    assert (other != drawn[5]).any()
    alone = rows.client == 1
    one = ClientRows(rows.samples, np.zeros(alone.sum(), dtype=np.int64), rows.names[1:2], codes[alone])
    assert ((only_shots(one, codes[alone], 5, seed=0) == 0) == drawn[5][alone]).all()
    assert (only_shots(rows, codes, 1, 0)[codes == 2] == 2).all()


def test_test_rows_are_drawn_where_there_is_no_split(place: Path, tmp_path: Path) -> None:
    pd.read_csv(place / "unseen.csv").drop(columns="split").to_csv(tmp_path / "plain.csv", index=False)
    table = few_shot(
        tmp_path / "out", place / "fedem", tmp_path / "plain.csv", "--few-shot", "all", "--test-fraction", "0.25"
    )
    assert table[["clients", "n_test", "samples"]].to_numpy().tolist() == [[3, 18, 18]]


def test_samples_help(tmp_path: Path, place: Path, run_of: Callable[[str], Path]) -> None:
    """Tuning on all samples beats the global model, where groups have different labels."""
    table = few_shot(tmp_path, run_of("fedavg_plus"), place / "unseen.npz", "--few-shot", "0,all")
    assert table.loss_weighted[1] < table.loss_weighted[0]


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere", "unseen.npz", "--out", "o.safetensors"], "no such run"),
        (["fedem", "nowhere.npz", "--out", "o.safetensors"], "DATA: no file"),
        (["fedem", "fedem", "--out", "o.safetensors"], "DATA: no file"),
        (["fedem", "broken.npz", "--out", "o.safetensors"], "DATA: .*broken.npz is no .npz file"),
        (["fedem", "text.txt", "--out", "o.safetensors"], "DATA: expected a file that ends in"),
        (["fedem", "unseen.npz"], "--out: expected a .safetensors"),
        (["fedem", "unseen.npz", "--out", "o.npz"], "--out: expected a name that ends in .safetensors"),
        (["fedem", "unseen.npz", "--out", "there.safetensors"], "--out: .* is already there"),
        (["fedem", "seen.npz", "--out", "o.safetensors"], "took part in training"),
        (["fedem", "unseen.npz", "--out", "o.safetensors", "--steps", "0"], "--steps: expected a whole number"),
        (["fedem", "unseen.npz", "--out", "o.safetensors", "--steps", "x"], "--steps: invalid int"),
        (
            ["fedem", "unseen.npz", "--out", "o.safetensors", "--steps", "1", "--tolerance", "0.1"],
            "--tolerance: it needs --steps above 1",
        ),
        (["fedem", "unseen.npz", "--out", "o.safetensors", "--tolerance", "inf"], "--tolerance: expected a finite"),
        (["fedavg", "unseen.npz", "--out", "o.safetensors", "--steps", "3"], "--steps: FedAvg has no such steps"),
        (["fedem", "unseen.npz", "--out", "o.safetensors", "--client", "a"], "--client: DATA names the clients"),
        (["fedem", "unseen.npz", "--out", "o.safetensors", "--seed", "-1"], "--seed"),
        (["fedem", "unseen.npz", "--out", "o.safetensors", "--out-dir", "d"], "--out-dir: only with --few-shot"),
        (["fedem", "unseen.npz", "--few-shot", "1"], "expected --out-dir"),
        (["fedem", "unseen.npz", "--few-shot", "1", "--out", "o.safetensors"], "--out: not with --few-shot"),
        (["fedem", "unseen.npz", "--few-shot", "1,x", "--out-dir", "d"], "--few-shot: expected numbers"),
        (["fedem", "unseen.npz", "--few-shot", "", "--out-dir", "d"], "--few-shot: expected numbers"),
        (["fedem", "unseen.npz", "--few-shot", "1", "--out-dir", "held"], "--out-dir: .* already holds few_shot.csv"),
        (["fedem", "unseen.npz", "--few-shot", "1", "--out-dir", "text.txt"], "is no folder"),
        (["fedem", "unseen.npz", "--few-shot", "1", "--out-dir", "d", "--test-fraction", "0.2"], "has a split already"),
        (["fedem", "unseen.npz", "--few-shot", "1", "--out-dir", "d", "--compare", "fedem"], "given twice"),
        (["fedem", "plain.npz", "--few-shot", "1", "--out-dir", "d"], "it has no split"),
        (["fedem", "plain.npz", "--few-shot", "1", "--out-dir", "d", "--test-fraction", "1"], "--test-fraction"),
        (["fedem", "plain.npz", "--few-shot", "1", "--out-dir", "d", "--test-fraction", "0.001"], "less than one row"),
        (["fedem", "untested.npz", "--few-shot", "1", "--out-dir", "d"], "no test rows"),
        (["fedem", "unlabelled.npz", "--out", "o.safetensors"], "no labels"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_leaves_no_file(
    arguments: list[str],
    line: str,
    place: Path,
    run_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_of("fedavg")
    for name in ("fedem", "fedavg", "unseen.npz", "seen.npz"):
        (tmp_path / name).symlink_to(place / name)
    unseen = read_npz(place / "unseen.npz", ARRAYS)
    without: dict[str, Any] = {
        "plain": {k: v for k, v in unseen.items() if k != "split"},
        "unlabelled": {k: v for k, v in unseen.items() if k != "y"},
        "untested": {**unseen, "split": np.zeros_like(unseen["split"])},
    }
    for name, content in without.items():
        np.savez(tmp_path / f"{name}.npz", **content)
    (tmp_path / "broken.npz").write_bytes((place / "unseen.npz").read_bytes()[:200])
    (tmp_path / "held").mkdir()
    for name in ("text.txt", "there.safetensors", "held/few_shot.csv"):
        (tmp_path / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert re.search(line, refused(main, capsys, *arguments))
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "there.safetensors").read_text() == "mine"


def test_force_writes_over_a_file(place: Path, tmp_path: Path) -> None:
    (tmp_path / "c.safetensors").write_text("old")
    main([str(place / "fedem"), str(place / "unseen.npz"), "--out", str(tmp_path / "c.safetensors"), "--force"])
    assert len(load_clients(tmp_path / "c.safetensors").names) == 3
