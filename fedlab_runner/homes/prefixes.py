"""Named parameters and submodules stay at home."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from fedlab_runner.homes.base import Home, inside
from fedlab_runner.utils.errors import UserError


@dataclass(frozen=True)
class PrefixesHome(Home):
    """Each client has its own tensors of the submodules and parameters in `prefixes`, by PyTorch's names, of which a
    tied tensor has several. An empty list keeps nothing, and "" keeps everything.
    """

    prefixes: list[str]

    def keeps(self, module: nn.Module, classifier: str | None, names: Sequence[str]) -> Sequence[str]:
        values = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        known: dict[int, list[str]] = {}
        for name, value in values:
            known.setdefault(id(value), []).append(name)
        names_of = {each[0]: each for each in known.values() if each[0] in names}
        every = [name for several in names_of.values() for name in several]
        for prefix in self.prefixes:
            if prefix and not any(inside(name, prefix) for name in every):
                tops = dict.fromkeys(name.partition(".")[0] for name in every)
                raise UserError(f"home.prefixes has {prefix}, which the model does not train: it has {', '.join(tops)}")
        return [
            name
            for name, several in names_of.items()
            if any(not prefix or inside(each, prefix) for each in several for prefix in self.prefixes)
        ]
