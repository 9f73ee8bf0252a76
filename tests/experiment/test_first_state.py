"""What `init` gives is held against the contract before the first round."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.algorithms.shared.averaging import Params
from fedlab_runner.experiment.first_state import first_state
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import ALGORITHMS, algorithm, federation


class Renamed(NamedTuple):
    model: Tensor


class Longer(NamedTuple):
    params: Tensor
    more: list[Tensor]


X = torch.zeros(57, dtype=torch.float64)
WRONG: dict[str, tuple[Any, str]] = {
    "nothing": (None, "a NamedTuple, the State, got None"),
    "a list": ([X], "a NamedTuple, the State, got a list of 1"),
    "a plain tuple": ((X,), "a NamedTuple, the State, got a tuple of 1"),
    "another name": (Renamed(X), r"a State with a field params, the server's model \[D\], got a Renamed of 1"),
    "too short": (Params(X[1:]), r"as the server's model a tensor of floats \[57\], got torch float64 \[56\]"),
    "a list of numbers": (Params(X.tolist()), "as the server's model a tensor of floats"),  # type: ignore[arg-type]  # the fault
    "a parameter": (Params(nn.Parameter(X)), "a State of tensors without a gradient's history"),
    "history elsewhere": (Longer(X, [nn.Parameter(X)]), "a State of tensors without a gradient's history"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_first_state_that_no_round_could_begin_with_is_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state, line = WRONG[name]
    monkeypatch.setattr(FedAvg, "init", lambda self, fed: state)
    with pytest.raises(UserError, match=f"^FedAvg.init must give {line}"):
        first_state(algorithm("fedavg"), federation())


def test_the_first_states_of_the_package_are_right() -> None:
    fed = federation()
    for name in ALGORITHMS:
        first_state(algorithm(name), fed)
