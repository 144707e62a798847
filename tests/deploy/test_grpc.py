"""The connection of server and clients: what is sent arrives, and nobody else gets in."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from fedem_lightning.deploy import client as grpc_client
from fedem_lightning.deploy import grpc_server
from fedem_lightning.deploy.certificates import (
    CERTIFICATE,
    CLIENTS,
    KEY,
    Keys,
    allowed,
    digest_of,
    make_keys,
    remove_clients,
)
from fedem_lightning.deploy.client import serve
from fedem_lightning.deploy.grpc_server import SERVICE, GrpcLink
from fedem_lightning.deploy.wire import Parcel
from fedem_lightning.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a server and two clients."""
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, ["127.0.0.1", "localhost"], ["clinic 3", "Ärzte"], 30, renew=False)
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "AWAY", 2.0)
    monkeypatch.setattr(grpc_client, "AWAY", 2.0)
    monkeypatch.setattr(grpc_client, "AGAIN", 0.1)


class Stopped(Exception):
    """Ends a client's thread."""


@contextmanager
def client(
    link: GrpcLink, answer: Callable[[Parcel], Parcel], name: str = "a", keys: Path | None = None
) -> Iterator[list[Any]]:
    """A client in a thread; what it says, and the error that has ended it."""
    said: list[Any] = []

    def run() -> None:
        try:
            serve(answer, f"127.0.0.1:{link.port}", name, keys, said.append)
        except (Stopped, UserError) as error:
            said.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield said


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def doubled(request: Parcel) -> Parcel:
    return Parcel({"was": request.facts["kind"]}, {"x": 2 * request.tensors["x"]})


def request(**facts: Any) -> Parcel:
    return Parcel({"kind": "train", **facts}, {"x": torch.arange(3.0)})


def test_a_request_is_answered_and_only_certified_clients_are_known_by_their_names(folder: Path) -> None:
    with GrpcLink("127.0.0.1:0", folder / "server", 10.0) as link:
        clinic, doctors = (folder / "clients" / name for name in ("clinic 3", "Ärzte"))
        with client(link, doubled, "?", clinic), client(link, doubled, "?", doctors):
            until(lambda: len(link.connected()) == 2)
            replies = dict(link.ask({node: request() for node in link.connected()}))
            assert {link.name(node) for node in replies} == {"clinic 3", "Ärzte"}
            for reply in replies.values():
                assert reply is not None
                assert reply.facts == {"was": "train"}
                assert torch.equal(reply.tensors["x"], torch.tensor([0.0, 2.0, 4.0]))
            assert link.sent_bytes > 100
            assert link.received_bytes > 100


def raw(link: GrpcLink, credentials: grpc.ChannelCredentials | None, content: bytes = b"") -> bytes:
    """A call as somebody else would make it."""
    address = f"127.0.0.1:{link.port}"
    channel = grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials)
    with channel:
        metadata = (("name", b"clinic 3".hex()), ("session", "mine"))
        return channel.unary_unary(f"/{SERVICE}/Next")(content, timeout=5.0, metadata=metadata)


def test_a_stranger_gets_nothing(folder: Path, tmp_path: Path) -> None:
    """Not without TLS, not with the authority's certificate alone, nor with a certificate of another authority."""
    make_keys(tmp_path, ["127.0.0.1"], ["clinic 3"], 30, renew=False)
    theirs, ours = Keys.read(tmp_path / "clients" / "clinic 3"), Keys.read(folder / "clients" / "clinic 3")
    with GrpcLink("127.0.0.1:0", folder / "server", 10.0) as link:
        attempts = [
            None,
            grpc.ssl_channel_credentials(ours.authority),
            grpc.ssl_channel_credentials(ours.authority, theirs.key, theirs.certificate),
        ]
        for credentials in attempts:
            with pytest.raises(grpc.RpcError) as failed:
                raw(link, credentials)
            assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
        assert link.connected() == []


def test_a_server_with_another_authority_is_not_answered(folder: Path, tmp_path: Path) -> None:
    make_keys(tmp_path, ["127.0.0.1"], ["clinic 3"], 30, renew=False)
    ours = folder / "clients" / "clinic 3"
    with GrpcLink("127.0.0.1:0", tmp_path / "server", 10.0) as link, client(link, doubled, "?", ours) as said:
        until(lambda: said)
        assert isinstance(said[0], UserError)
        assert "its certificate is not of the authority in ca.pem" in str(said[0])
        assert link.connected() == []


