"""No pruning."""

from dataclasses import dataclass

from fedlab_runner.pruning.base import Curve, Others, Pruning


@dataclass(frozen=True)
class NoPruning(Pruning):
    """Every run continues to its last round."""

    def verdict(self, own: Curve, others: Others) -> str | None:
        return None
