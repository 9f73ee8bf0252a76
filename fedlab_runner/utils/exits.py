"""Turns an exit that own code asks for, and submitit's end of a job, into one line of what happened."""

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedlab_runner.utils.attempt import next_start
from fedlab_runner.utils.errors import RunFailed


class _Ended(BaseException):
    """The end of a job by submitit's signal handler, whose error is the cause: no `except Exception` keeps it, such as
    that of a trial of executors or of torch's compiler.
    """


@contextmanager
def refused() -> Iterator[None]:
    """Turns SystemExit within the block into RunFailed, which names the line of the code that asked for the end: a run,
    or a whole sweep, would look as if it were done.

    Two pass. submitit's signal handler raises one wherever a run is that Slurm has put back into its queue: that job
    ends. This package raises one where the answer of a command cannot be printed (`streams.protected`).

    submitit's error for a job that is not put back becomes a RunFailed that says so.
    """
    try:
        with _passing():
            yield
    except SystemExit as end:
        frames = [(frame, line) for frame, line in traceback.walk_tb(end.__traceback__) if not _is_between(frame)]
        frame, line = frames[-1]
        if _package(frame) in ("submitit", "fedlab_runner"):
            raise
        place = f"{frame.f_code.co_filename}, line {line},"
        raise RunFailed(
            f"{place} ends the program (sys.exit, code {end.code!r}): return there, or raise a UserError of one line"
        ) from end
    except Exception as error:
        if not out_of_time(error):
            raise
        raise RunFailed(
            "the job timed out too many times: raise hydra.launcher.timeout_min or, with Slurm, "
            f"hydra.launcher.max_num_timeout; {next_start()}"
        ) from error


@contextmanager
def _passing() -> Iterator[None]:
    """Within the block no code keeps an error of submitit's signal handler; the end of the block raises the error."""
    before = signal.getsignal(signal.SIGUSR2)
    of_submitit = str(getattr(before, "__module__", "")).partition(".")[0] == "submitit"
    changes = of_submitit and threading.current_thread() is threading.main_thread()

    def handler(number: int, frame: FrameType | None) -> None:
        assert callable(before)
        try:
            before(number, frame)
        except Exception as error:
            raise _Ended from error

    if changes:
        signal.signal(signal.SIGUSR2, handler)
    try:
        yield
    except _Ended as end:
        assert end.__cause__ is not None
        raise end.__cause__ from None
    finally:
        if changes:
            signal.signal(signal.SIGUSR2, before)


def out_of_time(error: Exception) -> bool:
    """Whether the error is submitit's, whose signal handler raises it wherever the run is."""
    return type(error).__module__.partition(".")[0] == "submitit"


def _is_between(frame: FrameType) -> bool:
    """Whether a frame only passes an exit on: one of the standard library, such as argparse's, or of W&B, which stands
    in the place of `sys.exit`.
    """
    return _package(frame) in {*sys.stdlib_module_names, "wandb"}


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
