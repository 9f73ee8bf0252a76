"""What a CUDA graph does, on a CPU: the operations of a function are recorded with the tensors that they read and
wrote, and are carried out again on the same memory, without the function.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
WAITING = {aten._local_scalar_dense.default, aten.nonzero.default, aten.index.Tensor}  # for what is on the device


class Tape(TorchDispatchMode):
    """Records while it is entered; `replay` carries it all out again."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[tuple[int, Tensor]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        masks = [t for t in tree_leaves(args) if isinstance(t, Tensor) and t.dtype == torch.bool]
        if func in WAITING and (func is not aten.index.Tensor or masks):
            raise RuntimeError("operation not permitted when stream is capturing\nand more that is said of it")
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        results = enumerate(tree_leaves(result))
        made = [(i, t) for i, t in results if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in given]
        self._steps.append((func, args, kwargs or {}, made))
        return result

    def replay(self) -> None:
        for func, args, kwargs, made in self._steps:
            results = tree_leaves(func(*args, **kwargs))
            for i, tensor in made:
                tensor.copy_(results[i])


def record(launch: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """As `executors.cuda_graph.record`, on this CPU."""
    launch()
    tape = Tape()
    with tape:
        launch()
    return tape.replay
