"""Keeps own code from ending the process, which would look as if a run, or a whole sweep, were done."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedlab_runner.utils.errors import RunFailed


@contextmanager
def refused() -> Iterator[None]:
    """Turns SystemExit within the block into RunFailed, which names the line of the code that asked for the end.

    submitit's signal handler raises one wherever a run is that Slurm has put back into its queue: that job ends.
    """
    try:
        yield
    except SystemExit as end:
        frames = [(frame, line) for frame, line in traceback.walk_tb(end.__traceback__) if not _is_between(frame)]
        frame, line = frames[-1]
        if _package(frame) == "submitit":
            raise
        place = f"{frame.f_code.co_filename}, line {line},"
        raise RunFailed(
            f"{place} ends the program (sys.exit, code {end.code!r}): return there, or raise a UserError of one line"
        ) from end


def _is_between(frame: FrameType) -> bool:
    """Whether a frame only passes an exit on: one of the standard library, such as argparse's, or of W&B, which stands
    in the place of `sys.exit`.
    """
    return _package(frame) in {*sys.stdlib_module_names, "wandb"}


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]
