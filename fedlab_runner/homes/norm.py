"""Normalisation layers stay at home: FedBN (Li et al., ICLR 2021). https://arxiv.org/abs/2102.07623"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedlab_runner.homes.base import Home, inside
from fedlab_runner.utils.errors import UserError

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)  # batch and instance norm are _NormBase


@dataclass(frozen=True)
class NormHome(Home):
    """Each client has its own normalisation layers: batch norm's parameters and statistics, as in the paper, and the
    parameters of layer, group and instance norm.
    """

    def keeps(self, module: nn.Module, classifier: str | None, names: Sequence[str]) -> Sequence[str]:
        norms = [name for name, layer in module.named_modules() if isinstance(layer, NORMS)]
        found = [name for name in names if any(inside(name, norm) for norm in norms)]
        if not found:
            raise UserError("home=norm needs a model with norm layers: take model=dfml_cnn, preact_resnet, ...")
        return found
