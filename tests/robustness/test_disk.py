"""A full disk, an error of the disk, a folder that may not be written to, a second process, a clock that jumps: one
line says what is wrong, and afterwards the same command ends in the same bytes.
"""

import errno
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedlab_runner import train
from fedlab_runner.experiment import lock
from fedlab_runner.experiment.lock import RunLock
from tests.helpers.crash import FAMILIES, TINY, Ended, Template, results

RUN = FAMILIES["rows_scaffold"].split()


@pytest.fixture(scope="module")
def whole(template: Template, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], Ended]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    ended = template.run(folder, *RUN)
    assert ended.status == 0, ended.said
    return results(folder), ended


def refusal(ended: Ended) -> str:
    """The one line with which a run ended."""
    assert ended.status == 2 and "Traceback" not in ended.said, ended.said
    return ended.said.strip().splitlines()[-1]


def finish(template: Template, folder: Path, expected: dict[str, bytes]) -> None:
    ended = template.run(folder, *RUN)
    assert ended.status == 0, ended.said
    assert results(folder) == expected and not list(folder.rglob("*.tmp"))


@pytest.mark.parametrize("count", [5, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("full", "No space left on device: make room; "),
        ("once", "Input/output error: check the disk; "),
    ],
)
def test_a_disk_that_refuses_at_a_point(
    act: str, words: str, count: int | None, template: Template, whole: tuple[dict[str, bytes], Ended], tmp_path: Path
) -> None:
    """From a point on (full), or at one (error): each of the points of a run, or some."""
    expected, ended = whole
    points = list(range(1, ended.points + 1))
    refused = 0
    for at in points if count is None else random.Random(act).sample(points, count):
        folder = tmp_path / f"run{at}"
        ended = template.run(folder, *RUN, at=at, act=act)
        how = f"{act} at {whole[1].labels[at - 1]}"
        if ended.status != 0:
            said = refusal(ended)
            saved = any(folder.glob("checkpoints/round_*.pt"))
            then = f"the same command {'continues from the last checkpoint' if saved else 'begins again'}"
            assert said.startswith(f"{folder}") and said.endswith(words + then), f"{how}: {ended.said}"
            refused += 1
        finish(template, folder, expected)
    assert refused
    print(f"\n{act}: {refused} refused")


def test_a_limit_on_the_length_of_files(
    template: Template, whole: tuple[dict[str, bytes], Ended], tmp_path: Path
) -> None:
    """The system itself refuses, in the middle of a line or of a checkpoint."""
    for limit in (700, 1500, 2500, 4000):
        folder = tmp_path / str(limit)
        code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY))"
        ended = template.run(folder, *RUN, code=code)
        assert "File too large" in refusal(ended), limit
        finish(template, folder, whole[0])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 96 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def test_a_real_file_system_that_is_full_then_read_only(
    small_disk: Path, template: Template, whole: tuple[dict[str, bytes], Ended]
) -> None:
    folder, ballast = small_disk / "run", small_disk / "ballast"
    folder.mkdir()
    for free in (8, 24, 36):
        ballast.write_bytes(bytes((92 - free) * 1024))
        ended = template.run(folder, *RUN)
        assert "No space left on device: make room" in refusal(ended), free
        ballast.unlink()
    remount(small_disk, "ro")
    ended = template.run(folder, *RUN)
    assert "Read-only file system: give a place that may be written to" in refusal(ended)
    remount(small_disk, "rw,size=1m")
    ended = template.run(folder, *RUN)
    assert ended.status == 0 and results(folder) == whole[0], ended.said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_of_somebody_else(template: Template, tmp_path: Path) -> None:
    ended = template.run(tmp_path / "run", *RUN, code="import os; os.setresgid(1, 1, 1); os.setresuid(1, 1, 1)")
    assert "Permission denied: give a place that may be written to, such as another folder (" in refusal(ended)


def test_a_second_process_is_refused_and_a_stale_lock_is_none(
    template: Template, whole: tuple[dict[str, bytes], Ended], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with RunLock(folder):
        assert f"{folder} is in use by process {os.getpid()} on " in refusal(template.run(folder, *RUN))
        assert sorted(path.name for path in folder.iterdir()) == [".lock"], "it wrote nothing"
    (folder / ".lock").write_text("process 1 on a machine that lost its power")
    finish(template, folder, whole[0])


def test_two_processes_at_once(template: Template, whole: tuple[dict[str, bytes], Ended], tmp_path: Path) -> None:
    """A second command in the middle of the first: at the end of each of its rounds."""
    code = f"""
import os
from pathlib import Path
from tests.helpers.composed import composed
from fedlab_runner.experiment.run import run_in
from fedlab_runner.checkpoints.store import CheckpointStore
FOLDER, CFG, save = Path({str(tmp_path / "run")!r}), composed(*{[*TINY, *RUN]!r}, small=False), CheckpointStore.save
def meanwhile(self, *arguments):
    child = os.fork()
    if child == 0:
        try:
            run_in(FOLDER, CFG)
        except Exception as error:
            print("SECOND", error, flush=True)
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    return save(self, *arguments)
CheckpointStore.save = meanwhile
"""
    ended = template.run(tmp_path / "run", *RUN, code=code)
    assert ended.status == 0, ended.said
    assert ended.said.count("SECOND") == 3 and ended.said.count("is in use by process") == 3
    assert results(tmp_path / "run") == whole[0]


def test_a_thousand_runs_of_one_process_leave_no_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[object] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **callbacks: registered.append(callbacks))
    for _ in range(1000):
        with RunLock(tmp_path):
            assert len(lock._held) == 1
    assert not registered and not lock._held


JUMPING = """
import os, random, time
jump = lambda: random.Random(int.from_bytes(os.urandom(4))).uniform(-1e9, 1e9)
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + jump()
time.time_ns = lambda: real_ns() + int(1e9 * jump())
"""


def test_a_clock_that_jumps(template: Template, whole: tuple[dict[str, bytes], Ended], tmp_path: Path) -> None:
    """Years to and fro at every look, files of the future: the clock on the wall decides nothing."""
    folder = tmp_path / "run"
    after_checkpoint = whole[1].labels.index("replace checkpoints/round_000002.pt") + 10
    for at in (30, after_checkpoint):
        assert template.run(folder, *RUN, at=at, code=JUMPING).status == -9
        for path in [folder, *folder.rglob("*")]:
            when = random.Random(path.name).choice((0, 4e9))
            os.utime(path, (when, when))
    ended = template.run(folder, *RUN, code=JUMPING)
    assert ended.status == 0 and "continues after round 2" in ended.said and results(folder) == whole[0]


def test_the_age_of_a_checkpoint_is_not_told_by_the_clock_that_jumps(template: Template, tmp_path: Path) -> None:
    """One of an hour is never due in a run of a second, only at its end."""
    rules = ("checkpoint.rounds=null", "checkpoint.seconds=3600")
    for name, code in (("still", ""), ("jumps", JUMPING)):
        ended = template.run(tmp_path / name, *RUN, *rules, code=code)
        assert ended.status == 0, ended.said
        written = [label for label in ended.labels if label.startswith("replace checkpoints/")]
        assert written == ["replace checkpoints/round_000005.pt"]


def test_an_error_of_the_disk_is_a_failed_run_and_no_wrong_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, words in ((errno.ENOSPC, "make room"), (errno.EROFS, "give a place"), (errno.EIO, "check the disk")):
        assert train._report(OSError(number, os.strerror(number), str(tmp_path / "x")), []) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {tmp_path}/x: {os.strerror(number)}: {words}")
