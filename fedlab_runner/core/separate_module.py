"""A second network of a family, so that several models can compute at the same time."""

import copy
from typing import Any

from torch import Tensor, nn

from fedlab_runner.core.model_family import ModelFamily


class SeparateModule:
    """A network of a family whose values are views of a model w [D]: training the network writes into w.

    It shares parameters without a gradient, and buffers that no vector holds, with the family's module.
    """

    def __init__(self, family: ModelFamily, w: Tensor) -> None:
        own: dict[str, Tensor] = dict(family.module.named_parameters()) | dict(family.module.named_buffers())
        found: dict[int, Any] = {id(value): value for value in own.values()}
        self.leaves: list[nn.Parameter] = []  # the trainable parameters, in the order of the vector
        for name, (begin, shape) in family.layout.items():
            # Views of w itself would share one count of writes, so that a statistic's update would spoil a gradient.
            value: Tensor = w.data[begin : begin + shape.numel()].view(shape)
            if begin < family.num_params:
                self.leaves.append(value := nn.Parameter(value))
            found[id(own[name])] = value
        self._family, self._module = family, copy.deepcopy(family.module, found)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits [b, C] of normalised inputs, in the family's mode at the last `follow_mode`."""
        return self._family.forward(None, inputs, self._module)

    def follow_mode(self) -> None:
        """Takes over the family's mode: training, evaluation, or batch norm on stored statistics."""
        for mine, its in zip(self._module.modules(), self._family.module.modules(), strict=True):
            mine.training = its.training
