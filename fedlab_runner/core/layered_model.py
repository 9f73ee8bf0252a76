"""Models whose parameters are separate tensors: a step on them needs no vector of a whole model."""

from collections.abc import Collection

import torch
from torch import Tensor

from fedlab_runner.core.model_family import FunctionalModel, ModelFamily


class LayeredModel(FunctionalModel):
    """A model of a family whose parameters are `layers` by name. In a compiled step their vector `params` is gathered
    only for a loss that reads it.

    `fixed` are values by name, such as statistics, that the network reads and that `params` lacks.
    """

    def __init__(
        self,
        family: ModelFamily,
        layers: dict[str, Tensor],
        buffers: Tensor,
        frozen: Collection[str] = (),
        fixed: dict[str, Tensor] | None = None,
    ) -> None:
        params = torch.cat([layer.reshape(-1) for layer in layers.values()])
        super().__init__(family, params, buffers, frozen)
        self._gathered, self._fixed = params, fixed or {}
        self._layers = {name: layer.detach() if name in frozen else layer for name, layer in layers.items()}

    def __call__(self, inputs: Tensor, instead: dict[str, Tensor] | None = None) -> Tensor:
        more = self._fixed | (instead or {})
        if self.params is not self._gathered:  # a loss has set others
            return super().__call__(inputs, more)
        return self.family.forward(self._layers | more, inputs)
