"""FedBuff: identities with other methods, and closed forms of its steps."""

from typing import Any

import pytest
import torch

from tests.helpers.identities import Sent, arrivals, close, evaluated
from tests.helpers.toy import EQUAL, RAGGED, algorithm, federation, run


def test_fedbuff_with_a_buffer_of_the_cohort_is_uniform_fedavg() -> None:
    close(evaluated("fedbuff", buffer_size=len(RAGGED)), evaluated("fedavg", weighting="uniform"))


def test_fedbuff_steps_whenever_the_buffer_is_full_and_keeps_the_rest() -> None:
    built: Any = algorithm("fedbuff", buffer_size=2, server_lr=0.5, staleness_exp=1.0)
    state = built.init(federation([4]))._replace(params=torch.zeros(1), buffer=torch.tensor([[4.0]]))
    fed = federation([4])
    rows = torch.tensor([[2.0], [8.0], [1.0], [9.0]])
    after = built.server_step(state, arrivals(rows, staleness=[0, 1, 0, 2], upload=Sent), fed)
    # weighted: 2, 4, 1, 3; buffer 4 2 | 4 1 | 3: steps 0.5 * 3 and 0.5 * 2.5
    assert after.params.tolist() == [pytest.approx(2.75)] and after.buffer.tolist() == [[3.0]]
    assert fed.collect() == {"algorithm/buffered": 1}


def test_fedbuff_without_a_full_buffer_does_not_move() -> None:
    built: Any = algorithm("fedbuff", buffer_size=100)
    state = run(built, federation(EQUAL), 3)
    assert torch.equal(state.params, federation(EQUAL).family.init(0)) and state.buffer.shape[0] == 12
