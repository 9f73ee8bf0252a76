"""Learning without a server: who meets, who keeps its model, what is sent, several architectures."""

from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.algorithms.shared.decentralized import pick_participants, train
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.core.own_models import models_of
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.topologies.ring import Ring
from fedlab_runner.topologies.star import Star
from fedlab_runner.topologies.two_groups import TwoGroups
from fedlab_runner.utils.errors import UserError
from tests.helpers.mixed import KINDS, PARTIAL, WIDTHS, distinct, mixed
from tests.helpers.toy import ALGORITHMS, EQUAL, algorithm, federation, run, tensors

SERVERLESS = [name for name in ALGORITHMS if algorithm(name).decentralized and name != "dpsgd"]  # with meetings
MIXED = sorted(set(SERVERLESS) - {"def_kt", "heterofl", "fedrolex", "federated_dropout"})


def test_a_meeting_is_the_aggregator_and_some_of_its_neighbours() -> None:
    fed = federation([5] * 10, cohort=4)
    aggregator, seen = 0, set()
    for round in range(30):
        fed.begin(round, 1.0)
        meeting = pick_participants(fed, aggregator)
        assert meeting.aggregator == aggregator and aggregator not in meeting.senders
        assert len(set(meeting.senders.tolist())) == 4 and meeting.next != aggregator
        assert meeting.participants.tolist() == sorted({aggregator, *meeting.senders.tolist()})
        aggregator = meeting.next
        seen.add(aggregator)
    assert len(seen) > 6


@pytest.mark.parametrize("topology", [Ring(), Star(2), TwoGroups()], ids=repr)
def test_only_neighbours_send_and_succeed(topology: Any) -> None:
    linked = topology.draw(generator(0, Purpose.TOPOLOGY), 9)
    fed = federation([5] * 9, cohort=4, topology=linked)
    aggregator = 0
    for round in range(20):
        fed.begin(round, 1.0)
        meeting = pick_participants(fed, aggregator)
        assert linked[aggregator, meeting.senders].all() and linked[aggregator, meeting.next]
        assert len(meeting.senders) == min(4, linked[aggregator].sum())
        aggregator = meeting.next


def test_clients_without_examples_stay_out() -> None:
    fed = federation([0, 5, 5, 0, 5], cohort=3)
    state = algorithm("dec_fedavg").init(fed)
    assert state.aggregator == 1
    for round in range(8):
        fed.begin(round, 1.0)
        meeting = pick_participants(fed, 1)
        assert set(meeting.participants.tolist()) <= {1, 2, 4} and meeting.next in (2, 4)


@pytest.mark.parametrize("name", [*MIXED, *PARTIAL])
def test_mixed_runs_resume_bit_for_bit(name: str) -> None:
    builds = WIDTHS if name in PARTIAL else KINDS
    built, fed = algorithm(name), mixed(builds=builds, cohort=3)
    state = built.init(fed)
    for round in range(5):
        saved = pack(state)
        again = run(built, mixed(builds=builds, cohort=3), 1, round, unpack(saved, like=built.init(fed)))
        state = run(built, fed, 1, round, state)
        assert all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(again), strict=True))


@pytest.mark.parametrize("name", SERVERLESS)
def test_those_who_are_not_there_keep_their_models(name: str) -> None:
    built, fed = algorithm(name), federation([6] * 8, cohort=2)
    state = run(built, fed, 3)
    before, after = state.models, run(built, fed, 1, 3, state).models
    changed = {i for i in range(8) if not torch.equal(before[i], after[i])}
    there = set(pick_participants(fed, state.aggregator).participants.tolist())
    assert changed and (changed <= there if name != "def_kt" else len(changed) <= 4)


@pytest.mark.parametrize("name", SERVERLESS)
def test_more_senders_than_there_can_be_are_refused(name: str) -> None:
    """Of the clients that may train: one without examples neither sends nor aggregates."""
    for sizes in (EQUAL, (*EQUAL, 0)):
        with pytest.raises(
            UserError, match=r"^participation must .* 4 clients that may train.*got 4 senders$"
        ) as error:
            algorithm(name).check(federation(sizes, cohort=4))
        assert "\n" not in str(error.value)


def test_what_is_sent_is_counted() -> None:
    fed = mixed(cohort=3)
    fed.begin(0, 1.0)
    state = algorithm("dec_fedavg").init(fed)
    meeting = pick_participants(fed, state.aggregator)
    algorithm("dec_fedavg").round(state, fed)
    megabytes = sum(fed.families[i % 3].size for i in meeting.senders.tolist()) * 4 / 1e6
    metrics = fed.collect()
    assert metrics["comm/models"] == 6
    assert metrics["comm/upload_mb"] == metrics["comm/download_mb"] == pytest.approx(megabytes)


def test_the_training_loss_is_that_of_all_architectures() -> None:
    fed = mixed(cohort=3)
    fed.begin(0, 1.0)
    train(fed, distinct(fed), np.arange(7))
    every = []
    for group in fed.by_architecture(np.arange(7)):
        cohort = fed.cohort(group.ids, group.family)
        cohort.train(models_of(fed, distinct(fed), group))
        assert cohort.last_loss is not None
        every.append((cohort.last_loss * cohort.num_examples).sum())
    fed.begin(0, 1.0)
    train(fed, distinct(fed), np.arange(7))
    assert fed.collect()["train/loss"] == pytest.approx(float(sum(every)) / fed.client_data.num_examples.sum())
