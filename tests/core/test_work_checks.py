"""What an algorithm gives to a cohort's training is held against its contract."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.core.cohort import Cohort
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import CLASSES, FEATURES, asked, federation


def corrected(g: Tensor, *own: Tensor) -> Tensor:
    return g + sum(own)


def cohort() -> tuple[Cohort, Tensor, Tensor]:
    """Two of the toy's clients, a model [D] and a row for each client of the federation [N, P]."""
    fed = federation()
    fed.begin(0, 1.0)
    x = fed.family.init(0)
    return asked(fed, [4, 2]), x, torch.ones(fed.num_clients, fed.family.num_params, dtype=x.dtype)


WRONG: dict[str, tuple[Callable[[Cohort, Tensor, Tensor], Any], str]] = {
    "the rows of all clients": (
        lambda c, x, rows: c.train(x, correct=corrected, per_client=(rows,)),
        r"train: per_client\[0\] must be a tensor \[2, ...\], .* got torch float64 \[8, 57\]",
    ),
    "one row": (
        lambda c, x, rows: c.train(x, correct=corrected, per_client=(rows[c.ids], rows[0])),
        r"train: per_client\[1\] must be a tensor \[2, ...\], .* got torch float64 \[57\]",
    ),
    "an array": (
        lambda c, x, rows: c.train(x, correct=corrected, per_client=(np.ones(2),)),
        r"train: per_client\[0\] must be a tensor",
    ),
    "no comma": (
        lambda c, x, rows: c.train(x, correct=corrected, per_client=rows[c.ids]),
        r"train: per_client must be a tuple of tensors, as per_client=\(x,\), got torch float64 \[2, 57\]",
    ),
    "no comma in common": (
        lambda c, x, rows: c.train(x, correct=corrected, common=rows[0]),
        r"train: common must be a tuple of tensors, as common=\(x,\)",
    ),
    "a number": (
        lambda c, x, rows: c.train(x, correct=corrected, common=(0.1,)),
        r"train: common\[0\] must be a tensor, .* got 0.1",
    ),
    "parameters alone": (
        lambda c, x, rows: c.train(rows[:2, :-1]),
        r"train: start must be a tensor \[57\] or \[2, 57\], got torch float64 \[2, 56\]",
    ),
    "a misspelt name": (
        lambda c, x, rows: c.train(x, frozen=("0.weight", "0.bais")),
        r"train: frozen must name parameters .*, got '0.bais': did you mean '0.bias'\?",
    ),
    "a name of another model": (
        lambda c, x, rows: c.train(x, frozen=("conv",)),
        r"train: frozen must name .*, got 'conv': the names are \['0.weight', '0.bias', '2.weight', '2.bias'\]",
    ),
    "a text": (
        lambda c, x, rows: c.train(x, frozen="0.bias"),  # type: ignore[arg-type]  # the fault
        r"train: frozen must be a tuple of names, as frozen=\(name,\), got '0.bias'",
    ),
    "models of all clients": (
        lambda c, x, rows: c.gradients(rows),
        r"gradients: x must be a tensor \[57\] or \[2, 57\], got torch float64 \[8, 57\]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_tensors_of_other_clients_or_shapes_are_refused(name: str) -> None:
    call, line = WRONG[name]
    with pytest.raises(UserError, match=f"^cohort.{line}"):
        call(*cohort())


def twice() -> nn.Module:
    """A network two of whose layers have the same weight. Its last bias never trains."""
    first, second, third = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)
    second.weight = first.weight
    third.bias.requires_grad_(False)
    return nn.Sequential(first, second, third)


def test_a_tied_tensor_is_frozen_by_its_first_name_and_what_never_trains_by_its_name() -> None:
    fed = federation(build=twice)
    fed.begin(0, 1.0)
    clients, x = asked(fed, [4, 2]), fed.family.init(0)
    with pytest.raises(UserError, match=r"frozen must name .*, got '1.weight': did you mean '0.weight'\?"):
        clients.train(x, frozen=("1.weight",))
    clients.train(x, frozen=("0.weight", "2.bias"))


def test_training_without_gradients_is_refused() -> None:
    clients, x, _ = cohort()
    with torch.no_grad(), pytest.raises(UserError, match=r"^cohort\.train needs gradients: call it outside of "):
        clients.train(x)


def test_a_row_for_each_client_and_values_for_all_are_accepted() -> None:
    clients, x, rows = cohort()
    given = clients.train(x.expand(2, -1), correct=corrected, per_client=(rows[clients.ids],), common=(rows[0], x[0]))
    assert given.shape == (2, len(x))
