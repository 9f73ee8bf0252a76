"""What `init` gives is held against the contract before the first round."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.algorithms.dpsgd import DPSGD, DPSGDState
from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.algorithms.shared.averaging import Params
from fedlab_runner.experiment.first_round import FirstRounds
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


MODELS: dict[str, tuple[Any, str]] = {
    "nothing": (None, r"the server's model, floats \[57\], or a dict of all clients' models, got None"),
    "a stack": (X.expand(8, 57), r"the server's model, .*, got torch float64 \[8, 57\]"),
    "parameters of another type": (X.float(), r"the server's model, .*, got torch float32 \[57\]"),
    "some clients": ({0: X, 1: 3}, "the model of each client from 0 to 7, got 'none of client 2'"),
    "a short row": (dict.fromkeys(range(8), X[1:]), r"for client 0 a row \[57\] of torch.float64, got .* \[56\]"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_that_no_test_could_read_are_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models, line = MODELS[name]
    monkeypatch.setattr(DPSGD, "models", lambda self, state: models)
    with pytest.raises(UserError, match=f"^DPSGD.models must give {line}"):
        first_state(algorithm("dpsgd"), federation())


def test_models_of_a_round_are_looked_at_too() -> None:
    fed = federation()
    first = DPSGDState(dict.fromkeys(range(8), X))
    rounds = FirstRounds(algorithm("dpsgd"), first)
    fed.begin(0, 1.0)
    rounds(first, fed)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match=r"^DPSGD.models must give"):
        patch.setattr(DPSGD, "models", lambda self, state: [*state.models.values()])
        FirstRounds(algorithm("dpsgd"), first)(first, fed)


def test_the_first_states_of_the_package_are_right() -> None:
    fed = federation()
    for name in ALGORITHMS:
        first_state(algorithm(name), fed)
