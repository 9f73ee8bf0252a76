"""A process that trains a share of each cohort on a GPU of its own.

python -m fedlab_runner.executors._gpus.worker <connection> <process of the run> <device>
"""

import pickle
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from fedlab_runner.executors._blocks import Block
from fedlab_runner.executors._messages import Failed, Keep, receive, send
from fedlab_runner.executors._shares import ClientShare, trained, unpacked_family, unpacked_work
from fedlab_runner.utils.system import die_with_parent


class TrainShare(NamedTuple):
    """A share of a round's clients. Objects under numbers that are not `in_use` may be dropped."""

    job: bytes
    client_data: int
    family: int
    in_use: set[int]
    share: ClientShare
    block: Block | None  # the models of the cohort in the run's memory


class Trained(NamedTuple):
    """The losses and models of a share's clients."""

    losses: Any  # ndarray [k]
    models: Any  # ndarray [k, D]; None: the block has them


def serve(connection: Connection, device: torch.device) -> None:
    """Trains what is asked for until the connection is closed."""
    kept: dict[int, Any] = {}
    while True:
        asked = receive(connection)
        if isinstance(asked, Keep):
            is_family = isinstance(asked.packed, bytes)
            kept[asked.number] = (
                unpacked_family(asked.packed, device) if is_family else asked.packed.client_data(device)
            )
            continue
        kept = {number: thing for number, thing in kept.items() if number in asked.in_use}
        try:
            send(connection, _trained(asked, kept, device))
        except Exception as error:
            send(connection, Failed(_pickled(error)))


def _trained(asked: TrainShare, kept: dict[int, Any], device: torch.device) -> Trained:
    family = kept[asked.family]
    inner, whole = unpacked_work(asked.job, kept[asked.client_data], family, device)
    y, losses = trained(whole, inner, asked.share)
    if asked.block is None or (models := asked.block.models()) is None:
        return Trained(losses.cpu().numpy(), y.cpu().numpy())
    models[asked.share.rows] = y.cpu()
    return Trained(losses.cpu().numpy(), None)


def _pickled(error: Exception) -> bytes:
    with suppress(Exception):
        content = pickle.dumps(error)
        pickle.loads(content)
        return content
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))


def main() -> None:
    """Serves a run until it ends."""
    connection, parent, device = sys.argv[1:]
    die_with_parent(int(parent))
    torch.set_num_threads(1)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    with suppress(EOFError, OSError):  # the run has ended
        serve(Connection(int(connection)), torch.device(device))


if __name__ == "__main__":
    # Imported by its name, not run as `__main__`: messages must be of the classes that the run knows.
    from fedlab_runner.executors._gpus import worker

    worker.main()
