"""Def-KT: who is paired, what is sent, and that receivers do not change senders."""

import math

import pytest
import torch

from fedlab_runner.algorithms.def_kt import _pairs
from fedlab_runner.algorithms.shared.decentralized import Clients
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.update_guard import Guard
from fedlab_runner.topologies.star import Star
from fedlab_runner.utils.errors import UserError
from tests.helpers.mixed import distinct
from tests.helpers.toy import algorithm, federation, stacked


def test_senders_are_not_changed_by_receivers() -> None:
    fed, built = federation([8, 12, 5, 9, 16, 10], cohort=3), algorithm("def_kt", epochs=2)
    fed.begin(2, 1.0)
    start = Clients(distinct(fed), 0)
    after = stacked(built.round(start, fed).models)
    metrics = fed.collect()
    assert metrics["comm/models"] == 3 and metrics["comm/download_mb"] == 0
    senders, receivers = (ids.tolist() for ids in _pairs(fed))
    assert len(set(senders) | set(receivers)) == 6
    alone = stacked(algorithm("def_kt", epochs=0).round(start, fed).models)
    assert torch.equal(alone[senders], after[senders]), "A's models do not depend on what B does"
    assert torch.equal(alone[receivers], after[senders])


def test_the_training_loss_of_def_kt_is_the_senders() -> None:
    """What receivers teach each other is another objective, reported beside it."""
    seen = []
    for epochs in (0, 2):
        fed, built = federation([8] * 6, cohort=3), algorithm("def_kt", epochs=epochs)
        state = built.init(fed)
        fed.begin(0, 1.0)
        built.round(state, fed)
        seen.append(fed.collect())
    assert seen[0]["train/loss"] == seen[1]["train/loss"] > 0
    assert "algorithm/mutual_loss" not in seen[0] and seen[1]["algorithm/mutual_loss"] > seen[1]["train/loss"]


def test_pairs_that_are_not_finite_are_left_out_of_their_loss() -> None:
    """As clients are left out of train/loss. Where no pair is finite there is no loss."""
    found = []
    for scale, spoilt in ((1.0, []), (float("nan"), [0]), (float("nan"), [0, 1, 2])):
        fed, built = federation([8] * 6, cohort=3), algorithm("def_kt", epochs=2)
        fed.trainer.guard, receivers = Guard("drop"), _pairs(fed)[1]
        for client in receivers[spoilt].tolist():
            fed.client_data.inputs[torch.from_numpy(fed.client_data.members(client))] *= scale
        fed.begin(0, 1.0)
        built.round(built.init(fed), fed)
        found.append(fed.collect().get("algorithm/mutual_loss"))
    whole, part, nothing = found
    assert whole is not None and part is not None and nothing is None
    assert math.isfinite(part) and part != whole


def test_def_kt_needs_half_of_the_clients() -> None:
    with pytest.raises(UserError, match=r"^participation must be at most half of the 6 clients"):
        algorithm("def_kt", epochs=1).check(federation([5] * 6, cohort=4))
    algorithm("def_kt", epochs=1).check(federation([5] * 6, cohort=3))


def test_def_kt_pairs_neighbours_only() -> None:
    linked = Star(0).draw(generator(0, Purpose.TOPOLOGY), 7)
    for round in range(6):
        fed = federation([5] * 7, cohort=3, topology=linked)
        fed.begin(round, 1.0)
        senders, receivers = _pairs(fed)
        assert len(senders) <= 1 and linked[senders, receivers].all()
