"""A write into what must only be read is found, whatever holds the tensor and however the block ends."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fedlab_runner.utils.errors import Interrupted
from fedlab_runner.utils.overwriting import Overwritten, only_read


class Held(NamedTuple):
    x: Tensor
    rows: dict[int, Any]
    past: list[float]


class Mine:
    """An own component."""


WRITES: dict[str, Callable[[Held], Any]] = {
    "tensor": lambda held: held.x.add_(1),
    "view": lambda held: held.x[:2].zero_(),
    "tensor of a dict": lambda held: held.rows[3].mul_(2),
    "replaced": lambda held: held.rows.__setitem__(3, torch.zeros(2)),
    "number": lambda held: held.past.__setitem__(0, 2.0),
    "longer": lambda held: held.past.append(0.0),
}


def held() -> Held:
    return Held(torch.zeros(4), {3: torch.ones(2)}, [float("nan")])


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_is_found(write: Callable[[Held], Any], stops: bool) -> None:
    mine, line = held(), r"^Mine\.step writes into its State, which the run may"
    with pytest.raises(Overwritten, match=line), only_read(Mine(), "step", "its State", mine):
        write(mine)
        if stops:
            raise Interrupted(2)


def test_what_is_read_alone_passes() -> None:
    mine = held()
    with only_read(Mine(), "step", "its State", mine):
        assert float(mine.x.sum() + mine.rows[3].mul(2).sum()) == 4
    with pytest.raises(Interrupted), only_read(Mine(), "step", "its State", mine):
        raise Interrupted(2)


def test_the_innermost_method_is_named() -> None:
    x = torch.zeros(2)
    outer, inner = only_read(Mine(), "round", "its State", x), only_read(Mine(), "step", "x", x)
    with pytest.raises(Overwritten, match=r"^Mine\.step writes into x, which the run may"), outer, inner:
        x.add_(1)
