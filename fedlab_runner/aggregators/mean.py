"""The mean (McMahan et al., AISTATS 2017). https://arxiv.org/abs/1602.05629"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedlab_runner.aggregators.base import Aggregator
from fedlab_runner.utils.validate import at_least


@dataclass(frozen=True)
class Mean(Aggregator):
    """The server takes the mean, weighted as the algorithm says.

    With `sum_every` that many clients of a cohort train, then the next ones. The round holds their models and the sum
    of the earlier ones. The mean is that of all clients at once, but for rounding.
    """

    sum_every: int | None

    acts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(1, sum_every=self.sum_every)

    def at_once(self) -> int | None:
        return self.sum_every

    def weights(self, shares: Tensor, distances: Tensor) -> Tensor:
        return shares
