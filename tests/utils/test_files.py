"""What a command says of the folder that it works in, and the folder of caches."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedlab_runner import train
from fedlab_runner.report import cli as report
from fedlab_runner.report import wandb_workspace
from fedlab_runner.utils.files import user_cache
from fedlab_runner.verify import cli as verify


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (train.main, ["--cfg", "job"]),
        (train.main, ["-m", "seed=0,1"]),
        (report.main, ["/"]),
        (verify.main, ["bundle.zip"]),
        (wandb_workspace.main, []),
    ],
)
def test_a_removed_working_folder_is_one_line(
    main: Callable[[], int],
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "argv", ["a command", *arguments])
    assert main() == 2
    assert capsys.readouterr() == ("", "error: the working folder was removed: cd to an existing one\n")


def test_a_user_without_a_home_folder_has_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container without HOME whose user has no entry: Python then leaves `~` as it is."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", str)
    assert user_cache() == Path("/.cache/fedlab")
    monkeypatch.setattr(os.path, "expanduser", lambda path: "/home/me")
    assert user_cache() == Path("/home/me/.cache/fedlab")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert user_cache() == Path("/cache/fedlab")
