"""Keys and passwords: nothing that a run writes or prints holds them."""

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from fedem_lightning.records.secrets import hide_in_overrides, hide_in_text, hide_in_tree, is_secret
from fedem_lightning.run.failures import unexpected
from fedem_lightning.run.job_folders import resume_command, run_command
from helpers.commands import TINY, call

pytestmark = pytest.mark.fast

SECRET = "hf-12345"
SECRETS = (
    *("api_key", "apikey", "apiKey", "API_KEY", "x-api-key", "wandb_key", "wandb_api_key", "WANDB_API_KEY", "hub_key"),
    *("secret_key", "secretKey", "private_key", "privateKey", "access_key", "AWS_SECRET_ACCESS_KEY", "account_key"),
    *("AccountKey", "ssh_key", "signing_key", "token", "hub_token", "access_token", "accessToken", "accesstoken"),
    *(
        "HF_TOKEN",
        "tokens",
        "secret",
        "secrets",
        "client_secret",
        "clientSecret",
        "password",
        "passwords",
        "db_password",
    ),
    *("PASSWORD", "passwd", "passphrase", "key_passphrase", "pwd", "userPwd", "auth", "basic_auth"),
    *("authorization", "bearer", "credential", "credentials"),
)
OTHERS = (
    *("n_tokens", "max_tokens", "tokens_per_sample", "token_size", "tokenizer", "token.size", "author", "authors"),
    *("authority", "key", "keys", "algorithm.key", "aggregation.key", "sort_key", "label_key", "client_key", "monkey"),
    *("passwords_file", "password_length", "passes", "compass", "secretary", "bearing", "pwd_length", "seed", "lr"),
)
VALUES = (
    *("Authorization: Bearer {}", "Authorization: Basic {}", "authorization=Bearer {}", "Bearer {}", "bearer {}"),
    *("https://h.net/a?sig={}", "https://h.net/a?sv=2022&sig={}&se=3", "https://h.net/?X-Amz-Signature={}"),
    *("https://h.net/?X-Amz-Credential={}&x=1", "https://h.net/?X-Amz-Security-Token={}", "https://h.net/?key={}"),
    *("https://h.net/?X-Goog-Signature={}", "https://h.net/?AWSAccessKeyId={}", "https://h.net/?access_token={}"),
    *("https://h.net/cb#access_token={}", "postgresql://me:{}@host/db", "https://{}@host", "https://me:a@{}@host/x"),
    *(
        "tool --password {}",
        "tool --password={}",
        "tool --db-password '{}'",
        "tool --token {} --lr 0.1",
        "-password {}",
    ),
    *("[--password, {}]", "['--api-key', '{}']", "Server=x;Password={};User=y", "AccountKey={}==;A=x"),
    *("{{api_key: {}}}", "{{api_key: {} b}}", "{{'api_key':'a\\'{}'}}", '{{"pwd": "a {}"}}', "{{a: {{secret: {}}}}}"),
    *(
        "{{tokens: [a, {}]}}",
        "{{tokens: [[a],[{}]]}}",
        "{{credentials: {{user: {}}}}}",
        "[{{token: x}}, {{token: {}}}]",
    ),
    *("password: ${{oc.env:X,{}}}", "wandb_key = {}", "accessToken:{}", "X-Api-Key: {}"),
)
HARMLESS = (
    *("the tokens: three", "n_tokens: 5, tokens=[1, 2]", "token=3", "token: 1e-05", "auth=true", "{auth: null}"),
    *("author=Marfoq", "keys: [a, b]", "monkey=3", "aggregation.key=7", "multi-token models", "a --tokenizer bpe"),
    *(
        "http://a/b@c",
        "http://a?x=1&design=2",
        "me@host",
        "password: ${oc.env:X}",
        "forbearance of news",
        "tokens of a",
    ),
)


@pytest.mark.parametrize("prefix", ["", "logger.wandb.", "a.b-c."])
@pytest.mark.parametrize("key", SECRETS)
def test_keys_of_secrets(key: str, prefix: str) -> None:
    assert is_secret(prefix + key, SECRET)
    assert hide_in_overrides([f"++{prefix}{key}={SECRET}"]) == [f"++{prefix}{key}=HIDDEN"]
    assert hide_in_tree({key: SECRET, "a": [{key: [SECRET]}]}) == {key: "HIDDEN", "a": [{key: ["HIDDEN"]}]}
    assert SECRET not in run_command([f"{prefix}{key}={SECRET}"]) + resume_command(Path("out"), [f"{key}={SECRET}"])


@pytest.mark.parametrize("key", OTHERS)
def test_keys_of_other_things(key: str) -> None:
    assert not is_secret(key)
    for value in (3, 0.5, "0.5", [1, 2], None, True, *(() if "token" in key else ("abc", "Ünal, O."))):
        assert hide_in_tree({key: value}) == {key: value}
    assert hide_in_overrides([f"{key}=3", f"+{key}=[1, 2]", f"~{key}"]) == [f"{key}=3", f"+{key}=[1, 2]", f"~{key}"]


