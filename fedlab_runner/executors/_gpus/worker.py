"""A process that trains a share of each cohort on a GPU of its own.

python -m fedlab_runner.executors._gpus.worker <connection> <process of the run> <device>
"""

import pickle
import sys
import traceback
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from fedlab_runner.executors import _lasting
from fedlab_runner.executors._blocks import Block
from fedlab_runner.executors._messages import Channel, Failed, Keep, channel, raised_in_worker
from fedlab_runner.executors._sending import loaded
from fedlab_runner.executors._shares import ClientShare, trained
from fedlab_runner.utils.system import die_with_parent
from fedlab_runner.utils.torch_settings import take_usual_settings


class TrainShare(NamedTuple):
    """A share of a round's clients. Objects under numbers that are not `in_use` may be dropped."""

    job: bytes
    lasting: list[int]  # the clients' data, the model family
    in_use: set[int]
    share: ClientShare
    block: Block | None  # the models of the cohort in the run's memory


class Trained(NamedTuple):
    """The losses and models of a share's clients."""

    losses: Any  # ndarray [k]
    models: Any  # ndarray [k, D]; None: the block has them


def serve(connection: Channel, device: torch.device) -> None:
    """Trains what is asked for until the connection is closed."""
    kept: dict[int, Any] = {}
    while True:
        asked = connection.receive()
        if isinstance(asked, Keep):
            kept[asked.number] = _lasting.unpacked(asked.packed, device)
            continue
        kept = {number: thing for number, thing in kept.items() if number in asked.in_use}
        try:
            connection.send(_trained(asked, kept, device))
        except Exception as error:
            connection.send(Failed(_pickled(error)))


def _trained(asked: TrainShare, kept: dict[int, Any], device: torch.device) -> Trained:
    inner, whole = loaded(asked.job, device, [kept[number] for number in asked.lasting])
    y, losses = trained(whole, inner, asked.share)
    if asked.block is None or (models := asked.block.models()) is None:
        return Trained(losses.cpu().numpy(), y.cpu().numpy())
    models[asked.share.rows] = y.cpu()
    return Trained(losses.cpu().numpy(), None)


def _pickled(error: Exception) -> bytes:
    trace = "".join(traceback.format_exception(error))
    with suppress(Exception):
        content = pickle.dumps(raised_in_worker(error, trace))
        pickle.loads(content)
        return content
    plain = RuntimeError(f"{type(error).__name__}: {error}")
    return pickle.dumps(raised_in_worker(plain, trace))


def main() -> None:
    """Serves a run until it ends."""
    connection, parent, device = sys.argv[1:]
    die_with_parent(int(parent))
    torch.set_num_threads(1)
    take_usual_settings()
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    with suppress(EOFError, OSError):  # the run has ended
        serve(channel(connection), torch.device(device))


if __name__ == "__main__":
    # Imported by its name, not run as `__main__`: messages must be of the classes that the run knows.
    from fedlab_runner.executors._gpus import worker

    worker.main()
