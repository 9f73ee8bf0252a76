"""FedExP: identities with other methods, and closed forms of its steps."""

from typing import Any

import pytest
import torch

from fedlab_runner.algorithms.fedexp import FedExPUpload
from fedlab_runner.core.updates import Updates
from tests.helpers.identities import arrivals as arrivals_of
from tests.helpers.identities import close
from tests.helpers.toy import algorithm, federation, normed, run


def arrivals(rows: torch.Tensor, **how: Any) -> Updates[FedExPUpload]:
    found = arrivals_of(rows, **how, upload=FedExPUpload)
    found.upload = found.upload._replace(squares=rows.square().sum(1))
    return found


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_fedexp_of_changes_that_agree_is_fedavg(eps: float) -> None:
    built: Any = algorithm("fedexp", eps=eps)
    fed = federation()
    state, delta = built.init(fed), torch.linspace(-1, 1, fed.family.size, dtype=torch.float64)
    for rows in (delta.expand(4, -1), delta.unsqueeze(0)):
        fed.begin(0, 1.0)
        close(built.server_step(state, arrivals(rows), fed).params, state.params + delta)
        assert fed.collect()["algorithm/server_lr"] == 1


@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_fedexp_of_orthogonal_changes_steps_half_as_far_as_there_are_clients(m: int) -> None:
    built: Any = algorithm("fedexp", eps=0.0, weighting="uniform")
    fed = federation()
    state, rows = built.init(fed), 3 * torch.eye(m, fed.family.size, dtype=torch.float64)
    after = built.server_step(state, arrivals(rows, num_examples=list(range(1, m + 1))), fed)
    assert fed.collect()["algorithm/server_lr"] == pytest.approx(max(1, m / 2))
    close(after.params, state.params + max(1, m / 2) * rows.mean(0))


def test_fedexp_is_its_step_written_out() -> None:
    """Sizes as weights, eps, and batch norm statistics left out of the norms and of the extrapolation."""
    fed = federation(build=normed)
    built: Any = algorithm("fedexp", eps=0.5)
    p = fed.family.num_params
    state, rows = built.init(fed), torch.zeros(4, p, dtype=torch.float64)
    rows[:, :4] = 4 * torch.eye(4, dtype=torch.float64)
    statistics = torch.full((4, fed.family.num_buffers), 7.0, dtype=torch.float64)
    after = built.server_step(state, arrivals(rows, num_examples=[1, 2, 2, 3], statistics=statistics), fed)
    server_lr = 16 / (2 * (16 * (1 + 4 + 4 + 9) / 64 + 0.5))  # mean change: 4 (1, 2, 2, 3) / 8
    assert server_lr > 1.5
    assert fed.collect()["algorithm/server_lr"] == pytest.approx(server_lr)
    change = after.params - state.params
    close(change[:4], server_lr * torch.tensor([0.5, 1.0, 1.0, 1.5], dtype=torch.float64))
    close(after.params[p:], statistics[0])
    two = arrivals(rows[:2], num_examples=[1, 3], statistics=statistics[:2])
    built.server_step(state, two, fed)  # 16 / (2 (10 + 0.5)) is less than 1
    assert fed.collect()["algorithm/server_lr"] == 1


def test_fedexp_of_changes_that_cancel_stays_finite() -> None:
    fed = federation()
    rows = torch.ones(2, fed.family.size, dtype=torch.float64) * torch.tensor([[1.0], [-1.0]])
    built: Any = algorithm("fedexp", eps=0.0)
    state = built.init(fed)
    assert torch.equal(built.server_step(state, arrivals(rows), fed).params, state.params)


def test_fedexp_evaluates_the_mean_of_the_last_two_models() -> None:
    one, two = (run(algorithm("fedexp"), federation(), rounds) for rounds in (1, 2))
    assert torch.equal(two.previous, one.params)
    nobody = arrivals(one.params.new_zeros(0, len(one.params)))
    assert algorithm("fedexp").server_step(two, nobody, federation()) is two, "no model is new"
    close(algorithm("fedexp").models(two), (one.params + two.params) / 2)
    plain = algorithm("fedexp", eval_avg_last2=False)
    close(plain.models(run(plain, federation(), 2)), two.params)
