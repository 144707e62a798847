"""The Flower app: its folder, the connection that `flwr run` needs, and a client app that insists on masks."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the app is for Flower")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedem_lightning.data.own_files import save_client
from fedem_lightning.deploy import flower_client
from fedem_lightning.deploy.__main__ import main
from fedem_lightning.deploy.flower_client import parcel_of, record_of
from fedem_lightning.deploy.flower_server import KINDS
from fedem_lightning.deploy.masking import content_in, packed_content
from fedem_lightning.deploy.wire import Parcel
from helpers.federations import make_data
from helpers.flower import in_a_task  # noqa: F401 - a fixture of every test here


def test_a_client_app_insists_on_secure_aggregation_and_flower_keeps_its_keys(tmp_path: Path) -> None:
    save_client(make_data().federation, 1, tmp_path / "mine.npz")
    config: Any = {"data": str(tmp_path / "mine.npz"), "state": str(tmp_path / "state"), "require_secure": True}
    context = Context(1, 7, config, RecordDict(), {})

    def answered(parcel: Parcel) -> Parcel:
        request = Message(record_of(parcel), dst_node_id=7, message_type=KINDS[parcel.facts["kind"]])
        request.metadata.__dict__["_message_id"] = "1"
        return parcel_of(flower_client.answer(request, context).content)

    assert "this client sends updates only in a sum" in answered(Parcel({"kind": "train"}, {})).facts["error"]
    settings: Any = {"stage": "setup", "sample_num": 3, "share_num": 3, "threshold": 3, "clipping_range": 8.0}
    settings |= {"target_range": 2**22, "mod_range": 2**32, "max_weight": 9.0}
    content = packed_content(RecordDict({"secaggplus_configs": ConfigRecord(settings)}))
    reply = answered(Parcel({"kind": "secure", "node": 7}, content))
    assert len(content_in(reply)["secaggplus_configs"]) == 2  # two public keys
    assert context.state["secaggplus_state"]["nid"] == 7
    config["require_secure"] = "yes"
    assert "require_secure: expected true or false, got 'yes'" in answered(Parcel({"kind": "train"}, {})).facts["error"]


def test_the_folder_has_the_app_and_the_connection(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").touch()
    main(["app", str(tmp_path / "app"), "--superlink", "example.org:80", "--ca", str(tmp_path / "ca.pem")])
    home = tmp_path / "app" / ".flwr"
    assert f"FLWR_HOME={home} flwr run {tmp_path / 'app'} server --run-config" in capsys.readouterr().out
    assert "fedem_lightning.deploy.flower_server:app" in (tmp_path / "app" / "pyproject.toml").read_text()
    found = tomllib.loads((home / "config.toml").read_text())["superlink"]
    assert found["default"] == "server"
    assert found["server"] == {"address": "example.org:80", "root-certificates": str(tmp_path / "ca.pem")}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["."], ". is there already"),
        (["new", "--superlink", "example.org"], "--superlink: expected HOST:PORT with a port from 1 to 65535"),
        (["new", "--superlink", "example.org:80"], "--superlink example.org:80: without TLS, others could change"),
        (["new", "--ca", "none.pem"], "--ca: none.pem is not there"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["app", *words])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")
    assert list(tmp_path.iterdir()) == []
