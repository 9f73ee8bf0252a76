"""Examples that the server holds itself."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ServerData:
    """The server's labelled examples, stored as the clients' are; `in_domain` says that their classes are the
    clients' too, `mapped` that the inputs are a file's and not to be copied as a whole.
    """

    inputs: Tensor  # [n, ...] as the clients'
    targets: Tensor  # [n] int64
    num_classes: int
    in_domain: bool
    mapped: bool = False

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> "ServerData":
        """The same on a device; what is mapped stays where it is, and minibatches follow one by one."""
        if self.mapped:
            return self
        return ServerData(self.inputs.to(device), self.targets.to(device), self.num_classes, self.in_domain)
