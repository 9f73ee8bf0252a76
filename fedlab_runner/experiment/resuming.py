"""Going on from a checkpoint: that it is of this run, made by the code and of the examples that are here now."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedlab_runner.checkpoints.store import Checkpointing
from fedlab_runner.experiment.code_hash import Code, changed
from fedlab_runner.tracking.log_lines import FILE_ONLY
from fedlab_runner.utils import exhaustion as scarce
from fedlab_runner.utils.errors import RunFailed, UserError

_log = logging.getLogger(__name__)
STRANGE = "holds something else than the state of this run"
FAILED = "cannot be continued: a round that follows on it fails; it is not of this run, or the code has a fault"


def check_beginning(
    payload: Mapping[str, Any], checkpointing: Checkpointing, *, examples: str, code: Code, frozen: str
) -> None:
    """Raises UserError where a run began with other examples, other code or other frozen weights than these; a warning
    instead where `checkpointing` allows it. Older versions wrote down less.
    """
    if payload.get("examples", examples) != examples:
        what = "the examples, or which client has which, are not those that the run began with"
        if checkpointing.same_data:
            raise UserError(
                f"{what}: bring back the data set's files and the versions of the libraries, or set "
                "checkpoint.same_data=false to go on with these"
            )
        _log.warning("%s: it goes on with these", what)
    if (theirs := payload.get("code", code)) != code:
        what = f"the code is not that which the run began with (changed: {changed(theirs, code)})"
        if checkpointing.same_code:
            raise UserError(
                f"{what}: bring it back, delete the run's folder to start anew, or set checkpoint.same_code=false "
                "to go on with this"
            )
        _log.warning("%s: it goes on with this", what)
    if payload.get("frozen", frozen) != frozen:
        raise UserError(
            "the model's frozen weights are not those that the run began with: bring back the file of "
            "model.weights, or the library's version that has them, or give another hydra.run.dir"
        )


@contextmanager
def understood(round: int, what: str) -> Iterator[None]:
    """UserError where a whole checkpoint does not hold what this version would have written for this run: as it carries
    checksums, somebody made it. The log file has the traceback, as a fault of the program looks the same.
    """
    try:
        yield
    except (UserError, RunFailed):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if scarce.explain(error):
            raise
        _log.error("the checkpoint after round %d %s", round, what, exc_info=True, extra=FILE_ONLY)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(
            f"the checkpoint after round {round} {what} ({reason}; train.log has more): delete it, or give another "
            "hydra.run.dir"
        ) from error
