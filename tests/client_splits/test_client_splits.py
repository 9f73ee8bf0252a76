"""Every client's examples by use: what is common to all choices, and what each of them promises."""

from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.client_splits.base import ClientSplit, Parts
from fedlab_runner.client_splits.natural import NaturalSplit
from fedlab_runner.client_splits.redealt import Redealt, proportional
from fedlab_runner.client_splits.shares import Shares
from fedlab_runner.config.build import build, conf_dir
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.experiment.setup import prepare
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed

CHOICES: dict[str, ClientSplit] = {
    "shares": Shares(validation=0.2, test=0.3),
    "natural": NaturalSplit(validation=0.2),
    "redealt": Redealt(validation=0.2),
}
OWNED = [np.arange(0, 40), np.arange(40, 41), np.arange(41, 60), np.arange(60, 60), np.arange(60, 100)]


def examples(n: int, seed: int) -> Examples:
    """Examples of two classes with four finer labels. The users are the clients of `OWNED`, and in the test set a
    fifth that is nobody's.
    """
    rng = np.random.default_rng(seed)
    labels = torch.from_numpy(rng.integers(4, size=n))
    owner = np.repeat(np.arange(len(OWNED)), [len(mine) for mine in OWNED])
    users = torch.from_numpy(owner if n == len(owner) else rng.integers(6, size=n))
    return Examples(torch.zeros(n, 2), labels // 2, labels, users)


TRAIN, TEST = examples(100, 0), examples(60, 1)


def split(choice: ClientSplit, seed: int = 0, owned: list[np.ndarray] = OWNED) -> Parts:
    return choice.split(owned, TRAIN, TEST, seed)


def lists(parts: Parts) -> list[list[int]]:
    return [mine.tolist() for each in (parts.train, parts.validation, parts.test or []) for mine in each]


def test_each_choice_of_the_group_is_tested_here() -> None:
    assert set(CHOICES) == {path.stem for path in (conf_dir() / "client_split").glob("*.yaml")}


@pytest.mark.parametrize("name", CHOICES)
def test_uses_are_disjoint_cover_the_clients_examples_and_are_a_function_of_the_seed(name: str) -> None:
    parts = split(CHOICES[name])
    assert parts.test is not None and parts.from_test_set == (name != "shares")
    assert parts.validation[0].tolist() != (parts.validation[4] - 60).tolist(), "clients of one size draw apart"
    for client, mine in enumerate(OWNED):
        uses = [parts.train[client], parts.validation[client]] + ([] if parts.from_test_set else [parts.test[client]])
        assert sorted(np.concatenate(uses).tolist()) == mine.tolist(), "each once"
        assert all((np.diff(each) > 0).all() for each in uses), "ascending"
        assert len(parts.validation[client]) == int(0.2 * len(mine)) and (len(parts.train[client]) > 0) == bool(
            len(mine)
        )
    everywhere = np.concatenate(parts.test)
    assert len(np.unique(everywhere)) == len(everywhere) > 0
    assert lists(parts) == lists(split(CHOICES[name]))
    assert lists(parts) != lists(split(CHOICES[name], seed=1))


@pytest.mark.parametrize("name", ["shares", "natural"])
def test_a_clients_draw_depends_on_its_own_examples_alone(name: str) -> None:
    others = [OWNED[0][:7], *OWNED[1:]]
    mine, theirs = split(CHOICES[name]), split(CHOICES[name], owned=others)
    for ours, after in zip((mine.train, mine.validation), (theirs.train, theirs.validation), strict=True):
        assert [each.tolist() for each in ours[1:]] == [each.tolist() for each in after[1:]]


def test_shares_are_of_all_examples_of_a_client() -> None:
    parts = split(Shares(validation=0.25, test=0.5))
    assert [len(mine) for mine in parts.test or []] == [20, 0, 9, 0, 20]
    assert [len(mine) for mine in parts.validation] == [10, 0, 4, 0, 10]
    everything = split(Shares(validation=0.57, test=0.29), owned=[np.arange(100)])
    assert everything.test is not None and len(everything.test[0]) == 29, "0.29 * 100 is 28.999999999999996 in floats"
    assert len(everything.validation[0]) == 57
    assert split(Shares(validation=0.0, test=0.0)).test is None, "no own test, not an empty one"
    alone = split(Shares(validation=0.25, test=0.0)).validation
    assert all(np.isin(mine, OWNED[i]).all() for i, mine in enumerate(alone))
    apart = split(Shares(validation=0.0, test=0.25)).test
    assert apart is not None and list(map(list, apart)) != list(map(list, alone)), "each use has its own stream"


@pytest.mark.parametrize("rule", [Shares, Redealt])
def test_clients_that_share_examples_set_none_aside_for_validation(rule: Any) -> None:
    """Another client would train on them."""
    keys, shared = {"test": 0.0} if rule is Shares else {}, [np.arange(9), np.arange(4, 20)]
    with pytest.raises(UserError, match=r"^client_split\.validation must be 0 where several clients hold an example: "):
        split(rule(validation=0.2, **keys), owned=shared)
    assert list(map(list, split(rule(validation=0.0, **keys), owned=shared).train)) == list(map(list, shared))


def test_natural_tests_are_those_of_the_clients_users() -> None:
    parts = split(CHOICES["natural"])
    assert TEST.users is not None and parts.test is not None
    for client, mine in enumerate(parts.test):
        expected = (TEST.users == client).nonzero().flatten().tolist() if len(OWNED[client]) else []
        assert mine.tolist() == expected


def test_the_test_set_is_dealt_in_the_proportions_of_each_class() -> None:
    parts, rng = split(CHOICES["redealt"]), generator(0, Purpose.OWN_TEST)
    assert parts.test is not None and sorted(np.concatenate(parts.test).tolist()) == list(range(60))
    for label in range(4):
        places = rng.permutation(np.flatnonzero(TEST.strata == label))  # of one stream: the classes draw apart
        order = rng.permutation(len(OWNED))
        dealt = [np.intersect1d(parts.test[client], places) for client in order]
        ends = np.cumsum([len(mine) for mine in dealt])[:-1]
        assert all(np.array_equal(a, np.sort(b)) for a, b in zip(dealt, np.split(places, ends), strict=True))
        held = np.array([int((TRAIN.strata[mine] == label).sum()) for mine in OWNED])
        got = np.array([int((TEST.strata[mine] == label).sum()) for mine in parts.test])
        exact = held * got.sum() / held.sum()
        assert (np.abs(got - exact) < 1).all() and got.sum() == int((TEST.strata == label).sum())
    other = split(CHOICES["redealt"], seed=1).test
    assert other is not None and list(map(list, other)) != list(map(list, parts.test)), "random ones"


def test_the_first_clients_get_no_more_than_others_with_as_many_examples() -> None:
    """Fifty clients with an example of each class divide 60 test examples: the first half gets 30 on average, with a
    standard deviation of 3.3.
    """
    strata = torch.arange(200) % 4
    train = Examples(torch.zeros(200, 1), strata, strata, None)
    owned = [np.arange(4 * client, 4 * client + 4) for client in range(50)]
    first = []
    for seed in range(100):
        parts = Redealt(0.0).split(owned, train, TEST, seed).test
        assert parts is not None
        first.append(sum(map(len, parts[:25])))
    assert abs(np.mean(first) - 30) < 3.3 * 0.33


def test_a_class_that_no_client_holds_is_dealt_to_nobody() -> None:
    few = [np.flatnonzero(TRAIN.strata.numpy() == 1), np.flatnonzero(TRAIN.strata.numpy() == 2)]
    parts = split(CHOICES["redealt"], owned=few)
    assert parts.test is not None
    assert [set(TEST.strata[mine].tolist()) for mine in parts.test] == [{1}, {2}]


@pytest.mark.parametrize(
    ("weights", "total", "counts"),
    [
        ([1, 1, 1], 4, [2, 1, 1]),
        ([3, 0, 1], 4, [3, 0, 1]),
        ([5, 4, 1], 3, [2, 1, 0]),
        ([1, 1], 0, [0, 0]),
        ([3, 1] * 10, 5, [1, 0] * 5 + [0, 0] * 5),
    ],
)
def test_the_largest_remainders_are_rounded_up(weights: list[int], total: int, counts: list[int]) -> None:
    assert proportional(np.array(weights), total).tolist() == counts


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shares(validation=0.0, test=1.0), r"^test must be in \[0, 1\), got 1\.0$"),
        (lambda: Shares(validation=0.5, test=0.5), r"^test must be < 1 - validation \(0\.5\), got 0\.5$"),
        (lambda: Redealt(validation=-0.1), r"^validation must be in \[0, 1\)"),
        (lambda: NaturalSplit(validation=1.0), r"^validation must be in \[0, 1\)"),
        (
            lambda: split(Shares(validation=0.0, test=0.5), owned=[np.arange(5), np.arange(4, 9)]),
            r"^client_split\.test must be 0 where several clients hold an example: .*client_split=redealt$",
        ),
        (
            lambda: split(CHOICES["natural"], owned=[np.arange(5), np.arange(5, 9)]),
            r"^client_split=natural needs clients that share no user: choose partition=natural$",
        ),
        (
            lambda: CHOICES["natural"].split(OWNED, TRAIN, TEST._replace(users=None), 0),
            r"^client_split=natural needs a test set with users, and this test set has none$",
        ),
        (
            lambda: CHOICES["natural"].split(OWNED, TRAIN._replace(users=None), TEST, 0),
            r"^client_split=natural needs a data set with users, and this data set has none$",
        ),
    ],
)
def test_what_cannot_be_is_one_line(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_clients_own_test_has_labels_without_noise_and_is_not_trained_on() -> None:
    noisy = ("client_split.test=0.5", "label_noise=1.0", "server_data=none", "algorithm=fedavg")
    prepared = prepare(build(composed(*noisy)))
    fed = prepared.simulation.fed
    assert fed.client_tests is not None
    assert fed.client_tests.inputs.data_ptr() == fed.client_data.inputs.data_ptr(), "the images are there once"
    assert torch.equal(fed.client_tests.targets, prepared.data.train.targets)
    assert not torch.equal(fed.client_data.targets, prepared.data.train.targets)
    for client in range(fed.num_clients):
        assert not np.intersect1d(fed.client_tests.members(client), fed.client_data.members(client)).size
    assert prepared.uses["test"] == fed.client_tests.num_examples.tolist()
    assert prepared.uses["train"] == fed.client_data.num_examples.tolist()


def test_all_algorithms_have_the_same_split() -> None:
    found = []
    for algorithm in ("fedavg", "dfml"):
        prepared = prepare(build(composed("client_split=redealt", "server_data=none", f"algorithm={algorithm}")))
        found.append(lists(prepared.parts))
    assert found[0] == found[1]
