"""Checks, before a run continues from a checkpoint, that its config, its examples, delays and topology, its code and
its frozen weights are those of its beginning.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedlab_runner.checkpoints.store import Checkpointing, CheckpointStore, other_config
from fedlab_runner.config.recorded import other_fingerprint
from fedlab_runner.config.run_id import stopping
from fedlab_runner.experiment.code_hash import Code, changed
from fedlab_runner.tracking.log_lines import log_error_in_file
from fedlab_runner.utils import exhaustion, exits
from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.run_files import CONFIG, OTHER_FOLDER

_log = logging.getLogger(__name__)
STRANGE = "holds something else than the state of this run"  # a fault of a checkpoint, after its name in a message
# A fault of a checkpoint, after its name in a message.
FAILED = "cannot be continued: a round that follows on it fails; it is not of this run, or the code has a fault"


def check_folder(store: CheckpointStore, fingerprint: dict[str, Any], rounds: int) -> None:
    """Raises UserError if the store's folder is of another run, which this one would overwrite, or if the run has a
    checkpoint after more than `rounds` rounds. A config that cannot be read is no obstacle: the run writes it again.

    Where there are checkpoints, they and not the config decide with which `nonfinite` the run has gone so far: an
    attempt that ends before its first checkpoint leaves the config of its own policy.
    """
    folder, done = store.folder, store.rounds()
    theirs = other_fingerprint(folder, fingerprint)
    if theirs is not None and not (done and stopping(theirs) == stopping(fingerprint)):
        raise UserError(other_config(folder / CONFIG, theirs, fingerprint, folder))
    store.check(fingerprint, also=[stopping(fingerprint)])
    if max(done, default=0) > rounds:
        raise UserError(
            f"rounds must be >= {max(done)}, got {rounds}: the run in {folder} has gone on so far; or give "
            f"{OTHER_FOLDER}"
        )


def check_beginning(
    payload: Mapping[str, Any], checkpointing: Checkpointing, *, examples: str, code: Code, frozen: str
) -> None:
    """Raises UserError if the run of a checkpoint began with other examples, code or frozen weights than these.

    `examples` is a digest of the examples and of the delays or the topology. If `checkpointing` allows other examples
    or other code, the check only warns of them.
    """
    if payload["examples"] != examples:
        what = (
            "the examples, which client has which, the clients' delays, or their links, are not those that the run "
            "began with"
        )
        if checkpointing.same_data:
            raise UserError(
                f"{what}: bring back the data set's files, those of delay.path and topology.path, and the versions of "
                "the libraries, or set checkpoint.same_data=false to continue with these"
            )
        _log.warning("%s: the run continues with these", what)
    if (theirs := payload["code"]) != code:
        what = f"the code is not that which the run began with (changed: {changed(theirs, code)})"
        if checkpointing.same_code:
            raise UserError(
                f"{what}: bring it back, delete the run's folder to start again, or set checkpoint.same_code=false "
                "to continue with this"
            )
        _log.warning("%s: the run continues with the present code", what)
    if payload["frozen"] != frozen:
        raise UserError(
            "the model's frozen weights are not those that the run began with: bring back the file of "
            f"model.weights, or the library's version that has them, or give {OTHER_FOLDER}"
        )


@contextmanager
def understood(round: int, what: str) -> Iterator[None]:
    """Turns an error that a whole checkpoint causes within the block into a UserError of one line.

    The checksums of the file are right, so another program or version wrote it. The log file gets the traceback,
    because a fault of this program looks the same.
    """
    try:
        yield
    except (UserError, RunFailed):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if exhaustion.explain(error) or exits.out_of_time(error):
            raise
        file = log_error_in_file(f"the checkpoint after round {round} {what}", exc_info=True)
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        more = f"; {file} has more" if file else ""
        raise UserError(
            f"the checkpoint after round {round} {what} ({reason}{more}): delete it, or give {OTHER_FOLDER}"
        ) from error
