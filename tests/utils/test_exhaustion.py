"""A run that has used up memory, processes, threads or files ends in one line with the remedy, and exit code 1."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedlab_runner import train
from fedlab_runner.config.explain import explain, is_of_run
from fedlab_runner.utils.attempt import next_start
from tests.helpers.crash import FAMILIES, Template

HUGE = 10**15


def _raise(error: BaseException) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


SHORT = {
    "torch": (lambda: torch.empty(HUGE), "memory"),
    "numpy": (lambda: np.empty(HUGE), "memory"),
    "python": (lambda: bytearray(HUGE), "memory"),
    "a GPU": (_raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")), "memory"),
    "the system": (_raise(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))), "memory"),
    "a library": (_raise(ImportError("libtorch_cpu.so: failed to map segment from shared object")), "memory"),
    "a thread": (_raise(RuntimeError("can't start new thread")), "processes or threads"),
    "a fork": (_raise(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))), "processes or threads"),
    "a file": (_raise(OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/a/file")), "open files"),
}


def shown(fail: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and what is printed where a run fails, and where that is the cause of another error."""
    found = []
    for wrapped in (False, True):
        try:
            try:
                fail()
            except BaseException as error:
                if not wrapped:
                    raise
                raise ValueError("of a library") from error
        except Exception as error:
            found.append((train._report(error, []), capsys.readouterr().err))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("where", SHORT)
def test_a_shortage_is_one_line(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    fail, what = SHORT[where]
    code, said = shown(fail, capsys)
    assert code == 1 and said.count("\n") == 1
    assert said.startswith(f"error: the machine has run out of {what}") and said.endswith(f"; {next_start()}\n")


def test_a_cache_without_code_is_no_lack_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """torch's line, of a folder on a file system from which no program may run."""
    words = "OSError: /c/k.main.so: failed to map segment from shared object.  The most common reason this may occur"
    code, said = shown(_raise(RuntimeError(f"{words} is if the /c folder is mounted with noexec.\n\nMore.")), capsys)
    assert code == 1 and said.startswith("error: compiled code cannot be loaded (OSError: /c/k.main.so: failed to map")
    assert said.endswith(f": name another folder in TORCHINDUCTOR_CACHE_DIR; {next_start()}\n")


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.ELOOP])
def test_a_path_that_cannot_be_is_one_line(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = shown(_raise(OSError(number, os.strerror(number), "outputs/x")), capsys)
    assert code == 1 and said.startswith(f"error: outputs/x: {os.strerror(number)}: give another folder (")


def test_other_errors_are_bugs() -> None:
    for error in (RuntimeError("size mismatch"), ImportError("no module"), OSError(errno.EINVAL, "invalid")):
        assert explain(error, []) is None and not is_of_run(error)


def test_a_killed_worker_of_joblib_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    class TerminatedWorkerError(RuntimeError):
        """As in joblib.externals.loky."""

    words = (
        "A worker process managed by the executor was unexpectedly terminated. This could be caused by much.\n\nThe "
    )
    code, said = shown(_raise(TerminatedWorkerError(f"{words}exit codes of the workers are {{SIGKILL(-9)}}")), capsys)
    assert code == 1 and said.startswith("error: a worker process of the sweep was killed (SIGKILL(-9)), its jobs with")


def test_a_run_that_gets_no_more_memory_ends_in_one_line(template: Template, tmp_path: Path) -> None:
    """The system refuses it, wherever it is asked for: at each of these limits somewhere else."""
    refused = 0
    for more in (0, 4, 16):
        code = f"""
import resource
from pathlib import Path
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + {more} * 2**20,) * 2)
"""
        wide = ("dataset.image_size=32", "dataset.num_train=2000", "model=mlp", "model.hidden=[1000]")
        ended = template.run(tmp_path / str(more), *FAMILIES["synchronous"].split(), *wide, code=code)
        assert ended.status in (0, 2) and "Traceback" not in ended.said, (more, ended.said)
        refused += ended.status == 2 and "the machine has run out of memory" in ended.said
    assert refused
