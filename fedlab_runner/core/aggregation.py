"""A run's aggregator, applied to the updates of a round."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedlab_runner.aggregators.base import Aggregator
from fedlab_runner.core.round_metrics import RoundMetrics
from fedlab_runner.utils.contract import require
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.overwriting import only_read

TOLERANCE = 1e-6  # of the sum of an aggregator's weights
# What asks a tensor for its number of values and their type.
OF_NUMBER = {
    *(Tensor.size, Tensor.dim, Tensor.__len__),
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device")),
}
VALUES_PER_CALL = 2**21  # of all updates together, that are compared in float64 at once: a bound on memory


class Unread(Tensor):
    """In the place of distances that nobody has computed: whatever reads more than their number ends the run."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in OF_NUMBER:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # torch
        raise UserError(
            "aggregator reads the distances between updates, which are computed only for a class with "
            "`compares: ClassVar[bool] = True`: write that into the class"
        )


class Aggregation:
    """What stands in the place of the mean of a round's updates, and its metrics."""

    def __init__(self, aggregator: Aggregator, metrics: RoundMetrics) -> None:
        self._aggregator, self._metrics = aggregator, metrics

    def weights(self, shares: Tensor, payload: Sequence[Tensor]) -> Tensor:
        """The weights [A] that the aggregator gives the updates. `shares` [A] float64 are their weights in the mean,
        `payload` their vectors, each [A, n].
        """
        rule, a = self._aggregator, len(shares)
        distances: Tensor = shares.new_empty(a, a).as_subclass(Unread)
        if rule.compares:
            distances = squared_distances(payload)
            values = sum(t.shape[1] for t in payload)
            self._metrics.count_server_flops(3 * values * a * (a - 1) // 2)  # subtracts, squares and adds
        weights = rule.weights(shares, distances)
        right = weights.shape == shares.shape and abs(float(weights.sum()) - 1) < TOLERANCE  # False for NaN
        require(right, rule, "weights", f"weights [{a}] that add up to 1", weights)
        f = rule.tolerated(a)
        self._metrics.record(
            {
                "aggregator/left_out": int((weights == 0).sum()),
                "aggregator/effective_updates": float(1 / weights.square().sum()),
                **({} if f is None else {"aggregator/tolerated": f}),
            }
        )
        return weights

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """One tensor [...] of the updates' rows [A, ...]."""
        matrix = rows.unsqueeze(1) if rows.dim() == 1 else rows.flatten(1)
        with only_read(self._aggregator, "combine", "the updates or the weights", (matrix, weights)):
            combined = self._aggregator.combine(matrix, weights)
        return combined.view(rows.shape[1:])


def squared_distances(payload: Sequence[Tensor]) -> Tensor:
    """The squared Euclidean distances [A, A] float64 between updates whose vectors are `payload`, each [A, n]."""
    a = len(payload[0])
    pairs = torch.triu_indices(a, a, 1, device=payload[0].device).unbind()
    total = payload[0].new_zeros(a, a, dtype=torch.float64)
    for rows in payload:
        for block in torch.split(rows, max(1, VALUES_PER_CALL // a), 1):
            # Pair by pair: products of matrices lose what is small beside an update that is far away.
            total[pairs] += torch.pdist(block.double()).square()
    return total + total.T