def test_a_client_that_was_struck_off_the_list_or_got_a_new_certificate_is_refused(tmp_path: Path) -> None:
    make_keys(tmp_path, ["127.0.0.1"], ["a", "b"], 30, renew=False)
    old = Keys.read(tmp_path / "clients" / "a")
    with GrpcLink("127.0.0.1:0", tmp_path / "server", 10.0) as link:
        make_keys(tmp_path, [], ["a"], 30, renew=True)  # while the server runs
        with pytest.raises(grpc.RpcError) as failed:
            raw(link, grpc.ssl_channel_credentials(old.authority, old.key, old.certificate))
        assert failed.value.code() == grpc.StatusCode.PERMISSION_DENIED
        remove_clients(tmp_path, ["b"])
        with client(link, doubled, "?", tmp_path / "clients" / "b") as said:
            until(lambda: said)
            assert isinstance(said[0], UserError)
            assert "its list of clients has no 'b' with this certificate" in str(said[0])
        assert link.connected() == []


def test_a_list_of_clients_that_somebody_breaks_stays_in_force_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_keys(tmp_path, ["127.0.0.1"], ["a", "b"], 30, renew=False)
    with GrpcLink("127.0.0.1:0", tmp_path / "server", 10.0) as link:
        (tmp_path / "server" / CLIENTS).write_text('{"a": "1",\n}')
        with client(link, doubled, "?", tmp_path / "clients" / "b"):
            until(link.connected)
            ((_, reply),) = link.ask({0: request()})
            assert reply is not None
            assert reply.facts == {"was": "train"}
    assert capsys.readouterr().out.count("clients.json is no JSON; the clients of the list before may still join") == 1
    with pytest.raises(UserError, match="is no JSON"):
        GrpcLink("127.0.0.1:0", tmp_path / "server", 10.0)
    with pytest.raises(UserError, match="is no JSON"):
        remove_clients(tmp_path, ["a"])


def test_keys_are_not_overwritten_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--server: name the hosts"):
        make_keys(tmp_path, [], ["a"], 30, renew=False)
    make_keys(tmp_path, ["example.org", "10.0.0.1"], ["a"], 30, renew=False)
    before = (tmp_path / "clients" / "a" / CERTIFICATE).read_bytes()
    for hosts, names in (([], ["b", "a"]), (["x.org"], ["b"])):
        with pytest.raises(UserError, match="is there already; --renew"):
            make_keys(tmp_path, hosts, names, 30, renew=False)
    assert not (tmp_path / "clients" / "b").exists()
    make_keys(tmp_path, [], ["b"], 30, renew=False)
    assert (tmp_path / "clients" / "a" / CERTIFICATE).read_bytes() == before
    assert allowed(tmp_path / "server") == {
        name: digest_of((tmp_path / "clients" / name / CERTIFICATE).read_bytes()) for name in "ab"
    }
    for key in tmp_path.rglob(KEY):
        assert key.stat().st_mode & 0o777 == 0o600
    for name in ("../a", "", "x/y", "a\n", "n" * 65):
        with pytest.raises(UserError, match="is no name of 1 to 64 characters"):
            make_keys(tmp_path, [], [name], 30, renew=False)


def test_a_second_process_of_a_client_takes_the_place_of_the_first() -> None:
    with GrpcLink("127.0.0.1:0", None, 10.0) as link, client(link, doubled) as first:
        until(link.connected)
        with client(link, doubled) as second:
            until(lambda: first)
            assert isinstance(first[0], UserError)
            assert "a newer process of client 'a' has replaced this one" in str(first[0])
            ((_, reply),) = link.ask({0: request()})
            assert reply is not None
            assert not second


def test_a_client_cannot_answer_under_the_name_of_another(folder: Path) -> None:
    def other(request: Parcel) -> Parcel:
        return Parcel({"name": "Ärzte", "n_train": 5}, {})

    clinic = folder / "clients" / "clinic 3"
    with GrpcLink("127.0.0.1:0", folder / "server", 10.0) as link, client(link, other, "Ärzte", clinic):
        until(link.connected)
        ((_, reply),) = link.ask({0: request()})
        assert reply is not None
        assert reply.facts == {"error": "a client with the certificate of 'clinic 3' gave another name"}


def test_a_second_server_at_a_port_is_refused() -> None:
    with GrpcLink("127.0.0.1:0", None, 10.0) as link, pytest.raises(UserError, match="cannot listen at"):
        GrpcLink(f"127.0.0.1:{link.port}", None, 10.0)


def test_a_client_that_works_longer_than_it_may_be_away_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(request: Parcel) -> Parcel:
        time.sleep(4.0)
        return doubled(request)

    with GrpcLink("127.0.0.1:0", None, 30.0) as link, client(link, slow):
        until(link.connected)
        ((_, reply),) = link.ask({0: request()})
        assert reply is not None
        assert reply.facts == {"was": "train"}


