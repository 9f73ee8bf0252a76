"""Named parameters and submodules stay at home."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from fedlab_runner.homes.base import Home, inside
from fedlab_runner.utils.errors import UserError


@dataclass(frozen=True)
class PrefixesHome(Home):
    """Each client has its own tensors of the submodules and parameters in `prefixes`, by PyTorch's names. An empty list
    keeps nothing, and "" keeps everything.
    """

    prefixes: list[str]

    def keeps(self, module: nn.Module, classifier: str | None, names: Sequence[str]) -> Sequence[str]:
        for prefix in self.prefixes:
            if prefix and not any(inside(name, prefix) for name in names):
                tops = dict.fromkeys(name.partition(".")[0] for name in names)
                raise UserError(f"home.prefixes has {prefix}, which the model does not train: it has {', '.join(tops)}")
        return [name for name in names if any(not prefix or inside(name, prefix) for prefix in self.prefixes)]
