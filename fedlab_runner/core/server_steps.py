"""The steps of the server's model, as a server optimiser takes them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedlab_runner.server_optimizers.base import Moments, ServerOptimizer
from fedlab_runner.utils.contract import require
from fedlab_runner.utils.overwriting import only_read


class ServerSteps:
    """A run's server optimiser and its moments."""

    def __init__(self, optimizer: ServerOptimizer | None, num_params: int, dtype: torch.dtype) -> None:
        self._optimizer = optimizer if optimizer is not None and optimizer.acts else None
        self._num_params = num_params
        # The moments' number and sizes, without memory.
        like = torch.empty(num_params, dtype=dtype, device="meta")
        self._layout = () if self._optimizer is None else self._optimizer.init(like)
        right = isinstance(self._layout, tuple) and all(isinstance(t, Tensor) for t in self._layout)
        require(right, self._optimizer, "init", "a tuple of tensors", self._layout)
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
        x, self._moments = _stepped(self._optimizer, x, y - x, self._moments or self._optimizer.init(x), self._count)
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


def _stepped(rule: ServerOptimizer, x: Tensor, delta: Tensor, moments: Moments, t: int) -> tuple[Tensor, Moments]:
    """What `step` gives. Raises UserError where it breaks the contract of `ServerOptimizer.step`."""
    with only_read(rule, "step", "x or the moments", (x, moments)):
        given = rule.step(x, delta, moments, t)
    pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], tuple)
    require(pair, rule, "step", "a pair: the parameters, and a tuple of moments", given)
    require(_alike(given[:1], [x]), rule, "step", f"as parameters a tensor like x, {list(x.shape)} {x.dtype}", given[0])
    words = f"{len(moments)} moments of the shapes and types of those before"
    require(_alike(given[1], moments), rule, "step", words, given[1])
    return given


def _alike(given: Sequence[Any], before: Sequence[Tensor]) -> bool:
    """Whether these are tensors of as many, the same shapes and types as before."""
    return [(getattr(t, "shape", None), getattr(t, "dtype", None)) for t in given] == [
        (t.shape, t.dtype) for t in before
    ]
