"""What a network must do is tried before a run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlab_runner.core.joined_models import Pair
from fedlab_runner.core.network_trial import try_network
from tests.helpers.toy import CLASSES, FEATURES, mlp, model_family, normed

INPUTS = torch.ones(1, FEATURES)

Change = Callable[[Tensor, bool], Any]  # (logits, whether it trains) -> what the network gives


class Changed(nn.Module):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.inner, self.change = mlp(), change

    def forward(self, inputs: Tensor) -> Any:
        return self.change(self.inner(inputs), self.training)


DRAWING: dict[str, Change] = {
    "dropout": lambda logits, training: F.dropout(logits, 0.5, training),
    "noise": lambda logits, training: logits + torch.randn_like(logits) if training else logits,
}
REFUSED: dict[str, tuple[Change, str]] = {
    "draws always": (lambda logits, training: F.dropout(logits), "draws random numbers in evaluation too"),
    "numpy's": (lambda logits, training: logits * (np.random.random() if training else 1), "numpy or Python"),
    "few classes": (
        lambda logits, training: logits[:, :2],
        rf"logits .*here \[2, {CLASSES}\], got \[2, 2\] of torch.float64",
    ),
    "no numbers": (lambda logits, training: logits > 0, "of torch.bool"),
    "more in training": (lambda logits, training: (logits, logits) if training else logits, "got a tuple"),
}


@pytest.mark.parametrize("name", DRAWING)
def test_training_that_draws_is_noted(name: str) -> None:
    """No layer tells it; what is derived from the network draws as well."""
    family, still = model_family(lambda: Changed(DRAWING[name])), model_family()
    assert not family.draws
    try_network(family, INPUTS)
    assert family.draws and family.like(mlp).draws and Pair(still, family).family.draws


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_run_could_use_is_one_line(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        try_network(model_family(lambda: Changed(change)), INPUTS)


def test_inputs_must_stay() -> None:
    """Those of an evaluation are views of the test set."""
    first = nn.Sequential(nn.ReLU(inplace=True), mlp())
    with pytest.raises(ValueError, match="writes into its inputs"):
        try_network(model_family(lambda: first), -INPUTS)


@pytest.mark.parametrize("build", [mlp, normed])
def test_a_trial_leaves_no_trace(build: Callable[[], nn.Module]) -> None:
    family, state = model_family(build), torch.random.get_rng_state()
    before = family.vector(family.module)
    try_network(family, INPUTS)
    assert not family.draws and torch.equal(family.vector(family.module), before)
    assert torch.equal(torch.random.get_rng_state(), state)
