"""Models: what the clients train, one architecture a file."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # reading a model's fields must not load torch
    from torch import nn


@dataclass(frozen=True)
class Architecture(ABC):
    """An architecture and the inputs that it wants; null means as the data set has them.

    `image_size` is the side of a square image in pixels. A vector of n features is an image of n channels and size 1.
    """

    channels: int | None
    image_size: int | None

    def __post_init__(self) -> None:
        for name, value in (("channels", self.channels), ("image_size", self.image_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be null or >= 1, got {value}")

    def architectures(self) -> "Sequence[Architecture]":
        """What the clients have: client i number i modulo their number. Here all have this one."""
        return (self,)

    @abstractmethod
    def build(self, channels: int, image_size: int, num_classes: int) -> "nn.Module":
        """A new network from [batch, channels, image_size, image_size] to [batch, num_classes] logits.

        The initial weights come from torch's global generator, which the caller seeds. No layer works in place, so the
        network can run under `torch.func.vmap(grad(...))`. Raises ValueError if the inputs do not fit.
        """
