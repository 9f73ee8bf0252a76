"""What a model learns from labels: cross entropy, and two forms of it that spare the classes that a client has not.

All three are -z_y + log sum_c exp(z_c + a_c) for logits z and label y; they differ in a [C], which a client derives
from the numbers of its training examples by class.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

ABSENT = -1e9  # exp of it is 0 in every precision, and so is the gradient of the logit that it is added to


class LossFunction(Protocol):
    """A supervision signal; `by_class`: it asks for a client's classes."""

    by_class: ClassVar[bool]

    def offsets(self, counts: Tensor) -> Tensor | None:
        """What is added to the logits in the log-sum-exp [.., C], from examples by class [.., C]; None: nothing."""
        ...


@dataclass(frozen=True)
class CE:
    """Plain cross entropy."""

    by_class: ClassVar[bool] = False

    def offsets(self, counts: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class ACE:
    """Asymmetric cross entropy (Caccia et al., ICLR 2022): the softmax is over the classes that the client has."""

    by_class: ClassVar[bool] = True

    def offsets(self, counts: Tensor) -> Tensor | None:
        return torch.where(counts > 0, 0.0, ABSENT)


@dataclass(frozen=True)
class WSM:
    """Re-weighted softmax (Legate et al., 2023; DFML, Eq 2): each class counts by its share of the client's examples.

    The gradient is that of the authors' form, which adds log beta_y to the label's logit too; the values differ by it.
    """

    by_class: ClassVar[bool] = True

    def offsets(self, counts: Tensor) -> Tensor | None:
        shares = counts.double() / counts.sum(-1, keepdim=True).clamp_min(1)
        return shares.log().clamp_min(ABSENT)


def losses(logits: Tensor, targets: Tensor, offsets: Tensor | None) -> Tensor:
    """The loss of each example [.., b], from logits [.., b, C] and offsets [C] (None: cross entropy)."""
    if offsets is None and logits.dim() == 2:
        return F.cross_entropy(logits, targets, reduction="none")
    offsets = logits.new_zeros(()) if offsets is None else offsets
    return torch.logsumexp(logits + offsets, -1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
