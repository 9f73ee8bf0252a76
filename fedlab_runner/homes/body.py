"""All layers except the classifier stay at home: LG-FedAvg (Liang et al., 2020). https://arxiv.org/abs/2001.01523"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from fedlab_runner.homes.base import Home, inside, require_classifier


@dataclass(frozen=True)
class BodyHome(Home):
    """Each client has its own layers up to the classifier (the layer of the logits); clients share the classifier."""

    def keeps(self, module: nn.Module, classifier: str | None, names: Sequence[str]) -> Sequence[str]:
        head = require_classifier("body", classifier, module)
        return [name for name in names if not inside(name, head)]
