"""Signals: where Python or a library would lose the exception, it is raised a moment later."""

import importlib
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


@pytest.mark.parametrize("moment", ["start", "end"])
def test_a_command_that_starts_or_ends_prints_no_traceback(moment: str, tmp_path: Path) -> None:
    """Where Python's own handler would raise KeyboardInterrupt: while modules are imported, and at the end."""
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "hydra.py").write_text(stop if moment == "start" else "raise SystemExit(0)")
    code = f"import sys; sys.path.insert(0, '.'); import atexit; atexit.register(lambda: exec({stop!r})); "
    code += "from fedlab_runner.__main__ import command; command()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ended.returncode == -signal.SIGINT and ended.stderr == "", ended
