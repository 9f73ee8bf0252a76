"""Holds what a source of server data gives against its contract."""

from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.checks import check_labels
from fedlab_runner.datasets.examples import Data
from fedlab_runner.server_data.base import ServerDataSource
from fedlab_runner.utils.contract import in_words, require


def reserved(source: ServerDataSource, data: Data, seed: int) -> tuple[ServerData | None, Data]:
    """The server's examples, and the remaining data. Raises UserError where they break the contract of
    `ServerDataSource.reserve`.
    """
    taken, rest = source.reserve(data, seed)
    if taken is not None:
        like = data.train.inputs
        same = taken.inputs.dtype == like.dtype and taken.inputs.shape[1:] == like.shape[1:]
        require(same, source, "reserve", f"inputs [n, ...] as the clients', {in_words(like)}", taken.inputs)
        check_labels(source, "reserve", "targets", taken.targets, len(taken.inputs), taken.num_classes)
    return taken, rest
