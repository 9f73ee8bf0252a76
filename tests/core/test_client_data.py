import numpy as np
import pytest
import torch

from fedlab_runner.core.client_data import ClientData, Plan
from tests.helpers.toy import CPU, RAGGED, examples, local


@pytest.fixture
def client_data() -> ClientData:
    inputs, targets = examples(sum(RAGGED))
    return ClientData(inputs, targets, np.split(np.arange(sum(RAGGED))[::-1], np.cumsum(RAGGED)[:-1]), CPU)


def plan(client_data: ClientData, ids: list[int], drop_single: bool = False, round: int = 0, **changes: object) -> Plan:
    return client_data.plan(
        np.array(ids, dtype=np.int64), local(**changes), seed=0, round=round, drop_single=drop_single
    )


def batches(plan: Plan, k: int) -> list[list[int]]:
    return [plan.indices[k, t, :size].tolist() for t, size in enumerate(plan.sizes[k].tolist()) if size]


def test_each_epoch_visits_each_example_of_the_client_once(client_data: ClientData) -> None:
    ids = list(range(len(RAGGED)))
    made = plan(client_data, ids, epochs=3)
    for k in ids:
        visited = [example for batch in batches(made, k) for example in batch]
        n = RAGGED[k]
        epochs = [visited[e * n : (e + 1) * n] for e in range(3)]
        assert all(sorted(epoch) == sorted(client_data.members(k).tolist()) for epoch in epochs)
        assert n < 7 or epochs[0] != epochs[1], "reshuffled"
        assert [len(batch) for batch in batches(made, k)] == ([8] * (n // 8) + [n % 8] * (n % 8 > 0)) * 3


def test_minibatches_do_not_depend_on_who_else_trains(client_data: ClientData) -> None:
    together, alone = plan(client_data, [5, 2, 7]), plan(client_data, [7])
    assert batches(together, 2) == batches(alone, 0)
    assert batches(alone, 0) != batches(plan(client_data, [7], round=1), 0)


def test_steps_go_on_through_epochs_and_stop_inside_one(client_data: ClientData) -> None:
    made = plan(client_data, [2, 5], epochs=None, steps=4)
    assert [len(batch) for batch in batches(made, 0)] == [7] * 4
    assert [len(batch) for batch in batches(made, 1)] == [8, 8, 4, 8]
    assert made.last_epoch.tolist() == [3, 1]
    assert client_data.num_steps(np.array([2, 5]), local(epochs=None, steps=4), False).tolist() == [4, 4]


def test_a_last_minibatch_of_one_is_dropped_for_batch_norm(client_data: ClientData) -> None:
    made = plan(client_data, [4, 0, 1], drop_single=True)  # 9, 1 and 2 examples
    assert [len(batch) for batch in batches(made, 0)] == [8, 8]
    assert [len(batch) for batch in batches(made, 1)] == [1, 1], "a client's only example stays"
    assert [len(batch) for batch in batches(made, 2)] == [2, 2]
    assert [len(batch) for batch in batches(plan(client_data, [4]), 0)] == [8, 1, 8, 1]


def test_the_last_epoch_is_known(client_data: ClientData) -> None:
    assert plan(client_data, [0, 5, 7], epochs=3).last_epoch.tolist() == [2, 6, 10]


def test_nobody_and_empty_clients_have_no_minibatches() -> None:
    inputs, targets = examples(4)
    client_data = ClientData(inputs, targets, [np.arange(4), np.empty(0, np.int64)], CPU)
    assert plan(client_data, []).indices.shape == (0, 0, 8)
    made = plan(client_data, [1, 0])
    assert made.sizes[0].sum() == 0 and made.sizes[1].tolist() == [4, 4]
    assert client_data.num_steps(np.array([1, 0]), local(epochs=None, steps=3), False).tolist() == [0, 3]


def test_examples_stay_as_they_are_stored() -> None:
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    client_data = ClientData(images, torch.zeros(4, dtype=torch.int64), [np.arange(4)], CPU)
    assert client_data.inputs.dtype == torch.uint8 and client_data.inputs.data_ptr() == images.data_ptr()


def test_labels_are_counted_for_each_client_in_the_order_asked(client_data: ClientData) -> None:
    ids = np.array([3, 0, 2])
    counts = client_data.label_counts(ids, 4)
    for row, i in zip(counts, ids, strict=True):
        assert row.tolist() == torch.bincount(client_data.targets[client_data.members(i)], minlength=4).tolist()
    assert client_data.label_counts(ids[:0], 4).shape == (0, 4)


def test_a_drawn_share_is_rounded_down_but_not_by_the_digits_of_floats() -> None:
    """0.29 * 100 is 28.999999999999996 in floats."""
    data = ClientData(*examples(110), [np.arange(100), np.arange(100, 101), np.arange(101, 110)], CPU)
    rngs = (np.random.default_rng(client) for client in range(3))
    assert data.drawn(np.arange(3), 0.29, rngs).num_examples.tolist() == [29, 1, 2]
