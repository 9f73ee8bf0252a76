"""In-domain examples, taken from the test set (Feddle, appendix D; FedLAW's proxy data)."""

import logging
from dataclasses import dataclass

import torch

from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Data
from fedlab_runner.server_data.base import ServerDataSource
from fedlab_runner.utils.validate import at_least, within

_log = logging.getLogger(__name__)
DEFAULT_SIZE = 1000  # examples, as in Feddle


@dataclass(frozen=True)
class InDomain(ServerDataSource):
    """`size` examples or a `fraction` of the test set, drawn uniformly. With both null: 1000, but at most a quarter.

    The test set loses these examples, whether or not the algorithm uses them. Where two of `server_data`,
    `auxiliary_data` and `probe_data` are in-domain, each takes its share of the whole test set.
    """

    size: int | None
    fraction: float | None

    def __post_init__(self) -> None:
        at_least(1, size=self.size)
        within("(0, 1)", fraction=self.fraction)
        if self.size is not None and self.fraction is not None:
            raise ValueError(f"fraction must be null where size is set, got {self.fraction} and size {self.size}")

    def reserve(self, data: Data, seed: int) -> tuple[ServerData, Data]:
        left = len(data.test.targets)
        total = data.num_held_out + left
        size = self._size(total)
        field, value = ("size", self.size) if self.fraction is None else ("fraction", self.fraction)
        if size >= left:
            what = f"{left} remaining" if left < total else total
            raise ValueError(f"{field} must leave some of the test set's {what} examples, got {value}")
        mine, rest = data.hold_out(size, seed)
        if torch.bincount(mine.targets).count_nonzero() < 2:
            raise ValueError(
                f"{field} must give examples of two classes at least, got {value}: {size} of the test set's {total}"
            )
        what = "%d of %d test examples are the server's (in_domain): server_data=none tests on all"
        _log.info(what, size, total)
        return ServerData(mine.inputs, mine.targets, len(data.class_names), in_domain=True), rest

    def _size(self, total: int) -> int:
        """The number of examples that the server takes from the `total` of the whole test set."""
        if self.fraction is not None:
            return round(self.fraction * total)
        return min(DEFAULT_SIZE, total // 4) if self.size is None else self.size
