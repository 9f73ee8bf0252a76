"""The contract of an architecture: the network that the clients train.

Each choice is a frozen dataclass in a file of this folder, with conf/model/<file>.yaml. b examples, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from fedlab_runner.utils.contract import require
from fedlab_runner.utils.validate import at_least

if TYPE_CHECKING:  # reading a model's fields must not load torch
    from torch import nn


@dataclass(frozen=True)
class Architecture(ABC):
    """An architecture and the inputs that its networks take.

    `image_size` is the side of a square image in pixels. Null `channels` and `image_size` are those of the data set;
    the run converts the images to other values. A vector of n features is an image of n channels and size 1.
    """

    channels: int | None
    image_size: int | None

    def __post_init__(self) -> None:
        at_least(1, channels=self.channels, image_size=self.image_size)

    def architectures(self) -> "Sequence[Architecture]":
        """The architectures of the clients: client i has number i modulo their count. Default: this one for all
        clients.
        """
        return (self,)

    @property
    def warning(self) -> str | None:
        """What the run warns of before it trains such networks; None, the default: nothing."""
        return None

    @abstractmethod
    def build(self, channels: int, image_size: int, num_classes: int) -> "nn.Module":
        """A new network from float32 inputs [b, channels, image_size, image_size] to logits [b, C], on the CPU.

        The initial weights come from torch's global generator, which the caller seeds, and from nothing else. The
        network must run under `torch.func.vmap(grad(...))`: no layer may overwrite an input that a gradient needs. The
        run calls this several times, so it must not have side effects. Raises ValueError, named after the field, if the
        inputs do not fit, and UserError for a file of weights that is missing or wrong.
        """

    def description(
        self,
        module: "nn.Module",
        image_size: int,
        mean: "Sequence[float] | None",
        std: "Sequence[float] | None",
        class_names: Sequence[str],
    ) -> dict[str, Any] | None:
        """The content of config.json, which the network's library reads besides the weights; None, the default: no
        file.

        `image_size` is the side of the network's inputs; `mean` and `std` are those of inputs / 255, by channel.
        """
        return None


def built(architecture: Architecture, channels: int, image_size: int, num_classes: int) -> "nn.Module":
    """The network that an architecture builds. Raises UserError unless it is a module."""
    from torch import nn

    network: Any = architecture.build(channels, image_size, num_classes)
    require(isinstance(network, nn.Module), architecture, "build", "an nn.Module", network)
    return cast("nn.Module", network)
