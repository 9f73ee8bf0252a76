"""HFCL: identities with other methods, and closed forms of its steps."""

import pytest

from fedlab_runner.algorithms.shared.averaging import LATE_POLICIES
from fedlab_runner.algorithms.shared.server_training import train_as_client
from tests.helpers.identities import LATE, close, evaluated
from tests.helpers.toy import algorithm, federation, local, run, server_data


def test_hfcl_without_examples_is_fedavg() -> None:
    for policy in LATE_POLICIES:
        mine = evaluated("hfcl", 4, LATE | {"server": server_data(0)}, late_policy=policy)
        close(mine, evaluated("fedavg", 4, LATE, late_policy=policy))


@pytest.mark.parametrize("policy", LATE_POLICIES)
def test_hfcl_is_fedavg_with_one_more_client(policy: str) -> None:
    """The server's examples as a client's own give the same model, on full batches and without delay."""
    training = local(batch_size=100)
    fed = federation([8, 20], training=training, server=server_data(40))
    assert fed.server_data is not None
    mine = run(algorithm("hfcl", late_policy=policy), fed, 3).params
    other = federation([8, 20, 40], training=training)
    other.client_data.inputs[:28], other.client_data.targets[:28] = fed.client_data.inputs, fed.client_data.targets
    other.client_data.inputs[28:], other.client_data.targets[28:] = fed.server_data.inputs, fed.server_data.targets
    close(mine, run(algorithm("fedavg"), other, 3).params)


def test_hfcl_moves_by_the_server_alone_when_nobody_reports() -> None:
    fed = federation([8, 8], std=1e6)
    state = run(algorithm("hfcl"), fed, 1)
    close(state.params, train_as_client(fed, fed.family.init(0)))
