"""Keys and passwords: nothing that a run writes or prints holds them."""

from pathlib import Path

import pytest

from fedem_lightning.run.resuming import resume_command, run_command
from fedem_lightning.run.secrets import hide_in_overrides, hide_in_text, hide_in_tree, is_secret
from helpers.commands import TINY, call

pytestmark = pytest.mark.fast

SECRET = "hf-12345"


@pytest.mark.parametrize(
    "key", ["api_key", "logger.wandb.api_key", "WANDB_API_KEY", "hub.token", "db_password", "secret"]
)
def test_keys_of_secrets(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize("key", ["n_tokens", "token.size", "keys", "algorithm.key", "passwords_file", "seed"])
def test_keys_of_other_things(key: str) -> None:
    assert not is_secret(key)


@pytest.mark.parametrize(
    "override",
    [
        f"+logger.wandb.api_key={SECRET}",
        f"+logger.wandb={{project: x, api_key: {SECRET}}}",
        f"+logger.wandb={{'api_key':'{SECRET}'}}",
        f"+hub.token='{SECRET} and more'",
        f"logger.mlflow.tracking_uri=postgresql://me:{SECRET}@host/db",
        f"++a.b.PASSWORD={SECRET}",
    ],
)
def test_overrides_are_shown_without_secrets(override: str) -> None:
    (hidden,) = hide_in_overrides([override])
    assert SECRET not in hidden
    assert "HIDDEN" in hidden
    assert hidden.split("=")[0] == override.split("=")[0]
    assert SECRET not in run_command([override]) + resume_command(Path("out"), [override])


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
    assert hide_in_text("the tokens: three") == "the tokens: three"


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
    assert call(tmp_path, monkeypatch, *TINY, *given, "trainer.max_epochs=1", "run_dir=out") == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "config.yaml" for path in written)
    assert [path for path in written if SECRET.encode() in path.read_bytes()] == []
    assert call(tmp_path, monkeypatch, *TINY, *given, "trainer.max_epochs=2", "run_dir=out", "ckpt_path=auto") == 0
