"""Examples that the server holds itself."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ServerData:
    """The server's labelled examples, stored like the clients' examples.

    `in_domain`: their classes are those of the clients. `mapped`: the inputs lie in a memory-mapped file, too large to
    copy. `sample`: a function that decodes some of the images anew, uint8 [m, channels, height, width], in a form
    (channels, height, width). The run finds the clients' images among them, and then drops the function.
    """

    inputs: Tensor  # [n, ...] as the clients'
    targets: Tensor  # [n] int64
    num_classes: int
    in_domain: bool
    mapped: bool = False
    sample: Callable[[tuple[int, int, int]], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> "ServerData":
        """These examples on a device. Mapped inputs stay in their file: minibatches are moved one by one."""
        if self.mapped:
            return self
        return ServerData(self.inputs.to(device), self.targets.to(device), self.num_classes, self.in_domain)
