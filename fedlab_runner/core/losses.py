"""Loss functions: cross entropy, and two forms of it that do not push down the classes that a client lacks.

Each is -z_y + log sum_c exp(z_c + a_c) for logits z and label y. They differ in the offsets a [C], which depend on the
client's number of training examples of each class.

Any other training loss, such as label smoothing or a focal loss, is an algorithm's: its `loss` for `Cohort.train`
replaces this one.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

ABSENT = -1e9  # offset of a class that the client lacks: its exp and its gradient are 0 in every precision


class LossFunction(Protocol):
    """A loss function, by the offsets that depend on a client's label counts."""

    def offsets(self, counts: Tensor) -> Tensor | None:
        """The offsets a [.., C] from the label counts of clients [.., C]; None, whatever the counts: no offsets."""
        ...


@dataclass(frozen=True)
class CE:
    """Plain cross entropy."""

    def offsets(self, counts: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class ACE:
    """Asymmetric cross entropy (Caccia et al., ICLR 2022): a softmax over the classes that the client has."""

    def offsets(self, counts: Tensor) -> Tensor | None:
        return torch.where(counts > 0, 0.0, ABSENT)


@dataclass(frozen=True)
class WSM:
    """Re-weighted softmax (Legate et al., 2023; DFML, Eq 2): each class counts by its share of the client's examples.

    The authors' form adds log beta_y to the label's logit too: that changes the value but not the gradient.
    """

    def offsets(self, counts: Tensor) -> Tensor | None:
        shares = counts.double() / counts.sum(-1, keepdim=True).clamp_min(1)
        return shares.log().clamp_min(ABSENT)


def losses(logits: Tensor, targets: Tensor, offsets: Tensor | None) -> Tensor:
    """The loss of each example [.., b], from logits [.., b, C] and offsets [C] (None: cross entropy)."""
    of_target = targets.unsqueeze(-1)
    if offsets is None:  # bit for bit F.cross_entropy, which takes longer under vmap and imports sympy
        return -F.log_softmax(logits, -1).gather(-1, of_target).squeeze(-1)
    return torch.logsumexp(logits + offsets, -1) - logits.gather(-1, of_target).squeeze(-1)
