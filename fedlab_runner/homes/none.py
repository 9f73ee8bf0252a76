"""Nothing stays at home."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedlab_runner.homes.base import Home


@dataclass(frozen=True)
class NoHome(Home):
    """Clients share their whole models."""

    acts: ClassVar[bool] = False

    def keeps(self, module: nn.Module, classifier: str | None, names: Sequence[str]) -> Sequence[str]:
        return []
