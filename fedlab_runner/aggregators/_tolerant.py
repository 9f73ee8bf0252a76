"""The shared part of the rules that expect a number of Byzantine updates."""

from dataclasses import dataclass
from typing import ClassVar

from fedlab_runner.aggregators.base import Aggregator
from fedlab_runner.utils.rounding import rounded_down
from fedlab_runner.utils.validate import within


@dataclass(frozen=True)
class Tolerant(Aggregator):
    """A rule for f Byzantine updates among the A that arrive, where f is `byzantine` times A, rounded down.

    Where fewer updates arrive than such an f needs, f is the largest that they allow.
    """

    byzantine: float

    needs: ClassVar[tuple[int, int]]
    """(a, b): the rule needs A >= a f + b."""

    def __post_init__(self) -> None:
        within("[0, 0.5)", byzantine=self.byzantine)

    def check(self, arriving: int) -> None:
        a, b = self.needs
        most = self._most(arriving)
        if self._wanted(arriving) > most:
            raise ValueError(
                f"byzantine must be less than {(most + 1) / arriving:.3g} with {arriving} updates a round, got "
                f"{self.byzantine}: for f Byzantine updates the rule needs {a} f + {b}"
            )

    def tolerated(self, arrived: int) -> int:
        return min(self._wanted(arrived), self._most(arrived))

    def _wanted(self, arrived: int) -> int:
        return rounded_down(self.byzantine * arrived)

    def _most(self, arrived: int) -> int:
        a, b = self.needs
        return max(0, (arrived - b) // a)
