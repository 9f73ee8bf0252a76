"""Decentralised FedAvg: FedAvg where everyone meets."""

import torch

from tests.helpers.toy import algorithm, federation, run


def test_with_everyone_there_decentralised_fedavg_is_fedavg() -> None:
    sizes = [8, 3, 20, 5]
    central, fed = run(algorithm("fedavg"), federation(sizes), 3), federation(sizes, cohort=3)
    state = run(algorithm("dec_fedavg"), fed, 3)
    assert all(torch.allclose(row, central.params, rtol=0, atol=1e-12) for row in state.models.values())
