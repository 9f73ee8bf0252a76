"""What others do to a run's folder while it is at work: nothing is lost that memory has, nothing of theirs is written
over, and what is lost is said.
"""

import os
import sys
from pathlib import Path

import pytest

from fedlab_runner import train
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.tracking.jsonl import JsonLines
from fedlab_runner.tracking.log_lines import LogFile
from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.files import append_line, open_own, write_text_atomically
from tests.helpers.crash import FAMILIES, TINY, Template, results
from tests.helpers.in_process import own_handlers

RUN = FAMILIES["rows_scaffold"].split()
LONGER = "rounds=7"


@pytest.fixture(scope="module")
def whole(template: Template, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Of five rounds, and of seven."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    found = []
    for more in ((), (LONGER,)):
        ended = template.run(folder, *RUN, *more)
        assert ended.status == 0, ended.said
        found.append(results(folder))
    return found[0], found[1]


def meddling(round: int, what: str) -> str:
    """What a child executes before it begins: when `round` is recorded, `what` is done in the run's folder."""
    return f"""
import os, shutil
from pathlib import Path
from fedlab_runner.tracking.recorder import Recorder
log = Recorder.log
def meddle(self, round, *arguments):
    log(self, round, *arguments)
    folder = self._folder
    if round == {round}:
        {what}
Recorder.log = meddle
"""


REMOVED = {
    "metrics": "(folder / 'metrics.jsonl').unlink()",
    "metrics renamed": "(folder / 'metrics.jsonl').rename(folder / 'old')",
    "metrics cut off": "os.truncate(folder / 'metrics.jsonl', 0)",
    "metrics cut off in a line": "os.truncate(folder / 'metrics.jsonl', 50)",
    "metrics in an editor": "text = (folder / 'metrics.jsonl').read_bytes(); (folder / 'metrics.jsonl').unlink(); "
    "(folder / 'metrics.jsonl').write_bytes(text + b'more')",
    "metrics by a stranger": "os.close(os.open(folder / 'metrics.jsonl', os.O_TRUNC | os.O_WRONLY)); "
    "(folder / 'metrics.jsonl').write_bytes(b'x' * 900)",
    "timings": "(folder / 'timings.jsonl').unlink()",
    "checkpoints": "shutil.rmtree(folder / 'checkpoints', ignore_errors=True)",
    "client_state": "shutil.rmtree(folder / 'client_state')",
    "the config": "(folder / 'config.yaml').unlink()",
    "the commands": "(folder / 'commands.jsonl').unlink()",
    "the partition": "(folder / 'partition.csv').unlink()",
    "the lock": "(folder / '.lock').unlink()",
    "everything": "shutil.rmtree(folder)",
    "everything renamed": "folder.rename(folder.with_name('old'))",
    "everything but an empty folder": "shutil.rmtree(folder); folder.mkdir()",
}


@pytest.mark.parametrize(
    ("what", "round"),
    [
        pytest.param(what, round, marks=[pytest.mark.slow] * ((2 * i + j) % 4 > 0))
        for i, what in enumerate(REMOVED)
        for j, round in enumerate((3, 5))
    ],
)
def test_what_is_removed_is_written_anew(
    what: str, round: int, template: Template, whole: tuple[dict[str, bytes], ...], tmp_path: Path
) -> None:
    """In the middle, or after the last round; the same bytes, and the run can be continued to the same bytes.

    Each at one of the two times, which a slow test swaps.
    """
    folder = tmp_path / "run"
    ended = template.run(folder, *RUN, code=meddling(round, REMOVED[what]))
    assert ended.status == 0, ended.said
    if what != "checkpoints":  # these come again all the time
        assert "during the run: it is " in ended.said, ended.said
    assert results(folder) == whole[0]
    assert {"config.yaml", "commands.jsonl", "partition.csv", "timings.jsonl"} <= {p.name for p in folder.iterdir()}
    ended = template.run(folder, *RUN, LONGER)
    assert ended.status == 0 and "continues after round 5" in ended.said, ended.said
    assert results(folder) == whole[1]


def test_one_changed_byte_is_noticed_at_the_end(
    template: Template, whole: tuple[dict[str, bytes], ...], tmp_path: Path
) -> None:
    change = "f = (folder / 'metrics.jsonl').open('r+b'); f.seek(30); f.write(b'7'); f.close()"
    ended = template.run(tmp_path / "run", *RUN, code=meddling(4, change))
    assert ended.status == 0 and "metrics.jsonl was removed or changed" in ended.said
    assert results(tmp_path / "run") == whole[0]


TAKEN = {
    "another folder": "folder.rename(folder.with_name('old')); shutil.copytree(OTHER, folder)",
    "another folder without a lock": "folder.rename(folder.with_name('old')); shutil.copytree(OTHER, folder); "
    "(folder / '.lock').unlink()",
    "another lock": "(folder / '.lock').unlink(); (folder / '.lock').write_text('process 1 on another machine')",
}


@pytest.mark.parametrize("round", [3, 5])
@pytest.mark.parametrize("what", TAKEN)
def test_another_run_in_the_place_of_this_one_is_left_alone(
    what: str, round: int, template: Template, whole: object, tmp_path: Path
) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    assert template.run(other, *RUN, "seed=1").status == 0
    code = f"from pathlib import Path; OTHER = Path({str(other)!r})" + meddling(round, TAKEN[what])
    ended = template.run(folder, *RUN, code=code)
    line = ended.said.strip().splitlines()[-1]
    assert ended.status == 2 and "was removed during the run, and another is in its place" in line
    assert "Traceback" not in ended.said
    if what == "another lock":
        assert not (folder / "summary.json").exists()
    else:
        assert results(folder) == results(other)


@pytest.mark.parametrize("round", [3, 5])
def test_rows_that_are_cut_off_are_said(round: int, template: Template, whole: object, tmp_path: Path) -> None:
    cut = "[os.truncate(path, 4) for path in (folder / 'client_state').iterdir()]"
    ended = template.run(tmp_path / "run", *RUN, code=meddling(round, cut))
    line = ended.said.strip().splitlines()[-1]
    assert ended.status == 2 and ".bin" in line and "the same command continues from the last checkpoint" in line
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_lock_is_taken_anew_or_lost(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunLock(folder) as lock:
        lock.renew()
        (folder / ".lock").unlink()
        lock.renew()
        with pytest.raises(UserError, match="in use by process"), RunLock(folder):
            pass
        (folder / ".lock").unlink()
        with RunLock(folder), pytest.raises(RunFailed, match=r"\.lock was removed during the run"):
            lock.renew()


# What lies there before the run begins, and is not to be written through


def _append(path: Path) -> None:
    append_line(path, "a line")


def _open(path: Path) -> None:
    os.close(open_own(path, os.O_WRONLY | os.O_CREAT))


def _lock(path: Path) -> None:
    with RunLock(path.parent):
        pass


def _rows(path: Path) -> None:
    JsonLines(path).open(-1)


def _log(path: Path) -> None:
    LogFile(path).close()


WRITERS = {"commands.jsonl": _append, "rows.bin": _open, ".lock": _lock, "metrics.jsonl": _rows, "train.log": _log}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("kind", ["link", "dangling link", "loop", "pipe", "device"])
def test_nothing_is_written_through_a_link(name: str, kind: str, tmp_path: Path) -> None:
    """Pipes: nobody waits for the other end."""
    folder, target = tmp_path / "run", tmp_path / "precious"
    folder.mkdir()
    path = folder / name
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/null")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        if kind == "link":
            target.write_text("precious\n")
        path.symlink_to(target)
    with pytest.raises(
        UserError, match=rf"{name} is (a link or )?no plain file, and is not (written to|read): delete it"
    ):
        WRITERS[name](path)
    assert target.read_text() == "precious\n" if kind == "link" else not target.exists()


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_with_another_name_keeps_its_content_there(name: str, tmp_path: Path) -> None:
    """As a backup by hard links has it."""
    folder, backup = tmp_path / "run", tmp_path / "backup"
    folder.mkdir()
    backup.write_text("precious\n")
    os.link(backup, folder / name)
    WRITERS[name](folder / name)
    if name == "rows.bin":
        (folder / name).write_text("x")  # what is opened is a copy
    assert backup.read_text() == "precious\n"


def test_a_whole_run_writes_through_no_link(
    template: Template, whole: tuple[dict[str, bytes], ...], tmp_path: Path
) -> None:
    """Every file that a finished run has left, a link in its place: the run refuses, or puts its own file there."""
    first, target = tmp_path / "first", tmp_path / "precious"
    assert template.run(first, *RUN).status == 0
    names = [path.relative_to(first) for path in first.rglob("*") if path.is_file()]
    assert len(names) > 10
    for name in names:
        folder = tmp_path / "run"
        (folder / name).parent.mkdir(parents=True)
        target.write_text("precious\n")
        (folder / name).symlink_to(target)
        ended = template.run(folder, *RUN)
        assert target.read_text() == "precious\n", name
        if ended.status == 0:
            assert not (folder / name).is_symlink() and results(folder) == whole[0], name
        else:
            assert ended.status == 2 and "Traceback" not in ended.said, (name, ended.said)
        folder.rename(tmp_path / f"done{names.index(name)}")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_run_waits_for_no_pipe_and_no_device(
    kind: str, template: Template, whole: tuple[dict[str, bytes], ...], tmp_path: Path
) -> None:
    """In the place of each file that a run reads back: it refuses or puts its own there, and never stands still."""
    names = ("metrics.jsonl", "timings.jsonl", "summary.json", "pruned.json", "executor.json", "commands.jsonl")
    for name in (*names, ".lock", "checkpoints/round_000002.pt", "config.yaml", "client_state/rows_51_float32.bin"):
        folder = tmp_path / name.replace("/", "_")
        (folder / name).parent.mkdir(parents=True)
        os.mkfifo(folder / name) if kind == "pipe" else (folder / name).symlink_to("/dev/zero")
        ended = template.run(folder, *RUN)
        if ended.status == 0:
            assert results(folder) == whole[0], name
        else:
            assert ended.status == 2 and "no plain file" in ended.said, (name, ended.said)


def test_what_is_renamed_into_place_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    write_text_atomically(tmp_path / "link", "ours")
    assert (tmp_path / "precious").read_text() == "precious" and not (tmp_path / "link").is_symlink()


def test_the_config_that_hydra_composed_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra's own files, the log and the run's, by the command itself."""
    monkeypatch.setattr(sys, "argv", ["fedlab", *TINY, f"hydra.run.dir={tmp_path / 'run'}"])
    (tmp_path / "precious").write_text("precious")
    for name in ("config.yaml", "hydra.yaml", "overrides.yaml"):
        path = tmp_path / "run" / ".hydra" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(tmp_path / "precious")
    with own_handlers():
        assert train.main() == 0
    assert (tmp_path / "precious").read_text() == "precious"
    assert "seed=" not in (tmp_path / "run" / ".hydra" / "overrides.yaml").read_text()
    assert "\nalgorithm:\n" in (tmp_path / "run" / ".hydra" / "config.yaml").read_text()
