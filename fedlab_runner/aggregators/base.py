"""The contract of an aggregator: what the server takes for the mean of the A updates that arrive.

Each choice is a frozen dataclass in a file of this folder, with conf/aggregator/<file>.yaml.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Aggregator(ABC):
    """A rule that acts where an algorithm takes the mean of the arriving updates, late ones included.

    `weights` decides once for all tensors of the updates, `combine` applies the decision to each of them. Both are
    pure. The order of the updates, the oldest first, matters only where two of them score exactly alike.
    """

    acts: ClassVar[bool] = True
    """False: the weighted mean stays as it is, to the bit, and no method is called."""

    compares: ClassVar[bool] = False
    """`weights` reads the distances between the updates. Otherwise nobody computes them, and reading them ends the
    run.
    """

    def check(self, arriving: int) -> None:
        """Raises ValueError, which begins with a field's name, if a round of `arriving` updates is too small.

        Default: accepts every round.
        """
        return

    def tolerated(self, arrived: int) -> int | None:
        """f, the number of Byzantine updates that the rule expects among `arrived`; None if it expects no number."""
        return None

    def at_once(self) -> int | None:
        """How many clients' updates the run holds before it adds them up; None: all, as `weights` reads them."""
        return None

    @abstractmethod
    def weights(self, shares: Tensor, distances: Tensor) -> Tensor:
        """The weight of each update [A] float64; they add up to 1, and an update of weight 0 is left out.

        `shares` [A] float64: the weights in the mean, by the algorithm's `weighting`. `distances` [A, A] float64: the
        squared Euclidean distances between the updates, as they were sent.
        """

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """One tensor [n] of the updates' `rows` [A, n]. Default: the mean by `weights`."""
        combined: Tensor = weights.to(rows.dtype) @ rows
        return combined
