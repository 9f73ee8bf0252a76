"""CA2FL: identities with other methods, and closed forms of its steps."""

from typing import Any

import pytest
import torch

from tests.helpers.identities import LATE, arrivals, close, evaluated
from tests.helpers.toy import EQUAL, RAGGED, algorithm, federation, normed, run


def test_the_first_step_is_fedbuffs() -> None:
    size = len(RAGGED)
    how = {"buffer_size": size, "server_lr": 0.7}
    close(evaluated("ca2fl", 1, **how), evaluated("fedbuff", 1, **how))
    assert not torch.allclose(evaluated("ca2fl", 2, buffer_size=3), evaluated("fedbuff", 2, buffer_size=3))


@pytest.mark.parametrize("build", [None, normed])
def test_with_a_buffer_of_all_clients_it_is_uniform_fedavg(build: Any) -> None:
    """v = mean Delta for any h, when each client is in the buffer once."""
    fed = {"build": build} if build else {}
    close(evaluated("ca2fl", 4, fed, buffer_size=len(RAGGED)), evaluated("fedavg", 4, fed, weighting="uniform"))


@pytest.mark.parametrize("buffer_size", [1, 2, 5])
def test_h_is_the_mean_of_all_clients(buffer_size: int) -> None:
    """Of their updates when the buffer was last emptied; what has come since is in the buffer."""
    fed = federation(**LATE)
    built: Any = algorithm("ca2fl", buffer_size=buffer_size)
    state = built.init(fed)
    for round in range(12):
        state = run(built, fed, 1, first=round, state=state)
        total = torch.stack([*state.h_i.values(), torch.zeros_like(state.h)]).sum(0)
        close(state.h + state.buffer / fed.num_clients, total / fed.num_clients)
    assert 3 < len(state.h_i) <= fed.num_clients and state.h.abs().sum() > 0


def test_ca2fl_calibrates_each_update_by_its_clients_last_one() -> None:
    """Written out for N = 4, M = 2; client 1 comes twice in the second buffer: its second change is from its first."""
    fed, built = federation([4] * 4), algorithm("ca2fl", buffer_size=2, server_lr=0.5)
    state: Any = built.init(fed)._replace(params=torch.zeros(2), h=torch.zeros(2), buffer=torch.zeros(2))
    rows = torch.tensor([[4.0, 0.0], [0.0, 8.0], [2.0, 2.0], [6.0, 6.0], [1.0, 0.0]])
    state = built.server_step(state, arrivals(rows[:2], ids=[0, 1]), fed)  # type: ignore[attr-defined]
    assert state.params.tolist() == [1.0, 2.0] and state.h.tolist() == [1.0, 2.0]
    state = built.server_step(state, arrivals(rows[2:], ids=[1, 1, 2]), fed)  # type: ignore[attr-defined]
    # buffer: (2, 2) - (0, 8) + (6, 6) - (2, 2) = (6, -2); v = (1, 2) + (3, -1)
    assert state.params.tolist() == [1 + 0.5 * 4, 2 + 0.5 * 1]
    assert state.h.tolist() == [1 + 6 / 4, 2 - 2 / 4]
    assert (state.buffered, state.buffer.tolist(), state.h_i[1].tolist()) == (1, [1.0, 0.0], [6.0, 6.0])


def test_ca2fl_divides_by_all_clients_however_few_are_known() -> None:
    fed = federation([4] * 10, participation=None, cohort=1)
    state: Any = run(algorithm("ca2fl", buffer_size=1), fed, 1)
    assert len(state.h_i) == 1
    close(state.h, next(iter(state.h_i.values())) / 10)
    assert algorithm("ca2fl", buffer_size=1).stands_still([torch.zeros(1).numpy()]) is None, "one is enough"


def test_ca2fl_keeps_one_update_for_each_client() -> None:
    fed = federation(EQUAL)
    run(algorithm("ca2fl", buffer_size=3), fed, 2)
    values = fed.collect()["cost/server_cache_mb"] * 1e6 / 4
    assert values == pytest.approx((len(EQUAL) + 2) * fed.family.size), "h_i, h and the buffer"