def test_a_client_that_goes_or_is_late_does_not_answer_and_a_late_reply_is_dropped() -> None:
    go = threading.Event()

    def stuck(request: Parcel) -> Parcel:
        if request.facts["round"] == 0:
            go.wait(10.0)
        return Parcel({"round": request.facts["round"]}, {})

    def gone(request: Parcel) -> Parcel:
        raise Stopped

    with GrpcLink("127.0.0.1:0", None, 1.0) as link, client(link, stuck, "stuck"), client(link, gone, "gone"):
        until(lambda: len(link.connected()) == 2)
        assert [reply for _, reply in link.ask({node: request(round=0) for node in (0, 1)})] == [None, None]
        stuck_one = next(node for node in (0, 1) if link.name(node) == "stuck")
        until(lambda: link.connected() == [stuck_one])
        go.set()
        ((_, reply),) = link.ask({stuck_one: request(round=1)})
        assert reply is not None
        assert reply.facts == {"round": 1}


def test_a_client_outlives_its_server_and_brings_its_reply_to_nobody(folder: Path) -> None:
    keys = folder / "clients" / "clinic 3"
    with GrpcLink("127.0.0.1:0", folder / "server", 10.0) as link:
        port = link.port
        context = client(link, doubled, "?", keys)
        said = context.__enter__()
        until(link.connected)
    until(lambda: said)
    assert "does not answer" in said[0]
    with GrpcLink(f"127.0.0.1:{port}", folder / "server", 10.0) as again:
        until(again.connected)
        ((_, reply),) = again.ask({0: request()})
        assert reply is not None
        assert said[-1] == f"the server 127.0.0.1:{port} is there again"


@pytest.mark.parametrize("content", [b"junk", b"\xff" * 40, bytes(8), (2**60).to_bytes(8, "little") + b"{}"])
def test_an_unreadable_reply_is_an_error_of_its_client(content: bytes) -> None:
    class Junk:
        def to_bytes(self) -> bytes:
            return content

    with GrpcLink("127.0.0.1:0", None, 10.0) as link, client(link, lambda request: Junk()):  # type: ignore[arg-type,return-value]
        until(link.connected)
        ((_, reply),) = link.ask({0: request()})
        assert reply is not None
        assert "unreadable" in reply.facts["error"]


def test_a_request_is_sent_again_to_a_client_that_was_killed_while_it_worked() -> None:
    with GrpcLink("127.0.0.1:0", None, 10.0) as link:
        with grpc.insecure_channel(f"127.0.0.1:{link.port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/Next")
            metadata = (("name", b"a".hex()), ("session", "killed"))
            fetched = call.future(b"", timeout=30.0, metadata=metadata)
            until(link.connected)
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.extend(link.ask({0: request()})))
            thread.start()
            assert Parcel.from_bytes(fetched.result()[8:]).facts == {"kind": "train"}
        with client(link, doubled):
            thread.join()
        assert found[0][1].facts == {"was": "train"}


def test_a_flower_app_that_somebody_submits_runs_nowhere(folder: Path, tmp_path: Path) -> None:
    """Who has the authority's certificate, and reaches the port, cannot have code run on the server or on clients."""
    pytest.importorskip("flwr", reason="submits a Flower app")
    app, home, ran = tmp_path / "app", tmp_path / "home", tmp_path / "ran"
    for place in (app / "evil", home):
        place.mkdir(parents=True)
    (app / "pyproject.toml").write_text(
        '[project]\nname = "evil"\nversion = "1.0.0"\nlicense = "Apache-2.0"\n[tool.flwr.app]\npublisher = "me"\n'
        '[tool.flwr.app.components]\nserverapp = "evil.app:server"\nclientapp = "evil.app:client"\n'
    )
    code = "from flwr.clientapp import ClientApp\nfrom flwr.serverapp import ServerApp\n"
    code += "server = ServerApp()\nclient = ClientApp()\n"
    (app / "evil" / "__init__.py").touch()
    (app / "evil" / "app.py").write_text(f"open({str(ran)!r}, 'w')\n{code}")
    ours = folder / "clients" / "clinic 3"
    with GrpcLink("127.0.0.1:0", folder / "server", 10.0) as link, client(link, doubled, "?", ours):
        until(link.connected)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "s"\n[superlink.s]\naddress = "127.0.0.1:{link.port}"\n'
            f'root-certificates = "{ours / "ca.pem"}"\n'
        )
        command = [str(Path(sys.executable).with_name("flwr")), "run", str(app), "s"]
        environment = os.environ | {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
        submitted = subprocess.run(command, env=environment, capture_output=True, timeout=100, check=False)
        assert submitted.returncode != 0
        said = " ".join((submitted.stdout + submitted.stderr).decode().split())
        assert "Connection to the SuperLink is unavailable" in said  # the app itself is fine
        assert link.ask({0: request()})
    assert not ran.exists()
