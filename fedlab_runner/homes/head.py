"""The classifier stays at home: FedPer (Arivazhagan et al., 2019). https://arxiv.org/abs/1912.00818"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from fedlab_runner.homes.base import Home, inside, require_classifier


@dataclass(frozen=True)
class HeadHome(Home):
    """Each client has its own classifier (the layer of the logits); clients share the layers before it."""

    def keeps(self, module: nn.Module, classifier: str | None, names: Sequence[str]) -> Sequence[str]:
        head = require_classifier("head", classifier, module)
        return [name for name in names if inside(name, head)]
