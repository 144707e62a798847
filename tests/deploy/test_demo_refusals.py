"""What `deploy demo` refuses, before it starts a process or makes a file."""

from pathlib import Path
from typing import Any

import pytest
from hydra.utils import get_class

from fedem_lightning.run.failures import user_message
from fedem_lightning.settings.shipped import choices
from helpers.commands import CONFIG_DIR
from helpers.runs import SMALL

demo = pytest.importorskip("fedem_lightning.deploy.demo", reason="needs the extra deploy")


class Started(Exception):
    """In place of the connection."""


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*given: object) -> None:
        raise Started

    monkeypatch.setattr(demo, "GrpcLink", start)


def demonstrate(folder: Path, *words: str, secure: bool = False) -> str | None:
    """The line of a refusal; None: it was about to start processes."""
    try:
        demo.demonstrate([*SMALL["synthetic"], "dataset.unseen_fraction=0", *words], folder, 5, 5.0, secure, [])
    except Started:
        assert (folder / "clients").is_dir()
        return None
    except Exception as error:
        assert not folder.exists()
        return user_message(error) or pytest.fail(repr(error))
    return None


def test_what_cannot_be_deployed_is_refused_before_any_process(tmp_path: Path) -> None:
    said = "algorithm: MOCHA relates the clients' tasks on the server, so it cannot be deployed"
    assert demonstrate(tmp_path / "a", "algorithm=mocha", "backbone=linear") == said
    words = ["algorithm=fedavg", "aggregation=median"]
    assert str(demonstrate(tmp_path / "a", *words, secure=True)).startswith("secure: expected FedAvg to need the mean")
    assert str(demonstrate(tmp_path / "a", "algorithm.batch_size=0")).startswith("algorithm.batch_size: expected")
    assert demonstrate(tmp_path / "b", *words) is None


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (
            ["algorithm=hypcluster"],
            "HypCluster starts at models of single clients, as algorithm.initialization=sampled",
        ),
        (["algorithm=fedem", "algorithm.initialization=farthest"], "FedEM starts at models of single clients, as"),
    ],
)
def test_a_start_at_clients_is_refused_with_the_key_and_the_value_that_works(
    words: list[str], name: str, tmp_path: Path
) -> None:
    line = str(demonstrate(tmp_path / "a", *words, "backbone=linear"))
    assert line.startswith(f"algorithm: {name}")
    assert line.endswith("(algorithm.initialization=random does not), so it cannot be deployed")
    assert demonstrate(tmp_path / "a", *words, "algorithm.initialization=random", "backbone=linear") is None


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", choices(CONFIG_DIR)["algorithm"])
def test_every_method_is_refused_at_once_or_can_be_deployed(algorithm: str, tmp_path: Path) -> None:
    target = next(
        line.partition(": ")[2].split()[0]
        for line in (CONFIG_DIR / "algorithm" / f"{algorithm}.yaml").read_text().splitlines()
        if line.startswith("_target_: ")
    )
    line = demonstrate(tmp_path / "a", f"algorithm={algorithm}", "backbone=mlp")
    kind: Any = get_class(target)
    start = "starts at models of single clients" in str(line)  # with its default options
    assert (line is not None) == bool(kind.facts.needs_one_machine or start), (
        line
    )  # agnostic and others ask for other data
