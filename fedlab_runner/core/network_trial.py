"""Tries a network before a run, so that one whose results nobody could repeat is refused."""

from typing import Any

import torch
from torch import Tensor

from fedlab_runner.core.global_rng import seeded
from fedlab_runner.core.model_family import ModelFamily


def try_network(family: ModelFamily, inputs: Tensor) -> None:
    """Applies a family's network to two of the stored inputs [n, ...], in evaluation and in training mode. Notes in
    `family.draws` whether it draws random numbers in training.

    Raises ValueError if the network does not give logits, writes into its inputs, or draws random numbers in
    evaluation, and UserError if it takes them from elsewhere than torch.
    """
    two = inputs[[0, -1]].to(family.device)
    if _draws(family, two, training=False):
        raise ValueError(
            "the model draws random numbers in evaluation too, so that no metric could be repeated: draw in training "
            "alone, as F.dropout(x, p, training=self.training) does"
        )
    family.draws |= _draws(family, two, training=True)


def _draws(family: ModelFamily, inputs: Tensor, training: bool) -> bool:
    """Whether the network draws random numbers."""
    states: list[bytes] = []

    def logits() -> Tensor:
        states.append(_state(family.device))
        given = family.normalize(inputs, family.dtype)
        version = given._version  # torch counts what is written into a tensor and its views
        with torch.no_grad(), family.bound(family.vector(family.module)):
            family.mode(training)
            found = family.module(given)
        if given._version != version:
            raise ValueError(
                "the model writes into its inputs, which may be the data set itself: replace an operation in place, "
                "such as x.sub_(1), by x - 1"
            )
        states.append(_state(family.device))
        return _checked(found, [len(inputs), family.num_classes])

    seeded(logits, 0, "forward()", family.device)
    return states[0] != states[1]


def _checked(found: Any, shape: list[int]) -> Tensor:
    if isinstance(found, Tensor) and list(found.shape) == shape and found.is_floating_point():
        return found
    given = f"{list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    raise ValueError(f"the model must give logits [examples, classes], here {shape}, got {given}")


def _state(device: torch.device) -> bytes:
    """Of torch's generators."""
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])
    return b"".join(state.numpy().tobytes() for state in states)