def test_keys_below_those_of_secrets() -> None:
    tree = {"secrets": {"hf": SECRET, "n": None}, "credentials": {"user": SECRET}, "api_key": {"value": SECRET}}
    assert SECRET not in str(hide_in_tree(tree))
    assert hide_in_overrides([f"+secrets.hf={SECRET}"]) == ["+secrets.hf=HIDDEN"]


@pytest.mark.parametrize("value", VALUES)
def test_values_that_hold_secrets(value: str) -> None:
    given = value.format(SECRET)
    for shown in (hide_in_text(given), *hide_in_overrides([f"+x.note={given}"]), str(hide_in_tree({"a": [given]}))):
        assert SECRET not in shown
        assert "HIDDEN" in shown


@pytest.mark.parametrize("value", HARMLESS)
def test_values_that_hold_none(value: str) -> None:
    assert hide_in_text(value) == value
    assert hide_in_tree({"note": [value]}) == {"note": [value]}


def test_options_in_lists() -> None:
    assert hide_in_tree({"args": ["--password", SECRET, "--lr", "0.1"]}) == {
        "args": ["--password", "HIDDEN", "--lr", "0.1"]
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "around", ["{}", "a {}, b", "{{x: {}}}", "[{}]", "'{}'", 'run "{}" now', "x\n{}\ny", "a={};b=c"]
)
def test_secrets_in_any_surrounding(around: str) -> None:
    pairs = [f"{key}{sign}{SECRET}" for key, sign in itertools.product(SECRETS, ("=", ": ", " = ")) if key != "tokens"]
    for given in (*pairs, *(value.format(SECRET) for value in VALUES)):
        assert SECRET not in hide_in_text(around.format(given)), given


@pytest.mark.parametrize(
    "piece",
    ["a", "token=[", "token='", "token='a token=\"", "token=a ", "--", "-a", "?a", "://a", "tokens=[", "Bearer ", "[{"],
)
def test_long_texts_are_read_at_once(piece: str) -> None:
    start = time.perf_counter()
    hide_in_text(piece * (200_000 // len(piece)))
    assert time.perf_counter() - start < 2


def test_other_overrides_stay_as_typed() -> None:
    typed = [
        "seed=3",
        "algorithm=fedem",
        "~callbacks.live",
        "dataset.path='a=b c'",
        "+n_tokens=[1, 2]",
        "x=http://a/b@c",
    ]
    assert hide_in_overrides(typed) == typed


def test_trees_keep_what_names_a_variable_alone() -> None:
    tree = {"a": [{"token": SECRET}], "password": None, "secret": "${oc.env:X}", "token": "${oc.env:X,default}", "n": 3}
    assert hide_in_tree(tree) == {
        "a": [{"token": "HIDDEN"}],
        "password": None,
        "secret": "${oc.env:X}",
        "token": "HIDDEN",
        "n": 3,
    }


def test_no_file_of_a_run_holds_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    given = [f"+local_training.hub={{api_key: {SECRET}}}", "+local_training.password=${oc.env:MY_SECRET}"]
    given += ["+local_training.note=${oc.env:MY_SECRET}", "+local_training.copy=${local_training.hub.api_key}"]
    assert call(tmp_path, monkeypatch, *TINY, *given, "trainer.max_epochs=1", "run_dir=out") == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "config.yaml" for path in written)
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    typed: Any = OmegaConf.to_container(OmegaConf.load(tmp_path / "out" / ".hydra" / "overrides.yaml"))
    assert "+local_training.note=${oc.env:MY_SECRET}" in typed
    assert call(tmp_path, monkeypatch, *TINY, *given, "trainer.max_epochs=2", "run_dir=out", "ckpt_path=auto") == 0


def test_a_sweep_writes_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    given = [f"+local_training.api_key={SECRET}", "+local_training.note=${oc.env:MY_SECRET}"]
    given += [f"+local_training.token={SECRET}a,{SECRET}b"]
    words = ["-m", *TINY, *given, "trainer.max_epochs=1", "run_dir=out"]
    assert call(tmp_path, monkeypatch, *words) == 0
    assert SECRET not in " ".join(map(str, tmp_path.rglob("*")))
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len([path for path in written if path.name == "results.json"]) == 2
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []


def test_no_trace_of_an_error_holds_a_secret(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    kept = tmp_path / "kept"
    kept.write_text("mine")
    (tmp_path / "error.txt").symlink_to(kept)
    unexpected(RuntimeError(f"GET https://h.net/?sig={SECRET}: password={SECRET}"), tmp_path)
    assert "HIDDEN" in (tmp_path / "error.txt").read_text()
    assert SECRET not in (tmp_path / "error.txt").read_text()
    assert kept.read_text() == "mine"
