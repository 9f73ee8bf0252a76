"""The terminal cannot stop a run, whatever becomes of it; what was asked to be printed does not get lost in silence."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.crash import TINY
from tests.helpers.paths import ROOT

# Everything that speaks: print, rich's lines and live bar, log lines, the handlers of other libraries, warnings, a
# library's own child, and at last Python itself, which flushes what is left.
WORK = """
import logging, subprocess, sys, warnings
from pathlib import Path
from rich import get_console
from rich.progress import Progress
from fedlab_runner.utils import streams
from fedlab_runner.tracking.log_lines import LineHandler

@streams.protected()
def main():
    streams.make_optional()
    log = logging.getLogger("work")
    for handler in (LineHandler(), logging.StreamHandler(sys.stdout), logging.StreamHandler()):
        log.addHandler(handler)
    with Progress(console=get_console()) as bar:
        task = bar.add_task("\\u2588 on \\u00e4", total=40)
        for number in range(40):
            bar.update(task, advance=1)
            bar.refresh()
            log.warning("line %d: \\u201c\\u00e4\\u201d %s", number, "x" * 3000)
            print("printed \\u2714", number)
            print("on the other", file=sys.stderr)
            warnings.warn(f"number {number}")
    subprocess.run(["true"], check=True)
    descriptor = open("new", "w")  # takes the number of nothing that was closed
    assert descriptor.fileno() > 2
    streams.make_optional()  # the next job of a sweep
    print("the end")
    Path("done").touch()
    return 7

sys.exit(main())
"""


def closed(*descriptors: int) -> Callable[[], None]:
    return lambda: [os.close(each) for each in descriptors] and None


def broken() -> int:
    """The end to write to of a pipe whose reader is gone."""
    readable, writable = os.pipe()
    os.close(readable)
    return writable


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def gone_pty() -> int:
    """A terminal whose window is closed."""
    master, slave = os.openpty()
    os.close(master)
    return slave


def non_blocking() -> int:
    """A pipe that takes a part at a time, and is emptied slowly by somebody."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)

    def read_all() -> None:
        time.sleep(0.2)
        with open(readable, "rb") as file:
            file.read()

    threading.Thread(target=read_all).start()
    return writable


def work(folder: Path, stdout: Any, stderr: Any, close: tuple[int, ...] = (), **environment: str) -> tuple[int, str]:
    """The exit code, and what a whole stderr took."""
    root = str(ROOT)
    outs = [out() if callable(out) else out for out in (stdout, stderr)]
    process = subprocess.Popen(
        [sys.executable, "-c", WORK],
        stdout=outs[0],
        stderr=outs[1],
        cwd=folder,
        preexec_fn=closed(*close),
        env=os.environ | {"PYTHONPATH": root, "COLUMNS": "80"} | environment,
    )
    for out in outs:
        if out >= 0:
            os.close(out)
    _, said = process.communicate(timeout=60)
    return process.returncode, (said or b"").decode(errors="replace")


@pytest.mark.parametrize("stdout", [broken, full, gone_pty])
def test_a_lost_stdout_is_mentioned_once(stdout: Callable[[], int], tmp_path: Path) -> None:
    code, said = work(tmp_path, stdout, subprocess.PIPE)
    assert code == 7 and (tmp_path / "done").exists(), said
    reason = {broken: errno.EPIPE, full: errno.ENOSPC, gone_pty: errno.EIO}[stdout]
    line = f"warning: standard output cannot be written to ({os.strerror(reason)}): the run continues without it\n"
    assert said.count(line) == 1 and "Traceback" not in said and "Logging error" not in said
    assert "Exception ignored" not in said and said.count("on the other\n") == 40


@pytest.mark.parametrize(
    ("stdout", "stderr", "close"),
    [
        (subprocess.DEVNULL, broken, ()),
        (subprocess.DEVNULL, full, ()),
        (broken, broken, ()),
        (full, full, ()),
        (gone_pty, gone_pty, ()),
        (non_blocking, non_blocking, ()),
        (subprocess.DEVNULL, subprocess.DEVNULL, (0,)),
        (subprocess.DEVNULL, subprocess.DEVNULL, (1,)),
        (subprocess.DEVNULL, subprocess.DEVNULL, (2,)),
        (subprocess.DEVNULL, subprocess.DEVNULL, (0, 1, 2)),
        (broken, subprocess.DEVNULL, (0, 2)),
    ],
)
def test_no_stream_stops_the_work(stdout: Any, stderr: Any, close: tuple[int, ...], tmp_path: Path) -> None:
    code, _ = work(tmp_path, stdout, stderr, close)
    assert code == 7 and (tmp_path / "done").exists()
    assert (tmp_path / "new").read_bytes() == b"", "what was printed is in a file of the work"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_no_encoding_stops_the_work(encoding: str, tmp_path: Path) -> None:
    code, said = work(tmp_path, subprocess.DEVNULL, subprocess.PIPE, PYTHONIOENCODING=encoding)
    assert code == 7 and "Error" not in said, said


