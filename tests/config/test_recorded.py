"""When the config in a run's folder is that of a command."""

from pathlib import Path
from typing import Any

import pytest

from fedlab_runner.config.recorded import other_fingerprint, same_config
from fedlab_runner.utils import untrusted

CONFIG: dict[str, Any] = {"std": 5.0, "held_out_clients": 1, "drop": True, "some": [1, None, "a"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("std: 5.0\nheld_out_clients: 1\ndrop: true\nsome: [1, null, a]\n")
    return tmp_path


@pytest.mark.parametrize("given", [{}, {"std": 5}])
def test_a_recorded_config_needs_no_check(given: dict[str, Any], folder: Path) -> None:
    assert same_config(folder, CONFIG | given) == CONFIG


@pytest.mark.parametrize("given", [{"held_out_clients": 1.0}, {"drop": 1}, {"some": [1.0, None, "a"]}, {"more": 0}])
def test_a_value_of_another_type_needs_a_check(given: dict[str, Any], folder: Path) -> None:
    """A number and a share of clients may be equal."""
    assert same_config(folder, CONFIG | given) is None


def test_a_config_is_read_again_only_when_it_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start of a finished run needs it several times."""
    read: list[Path] = []
    real = untrusted.read_yaml
    monkeypatch.setattr(untrusted, "read_yaml", lambda path: [read.append(path), real(path)][1])
    monkeypatch.chdir(folder.parent)  # Hydra's folders are relative
    assert same_config(Path(folder.name), CONFIG) and other_fingerprint(folder, CONFIG) is None and len(read) == 1
    (folder / "config.yaml").write_text("std: 6\n")
    assert same_config(folder, CONFIG) is None and len(read) == 2


def test_a_fingerprint_is_that_of_the_run_id(folder: Path) -> None:
    """A float equals an int there; a run with nonfinite=stop may be continued with another policy."""
    assert other_fingerprint(folder, CONFIG | {"held_out_clients": 1.0}) is None
    assert other_fingerprint(folder, CONFIG | {"drop": 1}) == CONFIG == other_fingerprint(folder, None)
    with (folder / "config.yaml").open("a") as file:
        file.write("nonfinite: stop\n")
    assert other_fingerprint(folder, CONFIG | {"nonfinite": "drop"}) is None
