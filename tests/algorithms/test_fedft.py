"""Fed+FT: identities with other methods, and closed forms of its steps."""

import pytest

from fedlab_runner.algorithms.shared.averaging import LATE_POLICIES
from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.algorithms.shared.server_training import train_on_server
from tests.helpers.identities import LATE, close, evaluated
from tests.helpers.toy import algorithm, federation, normed, run


@pytest.mark.parametrize("policy", LATE_POLICIES)
def test_fedft_without_epochs_is_fedavg(policy: str) -> None:
    close(evaluated("fedft", 4, LATE, epochs=0, late_policy=policy), evaluated("fedavg", 4, LATE, late_policy=policy))


def test_fedft_is_fedavg_then_adam() -> None:
    fed = federation(build=normed)
    mine = run(algorithm("fedft", lr=0.01, epochs=2), fed, 1).params
    other = federation(build=normed)
    averaged = run(algorithm("fedavg"), other, 1).params
    close(mine, train_on_server(other, averaged, server_batches(other, 2, 64), 0.01).model)


def test_fedft_without_clients_is_center_with_a_fresh_optimiser() -> None:
    """One round each: nobody reports, and both take one epoch from the first model."""
    fed = {"std": 1e6, "cohort": 2}
    close(evaluated("fedft", 1, fed, lr=0.01, epochs=1), evaluated("center", 1, fed, lr=0.01, epochs=1))
