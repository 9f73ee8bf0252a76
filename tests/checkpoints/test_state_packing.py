"""What a State may hold comes back from a checkpoint as it was; the rest is refused before a round."""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fedlab_runner.checkpoints.state_packing import classes, differs, fits, layout, pack, unpack
from fedlab_runner.utils.errors import UserError


class Entry(NamedTuple):
    loss: float
    round: int


class Inner(NamedTuple):
    total: float


class State(NamedTuple):
    by_client: dict[int, list[Entry]]
    latest: Entry | None
    pairs: tuple[tuple[int, Entry], ...]
    inner: Any
    anything: list
    names: dict
    bare: tuple
    either: list[int] | tuple[int, ...]


FIRST = State({}, None, (), Inner(0.0), [], {}, (), [])
LATER = State(
    by_client={3: [Entry(0.5, 1)], 4: []},
    latest=Entry(0.1, 2),
    pairs=((1, Entry(0.2, 3)),),
    inner=Inner(2.0),
    anything=[(1, "a"), [2]],
    names={"b": ((2, [3]), [()])},
    bare=([1], (2,)),
    either=(4,),
)


@pytest.mark.parametrize("state", [FIRST, LATER])
def test_a_state_comes_back_as_it_was(state: State) -> None:
    packed = pack(state)
    assert not classes(packed) and not differs(packed, like=FIRST)
    back = unpack(packed, like=FIRST)
    assert repr(back) == repr(state) and classes(back) == classes(state)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.float64(0.5), "numpy.float64"),
        (np.str_("a"), "numpy.str_"),
        ({np.int64(3): 0}, "numpy.int64"),
        ({0.5: 0}, "float"),
        (np.zeros(2), "numpy.ndarray"),
        (defaultdict(int), "collections.defaultdict"),
        (torch.Size([2]), "torch.Size"),
    ],
)
def test_what_no_checkpoint_can_hold_is_named(value: Any, kind: str) -> None:
    with pytest.raises(UserError, match=rf"^total in inner in a checkpoint must h.*, not {kind}$"):
        pack(LATER._replace(inner=Inner(value)))


def test_classes_that_no_annotation_names_are_seen() -> None:
    state = FIRST._replace(anything=[Entry(0.5, 1)])
    assert classes(unpack(pack(state), like=FIRST)) != classes(state)


def test_a_state_whose_fields_had_other_names_does_not_fit() -> None:
    class Before(NamedTuple):
        weights: torch.Tensor

    class Now(NamedTuple):
        params: torch.Tensor

    before, now = Before(torch.zeros(2)), Now(torch.zeros(2))
    assert fits(pack(now), layout(now), like=now) and not fits(pack(before), layout(before), like=now)
