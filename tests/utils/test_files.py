"""What a command says of the folder that it works in, and the folder of caches."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedlab_runner import train
from fedlab_runner.report import cli as report
from fedlab_runner.report import wandb_workspace
from fedlab_runner.tracking.recorder import METRICS
from fedlab_runner.utils.attempt import NOTE_FILE, Attempt
from fedlab_runner.utils.files import open_own, user_cache, write_text_atomically
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


@pytest.mark.parametrize(("mask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_a_file_of_a_run_is_for_those_whom_the_users_mask_allows(mask: int, mode: int, tmp_path: Path) -> None:
    """With 002 a group shares its runs: another one of it may continue them."""
    before = os.umask(mask)
    try:
        os.close(open_own(tmp_path / METRICS, os.O_RDWR | os.O_CREAT))
        write_text_atomically(tmp_path / "summary.json", "{}")
        with Attempt(tmp_path, list):
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys((METRICS, "summary.json", NOTE_FILE), mode)
