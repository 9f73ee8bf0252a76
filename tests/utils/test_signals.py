"""Signals: where Python or a library would lose the exception, it is raised a moment later."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedlab_runner.utils import signals
from fedlab_runner.utils.errors import Interrupted

MODULE = """
import os, signal, time
for _ in range({times}):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.03)  # longer than until the exception is raised again
whole = True
"""
SWALLOWED = """
import sys
from fedlab_runner.utils import signals
with signals.raised():
    try:
        import stopped_while_imported
    except BaseException:
        print("swallowed")
    print(stopped_while_imported.whole)
"""


# A command with two processes: one that knows nothing of signals, and a run. Each says how it has ended.
WITH_CHILDREN = """
import subprocess, sys, time
from fedlab_runner.utils import signals
RUN = "from fedlab_runner.utils.signals import *\\nwith raised():\\n print(flush=True); signal.pause()"
try:
    with signals.raised():
        signals.keep_from_children()
        other = subprocess.Popen(["sleep", "60"])
        run = subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        run.stdout.readline()
        print(flush=True)
        while True:
            time.sleep(0.05)
except signals.Interrupted as stopped:
    print(stopped, run.communicate()[1].splitlines()[-1], other.poll(), sep=", ")
    other.kill()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a module that is sent a signal while it is imported."""
    (tmp_path / "stopped_while_imported.py").write_text(MODULE.format(times=1))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_import_is_completed_first(folder: Path) -> None:
    with pytest.raises(Interrupted), signals.raised():
        module = importlib.import_module("stopped_while_imported")
        assert module.whole
        time.sleep(10)
    del sys.modules["stopped_while_imported"]


def test_an_import_around_it_all_delays_nothing(folder: Path) -> None:
    """Of a user's module that runs experiments when it is imported."""
    (folder / "their_experiment.py").write_text(
        "import os, signal, time\n"
        "from fedlab_runner.utils import signals\n"
        "with signals.raised():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    raise AssertionError('too late')\n"
    )
    with pytest.raises(Interrupted):
        importlib.import_module("their_experiment")


def test_a_second_signal_ends_an_import_too(folder: Path) -> None:
    (folder / "stopped_while_imported.py").write_text(MODULE.format(times=1).replace("time.sleep(0.03)", "pass") * 2)
    ended = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, cwd=folder, timeout=60)
    assert ended.returncode == -signal.SIGTERM and ended.stdout == "", ended


@pytest.mark.parametrize(("times", "end"), [(1, "stopped by Ctrl-C"), (2, None)])
def test_a_command_with_children_ends_within_an_import_too(times: int, end: str | None, folder: Path) -> None:
    """Its main thread, in which the exception is raised again, blocks Ctrl-C."""
    (folder / "stopped_while_imported.py").write_text(MODULE.format(times=times).replace("SIGTERM", "SIGINT"))
    late = "signals.RERAISE_SECONDS = 5.0; " if times == 2 else ""  # after the second one
    code = SWALLOWED.replace("    try", f"    {late}signals.keep_from_children()\n    try")
    code += "    import time; time.sleep(1)\n"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=60)
    assert ended.stderr.endswith(f"{end}\n") if end else ended.returncode == -signal.SIGINT, ended


@pytest.mark.parametrize("moment", ["start", "end"])
def test_a_command_that_starts_or_ends_prints_no_traceback(moment: str, tmp_path: Path) -> None:
    """Where Python's own handler would raise KeyboardInterrupt: while modules are imported, and at the end."""
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "hydra.py").write_text(stop if moment == "start" else "raise SystemExit(0)")
    code = f"import sys; sys.path.insert(0, '.'); import atexit; atexit.register(lambda: exec({stop!r})); "
    code += "from fedlab_runner.__main__ import command; command()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ended.returncode == -signal.SIGINT and ended.stderr == "", ended


def test_ctrl_c_reaches_the_command_and_its_runs_but_nothing_between_them() -> None:
    """A terminal sends it to all of them. A launcher's process would end with a traceback, and its run with it."""
    start = [sys.executable, "-c", WITH_CHILDREN]
    with subprocess.Popen(start, stdout=subprocess.PIPE, text=True, start_new_session=True) as command:
        assert command.stdout is not None
        command.stdout.readline()
        os.killpg(command.pid, signal.SIGINT)
        *_, line = command.stdout.read().splitlines()
    assert line == "stopped by Ctrl-C, fedlab_runner.utils.errors.Interrupted: stopped by Ctrl-C, None"
