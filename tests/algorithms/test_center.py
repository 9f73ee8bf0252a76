"""Center: identities with other methods, and closed forms of its steps."""

from typing import Any

from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.algorithms.shared.server_training import train_on_server
from tests.helpers.identities import close
from tests.helpers.toy import algorithm, federation, run, server_data


def test_center_is_adam_over_all_its_epochs() -> None:
    fed = federation(server=server_data(40))
    batches = []
    for round in range(3):
        fed.begin(round, 1.0)
        batches += list(server_batches(fed, 1, 16))
    expected = train_on_server(fed, fed.family.init(0), batches, 0.02).model
    for rounds in (3, 5):  # and then it stands still
        state: Any = run(
            algorithm("center", epochs=3, batch_size=16, lr=0.02), federation(server=server_data(40)), rounds
        )
        close(state.params, expected)
        assert state.steps == 9
    capped: Any = run(algorithm("center", epochs=3, batch_size=16, max_steps=4), federation(server=server_data(40)), 3)
    assert capped.steps == 4


def test_center_asks_no_client() -> None:
    fed = federation()
    run(algorithm("center"), fed, 1)
    metrics = fed.collect()
    assert set(metrics) == {"cost/server_gflops", "cost/server_cache_mb"}
    assert metrics["cost/server_cache_mb"] == 2 * fed.family.num_params * 4 / 1e6, "Adam's two moments"
