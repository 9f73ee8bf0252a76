"""The steps of the server's model, as a server optimiser takes them."""

from typing import Any

import torch
from torch import Tensor

from fedlab_runner.server_optimizers.base import Moments, ServerOptimizer


class ServerSteps:
    """A run's server optimiser and its moments."""

    def __init__(self, optimizer: ServerOptimizer | None, num_params: int, dtype: torch.dtype) -> None:
        self._optimizer = optimizer if optimizer is not None and optimizer.acts else None
        self._num_params = num_params
        # The moments' number and sizes, without memory.
        like = torch.empty(num_params, dtype=dtype, device="meta")
        self._layout = () if self._optimizer is None else self._optimizer.init(like)
        self._moments: Moments = ()  # empty before the first step
        self._count = 0
        self.taken = False  # whether a step was taken in this round

    @property
    def optimized(self) -> bool:
        """Whether the run has a server optimiser."""
        return self._optimizer is not None

    @property
    def operations(self) -> int:
        """Floating-point operations of a step."""
        return 0 if self._optimizer is None else self._optimizer.operations * self._num_params

    @property
    def held(self) -> int:
        """The number of values of the moments."""
        return sum(t.numel() for t in self._layout)

    def take(self, before: Tensor, after: Tensor) -> Tensor:
        """The server's next model [D] when an algorithm goes from `before` [D] to `after` [D]."""
        x, y = before[: self._num_params], after[: self._num_params]
        if self._optimizer is None or torch.equal(x, y):
            return after
        self.taken = True
        x, self._moments = self._optimizer.step(x, y - x, self._moments or self._optimizer.init(x), self._count)
        self._count += 1
        return torch.cat([x, after[self._num_params :]])

    def state_dict(self) -> dict[str, Any]:
        """Everything that steps change. Nothing ever writes into a tensor in it."""
        return {"moments": self._moments, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state. Raises ValueError for the state of another optimiser."""
        moments, count = tuple(state["moments"]), int(state["count"])
        wanted = self._layout if count else ()
        if [(t.shape, t.dtype) for t in moments] != [(t.shape, t.dtype) for t in wanted]:
            raise ValueError("the server optimiser's moments are of another number, type or size")
        self._moments, self._count = moments, count
