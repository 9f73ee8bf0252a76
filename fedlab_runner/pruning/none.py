"""No pruning."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedlab_runner.pruning import Curve


@dataclass(frozen=True)
class NoPruning:
    """Every run goes on to its last round."""

    def verdict(self, own: Curve, others: Sequence[Curve]) -> str | None:
        return None
