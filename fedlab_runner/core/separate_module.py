"""A second network of a family, so that several models can compute at the same time."""

import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from fedlab_runner.core.model_family import ACTIVE_PART, ModelFamily
from fedlab_runner.core.updates import tensors_in

_Copy = tuple[nn.Module, list[Any]]  # a network, and those of its values that a vector holds, in the vector's order
# Networks that were given back: to make one takes as long as two steps of a small model.
_spare: "WeakKeyDictionary[ModelFamily, list[_Copy]]" = WeakKeyDictionary()


class SeparateModule:
    """A network of a family whose values are views of a model w [D]: training the network writes into w.

    It shares parameters without a gradient, and buffers that no vector holds, with the family's module.
    """

    def __init__(self, family: ModelFamily, w: Tensor) -> None:
        self._family, spare = family, _spare.setdefault(family, [])
        self._module, self._values = spare.pop() if spare else _copy(family)
        for value, (begin, shape) in zip(self._values, family.layout.values(), strict=True):
            # Views of w itself would share one count of writes, so that a statistic's update would spoil a gradient.
            value.data = w.data[begin : begin + shape.numel()].view(shape)
        trained = [begin < family.num_params for begin, _ in family.layout.values()]
        # The trainable parameters, in the order of the vector.
        self.leaves: list[nn.Parameter] = self._values[: sum(trained)]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits [b, C] of normalised inputs, in the family's mode and by its active part at the last `follow_mode`."""
        return self._family.forward(None, inputs, self._module)

    def follow_mode(self) -> None:
        """Takes over the family's mode (training, evaluation, or batch norm on stored statistics) and active part."""
        for mine, its in zip(self._module.modules(), self._family.module.modules(), strict=True):
            mine.training = its.training
        if (part := self._family.active_part) is not None:
            setattr(self._module, ACTIVE_PART, part)

    def give_back(self) -> None:
        """Leaves the network to the next model, which may be any of the family. This one computes no more."""
        for value in self._values:
            value.data = value.data.new_empty(0)
        _spare[self._family].append((self._module, self._values))
        self._values = self.leaves = []


def _copy(family: ModelFamily) -> _Copy:
    own: dict[str, Tensor] = dict(family.module.named_parameters()) | dict(family.module.named_buffers())
    found: dict[int, Any] = {id(value): value for value in own.values()}
    values = [nn.Parameter(own[k].data) if own[k].requires_grad else own[k].data for k in family.layout]
    found |= {id(own[k]): value for k, value in zip(family.layout, values, strict=True)}
    kept = (value for module in family.module.modules() for value in tensors_in(vars(module)))
    found |= {id(value): _plain(value) for value in kept if not value.is_leaf or is_functorch_wrapped_tensor(value)}
    return copy.deepcopy(family.module, found), values


def _plain(kept: Tensor) -> Tensor:
    """A tensor that torch can copy, in the place of one that a network keeps of its last call, with its graph or vmap's
    or grad's levels.
    """
    return torch.empty(0) if is_functorch_wrapped_tensor(kept) else kept.detach().clone()