# What fedlab-verify prints while it computes a run again.
IN_A_RUN = """
from fedlab_runner.utils import exits, streams
with streams.protected(), exits.refused():
    print(flush=True)
"""
# Answers of other commands; the first takes less than a buffer.
OTHER_ANSWERS = ("-m", "fedlab_runner.report.cli", "--help"), ("-c", IN_A_RUN)


def command(folder: Path, *more: str, **how: Any) -> "subprocess.Popen[bytes]":
    run = [sys.executable, "-m", "fedlab_runner.train", *TINY, "threads=1", f"hydra.run.dir={folder}", *more]
    return subprocess.Popen(run, cwd=folder.parent, **how)


def test_a_pipe_that_is_closed_does_not_stop_a_run(tmp_path: Path) -> None:
    """As `fedlab ... 2>&1 | head -1`: the rest is in the run's folder."""
    process = command(tmp_path / "run", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None and process.stdout.readline()
    process.stdout.close()
    assert process.wait(120) == 0
    assert (tmp_path / "run" / "summary.json").exists()
    assert "round 5/5" in (tmp_path / "run" / "train.log").read_text()


def test_what_was_asked_for_does_not_get_lost_in_silence(tmp_path: Path) -> None:
    """No run: the answer is what is printed."""
    line = b"error: standard output: No space left on device: print to another place\n"
    with open("/dev/full", "w") as nowhere:
        process = command(tmp_path / "run", "--cfg", "job", stdout=nowhere, stderr=subprocess.PIPE)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (1, line)
        for options in OTHER_ANSWERS:
            ended = subprocess.run([sys.executable, *options], stdout=nowhere, stderr=subprocess.PIPE, check=False)
            assert (ended.returncode, ended.stderr) == (1, line), options
    pipe = broken()
    process = command(tmp_path / "run", "--cfg", "job", stdout=pipe, stderr=subprocess.PIPE)
    os.close(pipe)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b""), "the reader had enough"


def hang_up(folder: Path, *more: str, ignored: bool) -> tuple[int, int]:
    """A run in a window of its own that is closed in the middle; its exit code and the rounds before that."""
    master, slave = os.openpty()

    def prepare() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = command(folder, *more, stdin=slave, stdout=slave, stderr=slave, preexec_fn=prepare)
    os.close(slave)
    os.set_blocking(master, False)
    while process.poll() is None and rounds(folder) < 3:
        try:
            os.read(master, 65536)
        except BlockingIOError:
            time.sleep(0.01)
    done = rounds(folder)
    os.close(master)
    return process.wait(120), done


def rounds(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_window_that_is_closed_stops_a_run_after_a_checkpoint(tmp_path: Path) -> None:
    code, done = hang_up(tmp_path / "run", "rounds=1000000", "logger.progress=true", ignored=False)
    assert code == 128 + signal.SIGHUP and done >= 3
    newest = max((tmp_path / "run" / "checkpoints").glob("*.pt"))
    assert newest.name == f"round_{rounds(tmp_path / 'run') - 1:06d}.pt"


@pytest.mark.slow
def test_a_window_that_is_closed_does_not_stop_a_run_under_nohup(tmp_path: Path) -> None:
    code, done = hang_up(tmp_path / "run", "rounds=100", "logger.progress=true", ignored=True)
    assert code == 0 and done < 100, "it was not closed in the middle"
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_log_file_that_is_full_is_mentioned_once(tmp_path: Path) -> None:
    code = """
import logging, resource, sys
from fedlab_runner.tracking.log_lines import LogFile
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
log = logging.getLogger("work")
log.addHandler(LogFile("train.log"))
for _ in range(50):
    log.warning("a line of some length")
"""
    root = str(ROOT)
    environment = os.environ | {"PYTHONPATH": root}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    line = f"warning: {tmp_path}/train.log is cut off (File too large): the run continues\n"
    assert (ended.returncode, ended.stderr) == (0, line)
