"""Holds what a source of server data gives against its contract."""

from torch import Tensor

from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.checks import check_labels
from fedlab_runner.datasets.examples import Data
from fedlab_runner.server_data.base import ServerDataSource
from fedlab_runner.utils.contract import in_words, require
from fedlab_runner.utils.errors import UserError

MAX_SHARED = 0.01  # of out-of-domain examples that the clients' data may have too
COMPARED = 256  # values of an example, at most, by which it is found in other data


def reserved(source: ServerDataSource, data: Data, seed: int) -> tuple[ServerData | None, Data]:
    """The server's examples, and the remaining data. Raises UserError where they break the contract of
    `ServerDataSource.reserve`, and where out-of-domain examples are the clients' own.
    """
    taken, rest = source.reserve(data, seed)
    if taken is not None:
        like = data.train.inputs
        same = taken.inputs.dtype == like.dtype and taken.inputs.shape[1:] == like.shape[1:]
        require(same, source, "reserve", f"inputs [n, ...] as the clients', {in_words(like)}", taken.inputs)
        check_labels(source, "reserve", "targets", taken.targets, len(taken.inputs), taken.num_classes)
        if not taken.in_domain:
            _check_shared(taken, data)
    return taken, rest


def _check_shared(taken: ServerData, data: Data) -> None:
    known = _keys(data.train.inputs) | _keys(data.test.inputs)
    mine = _keys(taken.inputs)
    if (shared := len(mine & known)) > MAX_SHARED * len(mine):
        raise UserError(
            f"server_data: {shared} of {len(mine)} different examples are training or test examples of "
            "the clients, and the server's must be others: choose another data set or folder"
        )


def _keys(inputs: Tensor) -> set[bytes]:
    values = inputs.flatten(1)
    return {row.tobytes() for row in values[:, :: -(-values.shape[1] // COMPARED)].contiguous().numpy()}
