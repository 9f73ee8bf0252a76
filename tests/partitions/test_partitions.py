"""What every partition must do, for every file in conf/partition, and what each one is."""

import logging
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.partitions.dirichlet_equal_size import DirichletEqualSize
from fedlab_runner.partitions.dirichlet_per_client import DirichletPerClient
from fedlab_runner.partitions.dirichlet_unbounded import DirichletUnbounded
from fedlab_runner.partitions.iid import IID
from fedlab_runner.partitions.labels_per_client import LabelsPerClient
from fedlab_runner.partitions.natural import Natural
from fedlab_runner.partitions.power_law import PowerLaw
from fedlab_runner.partitions.quantity_skew import QuantitySkew
from fedlab_runner.partitions.shards import Shards
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.paths import ROOT

BLOCKS = {"assigned_blocks", "random_blocks"}  # clients share examples: see test_blocks
NAMES = sorted({path.stem for path in (ROOT / "conf/partition").glob("*.yaml")} - BLOCKS)
EXACT = [name for name in NAMES if name != "natural"]


def partition(name: str, **changes: Any) -> Any:
    fields = OmegaConf.to_container(
        composed(f"partition={name}", "dataset=synthetic", small=False).partition, resolve=True
    )
    module, cls = fields.pop("_target_").rsplit(".", 1)
    assert module == f"fedlab_runner.partitions.{name}"
    return getattr(import_module(module), cls)(**{**fields, **changes})


def rng(seed: int = 0) -> np.random.Generator:
    return generator(seed, Purpose.PARTITION)


def sizes(split: list[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in split])


def class_counts(split: list[np.ndarray], strata: np.ndarray) -> np.ndarray:
    return np.array([np.bincount(strata[part], minlength=strata.max() + 1) for part in split])


def test_every_module_has_its_yaml():
    modules = {path.stem for path in (ROOT / "fedlab_runner/partitions").glob("[!_]*.py")} - {"base", "blocks"}
    assert sorted(modules) == sorted([*NAMES, *BLOCKS]) and len(NAMES) >= 8


problems = st.integers(1, 60).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 5), min_size=n, max_size=n).map(np.array),
        st.integers(1, n),
        st.integers(0, 2**32),
        st.sampled_from([1e-9, 1e-3, 0.1, 1.0, 1e9]),
    )
)


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(problem=problems)
def test_disjoint_exact_cover_and_determinism(name, problem):
    strata, num_clients, seed, alpha = problem
    changes: dict[str, Any] = {"max_tries": 10} if name in ("dirichlet", "dirichlet_equal_size") else {}
    if "dir" in name or name == "quantity_skew":
        changes["alpha"] = alpha
    if name == "quantity_skew":
        changes["min_size"] = min(1, len(strata) // num_clients)
    if name == "shards":
        changes["shards_per_client"] = len(strata) // num_clients
    if name == "labels_per_client":
        changes["labels"] = len(np.unique(strata))
    if name == "power_law":
        changes |= {"classes_per_client": len(np.unique(strata)), "min_per_class": 0}
    component, before = partition(name, **changes), strata.copy()
    split = component.split(strata, None, num_clients, rng(seed))
    assert len(split) == num_clients
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in split)
    np.testing.assert_array_equal(np.sort(np.concatenate(split)), np.arange(len(strata)))
    np.testing.assert_array_equal(strata, before)
    again = component.split(strata, None, num_clients, rng(seed))
    for first, second in zip(split, again, strict=True):
        np.testing.assert_array_equal(first, second)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 8), st.integers(1, 4), st.integers(0, 2**32)
)
def test_by_user_gives_whole_users(users, num_clients, min_samples, seed):
    users = np.array(users)
    counts = np.unique(users, return_counts=True)[1]
    component, strata = partition("natural", min_samples=min_samples), np.zeros(len(users), int)
    if (counts >= min_samples).sum() < num_clients:
        with pytest.raises(UserError, match=r"^num_clients must be at most"):
            component.split(strata, users, num_clients, rng(seed))
        return
    split = component.split(strata, users, num_clients, rng(seed))
    mine = [int(users[part[0]]) for part in split]
    assert len(split) == num_clients and mine == sorted(set(mine))
    for user, part in zip(mine, split, strict=True):
        np.testing.assert_array_equal(part, np.flatnonzero(users == user))
        assert len(part) >= min_samples


def test_users_that_are_left_out_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    users = np.repeat(np.arange(7), 3)
    for num_clients in (7, 5):
        partition("natural").split(np.zeros(len(users), int), users, num_clients, rng(0))
    assert caplog.messages == ["5 of 7 users are clients: num_clients=7 takes all"]


block_problems = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda sizes: st.tuples(
        *map(st.just, sizes),
        st.lists(
            st.tuples(
                st.lists(st.integers(0, sizes[0] - 1), min_size=1, unique=True),
                st.lists(st.integers(0, sizes[1] - 1), min_size=1, unique=True),
            ),
            min_size=1,
            max_size=6,
        ),
        st.lists(st.integers(0, sizes[1] - 1), min_size=1, max_size=40),
        st.integers(0, 2**32),
    )
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(block_problems)
def test_blocks_are_dealt_as_asked(problem):
    """Clients have their blocks, of exactly the examples of their classes; drawn ones have as many as they are to."""
    num_blocks, num_classes, holdings, strata, seed = problem
    blocks, classes = map(list, zip(*holdings, strict=True))
    assigned = partition("assigned_blocks", num_blocks=num_blocks, blocks=blocks, classes=classes)
    held = assigned.draw(len(holdings), num_classes, rng(seed))
    assert [np.flatnonzero(row).tolist() for row in held.blocks] == [sorted(mine) for mine in blocks]
    assert [np.flatnonzero(row).tolist() for row in held.classes] == [sorted(mine) for mine in classes]
    strata = np.array([*strata, num_classes - 1])
    if held.blocks.any(0).all():
        split = assigned.split(strata, None, len(holdings), rng(seed))
        for part, mine in zip(split, classes, strict=True):
            np.testing.assert_array_equal(part, np.flatnonzero(np.isin(strata, mine)))
    else:
        with pytest.raises(UserError, match=r"^partition gives feature block"):
            assigned.split(strata, None, len(holdings), rng(seed))
    per_client = {"blocks_per_client": len(blocks[0]), "classes_per_client": len(classes[0])}
    drawn = partition("random_blocks", num_blocks=num_blocks, draw_seed=None, **per_client)
    held = drawn.draw(len(holdings), num_classes, rng(seed))
    again = drawn.draw(len(holdings), num_classes, rng(seed))
    assert (held.blocks.sum(1) == len(blocks[0])).all() and (held.classes.sum(1) == len(classes[0])).all()
    np.testing.assert_array_equal(held.blocks, again.blocks)
    np.testing.assert_array_equal(held.classes, again.classes)


@pytest.mark.parametrize("name", NAMES)
def test_depends_on_the_seed_and_not_on_global_state(name):
    strata, users = np.arange(600) % 6, np.arange(600) % 60
    splits = []
    for seed in (0, 0, 1):
        np.random.seed(len(splits))
        splits.append(partition(name).split(strata, users, 12, rng(seed)))
    owners = [np.concatenate([part * 0 + client for client, part in enumerate(split)]) for split in splits]
    samples = [np.concatenate(split) for split in splits]
    np.testing.assert_array_equal(samples[0], samples[1])
    np.testing.assert_array_equal(owners[0], owners[1])
    steps = [set(np.diff(part[strata[part] == label]).tolist()) for part in splits[0] for label in range(6)]
    assert any(len(each) > 1 for each in steps) == (name not in ("natural", "shards")), "random examples of a class"
    assert not (np.array_equal(samples[0], samples[2]) and np.array_equal(owners[0], owners[2]))


@pytest.mark.parametrize("name", EXACT)
def test_labels_need_not_be_contiguous(name):
    """Partitions see classes by name: a gap in the labels changes nothing."""
    strata = np.arange(600) % 6
    for first, second in zip(
        partition(name).split(strata, None, 12, rng()),
        partition(name).split(strata * 7 + 3, None, 12, rng()),
        strict=True,
    ):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("num_clients", [0, 11])
def test_impossible_numbers_of_clients(name, num_clients):
    with pytest.raises(ValueError, match=f"^num_clients must .* got {num_clients}$"):
        partition(name).split(np.zeros(10, int), None, num_clients, rng())


BAD_FIELDS = [
    *[(name, "alpha", value) for name in NAMES if "dir" in name for value in (0.0, -1.0, float("nan"), float("inf"))],
    ("quantity_skew", "alpha", 0.0),
    ("quantity_skew", "min_size", -1),
    ("dirichlet", "min_size", -1),
    ("dirichlet", "max_tries", 0),
    ("dirichlet", "min_floor", -1),
    ("dirichlet", "min_floor", 11),
    ("dirichlet_equal_size", "max_tries", 0),
    ("shards", "shards_per_client", 0),
    ("natural", "min_samples", 0),
    ("labels_per_client", "labels", 0),
    ("power_law", "classes_per_client", 0),
    ("power_law", "min_per_class", -1),
    ("power_law", "sigma", -1.0),
    ("power_law", "sigma", float("inf")),
]


@pytest.mark.parametrize(("name", "field", "value"), BAD_FIELDS)
def test_fields_out_of_range(name, field, value):
    with pytest.raises(ValueError, match=rf"^{field} must be .* got {value}$"):
        partition(name, **{field: value})


def test_iid_sizes_differ_by_at_most_one():
    np.testing.assert_array_equal(sizes(IID().split(np.zeros(11, int), None, 4, rng())), [3, 3, 3, 2])


@pytest.mark.parametrize(
    ("num_clients", "per_client", "class_size"), [(20, 2, 5000), (20, 4, 5000), (20, 8, 5000), (7, 3, 100)]
)
def test_shards(num_clients, per_client, class_size):
    """7.19: exactly s shards a client, and at most s labels where the shard size divides the class size."""
    strata = rng().permutation(np.arange(10 * class_size) % 10)
    n, num_shards = len(strata), num_clients * per_client
    split = Shards(per_client).split(strata, None, num_clients, rng())
    shard_of = np.empty(n, int)
    for shard, members in enumerate(np.array_split(np.argsort(strata, kind="stable"), num_shards)):
        shard_of[members] = shard
    for part in split:
        assert len(np.unique(shard_of[part])) == per_client
    if n % num_shards == 0 and class_size % (n // num_shards) == 0:
        assert (class_counts(split, strata) > 0).sum(1).max() <= per_client
    assert sizes(split).min() >= per_client * (n // num_shards)
    assert sizes(split).max() <= per_client * -(-n // num_shards)


def test_shards_more_than_samples():
    with pytest.raises(ValueError, match=r"^shards_per_client must be at most 2 "):
        Shards(3).split(np.zeros(10, int), None, 5, rng())


def test_dirichlet_unbounded_has_no_minimum():
    strata = np.arange(1000) % 10
    split = DirichletUnbounded(0.01).split(strata, None, 50, rng())
    assert sizes(split).min() == 0
    assert class_counts(split, strata).sum(0).tolist() == [100] * 10


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_unbounded", "dirichlet_per_client", "dirichlet_equal_size"])
def test_alpha_goes_from_one_class_to_iid(name):
    strata = rng(9).permutation(np.arange(20_000) % 10)
    shares = {}
    for alpha in (0.05, 1.0, 1e6):
        counts = class_counts(partition(name, alpha=alpha).split(strata, None, 20, rng()), strata)
        shares[alpha] = np.mean(counts.max(1) / np.maximum(counts.sum(1), 1))
        if alpha == 1e6:
            assert np.abs(counts - 100).mean() < 15  # dirichlet_per_client's last client takes what is left
    assert shares[0.05] > 0.35 > shares[1e6] and shares[0.05] > shares[1.0] > shares[1e6]


@pytest.mark.parametrize("num_clients", [3, 10, 20, 33, 100])
@pytest.mark.parametrize("component", [DirichletEqualSize(alpha=0.1, max_tries=50), DirichletPerClient(alpha=0.3)])
def test_equal_sizes(component, num_clients):
    """7.19: dirichlet_equal_size sizes all equal, and those of Hsu's clients."""
    strata = np.arange(3300) % 10
    split_sizes = sizes(component.split(strata, None, num_clients, rng()))
    assert split_sizes.max() - split_sizes.min() == (3300 % num_clients > 0)


def test_dirichlet_per_client_class_shares_are_dirichlet():
    """A client's share of class 0 is Beta(alpha p, alpha (1 - p)): variance p (1 - p) / (alpha + 1)."""
    strata = (np.arange(40_000) % 4 > 0).astype(int)
    alpha, p = 3.0, 0.25
    splits = [DirichletPerClient(alpha).split(strata, None, 40, rng(seed)) for seed in range(400)]
    first, second = np.array([[np.mean(strata[part] == 0) for part in split[:2]] for split in splits]).T
    variance = p * (1 - p) / (alpha + 1)
    assert abs(np.mean(first) - p) < 4 * np.sqrt(variance / 400)
    assert abs(np.var(first) / variance - 1) < 0.25
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(400), "clients draw apart"


def test_quantity_skew():
    strata = np.arange(10_000) % 10
    skewed = sizes(QuantitySkew(0.1, 7).split(strata, None, 100, rng()))
    even = sizes(QuantitySkew(1e6, 7).split(strata, None, 100, rng()))
    assert skewed.min() == 7 and skewed.max() > 1000
    assert even.min() >= 95 and even.max() <= 105
    with pytest.raises(ValueError, match=r"^min_size must be at most 100 "):
        QuantitySkew(0.1, 101).split(strata, None, 100, rng())


@pytest.mark.parametrize(("num_clients", "k"), [(10, 2), (10, 1), (37, 3), (6, 10)])
def test_labels_per_client(num_clients, k):
    """Client i has class i modulo 10 and k - 1 others; each class goes to its clients in equal parts, to an example."""
    strata = rng(1).permutation(np.arange(10 * 400) % 10)
    counts = class_counts(LabelsPerClient(k).split(strata, None, num_clients, rng()), strata)
    assert ((counts > 0).sum(1) == k).all() and counts.sum(0).tolist() == [400] * 10
    assert all(counts[i, i % 10] for i in range(num_clients))
    for of_class in counts.T:
        assert np.ptp(of_class[of_class > 0]) <= 1


def test_the_other_classes_of_a_client_are_any_of_the_others():
    """Client 0 of 10 has class 0 and one of nine, each as often."""
    strata = np.arange(100) % 10
    others = [np.unique(strata[LabelsPerClient(2).split(strata, None, 10, rng(s))[0]])[1] for s in range(900)]
    times = np.bincount(others, minlength=10)
    assert times[0] == 0 and times[1:].min() > 60 and times[1:].max() < 145, "100 times each, five deviations"


def test_labels_per_client_refusals():
    strata = np.arange(100) % 10
    with pytest.raises(ValueError, match=r"^labels must be at most 10, the number of classes, got 11$"):
        LabelsPerClient(11).split(strata, None, 10, rng())
    with pytest.raises(ValueError, match=r"^num_clients must be at least 10, .* got 9$"):
        LabelsPerClient(2).split(strata, None, 9, rng())


def test_power_law():
    """Client i has the classes i and i + 1, five examples of each at least, and lognormal shares of the others."""
    strata = rng(2).permutation(np.arange(10 * 6000) % 10)
    counts = class_counts(PowerLaw(2, 5, 2.0).split(strata, None, 1000, rng()), strata)
    for i, of_client in enumerate(counts):
        assert set(np.flatnonzero(of_client)) == {i % 10, (i + 1) % 10} and of_client[of_client > 0].min() >= 5
    assert counts.sum(0).tolist() == [6000] * 10
    assert np.median(counts.sum(1)) < 30 and counts.max() > 500, "few clients have most"
    even = class_counts(PowerLaw(2, 5, 0.0).split(strata, None, 1000, rng()), strata)
    assert set(even[even > 0].tolist()) <= {29, 30, 31}


def test_the_shares_of_a_power_law_are_lognormal():
    """The ratio of two clients' shares of a class is exp(sigma (a - b)) with standard normal a and b, of each class."""
    strata, sigma = np.arange(40_000) % 2, 0.7
    counts = [class_counts(PowerLaw(2, 0, sigma).split(strata, None, 2, rng(seed)), strata) for seed in range(300)]
    ratios = np.log([first / second for first, second in counts])
    assert abs(ratios.mean(0)).max() < 4 * sigma * np.sqrt(2 / 300)
    assert abs(ratios.std(0) / (sigma * np.sqrt(2)) - 1).max() < 4 / np.sqrt(600)
    assert abs(np.corrcoef(ratios.T)[0, 1]) < 4 / np.sqrt(300), "classes draw apart"


def test_power_law_refusals():
    strata = np.arange(100) % 10
    with pytest.raises(ValueError, match=r"^classes_per_client must be at most 10, the number of classes, got 11$"):
        PowerLaw(11, 1, 2.0).split(strata, None, 10, rng())
    with pytest.raises(ValueError, match=r"^num_clients must be at least 9, .* got 8$"):
        PowerLaw(2, 1, 2.0).split(strata, None, 8, rng())
    with pytest.raises(ValueError, match=r"^min_per_class must be at most 2 .* got 3$"):
        PowerLaw(2, 3, 2.0).split(strata, None, 20, rng())


def test_by_user():
    users = np.repeat([5, 9, 100, 7, 40], [3, 1, 4, 2, 2])[np.random.default_rng(0).permutation(12)]
    split = Natural(2).split(np.zeros(12, int), users, 4, rng())
    assert [np.unique(users[part]).tolist() for part in split] == [[5], [7], [40], [100]]
    assert sizes(split).tolist() == [3, 2, 2, 4]
    drawn = {tuple(users[part[0]] for part in Natural(1).split(users, users, 2, rng(seed))) for seed in range(60)}
    assert len(drawn) == 10  # all pairs of five, each in ascending order
    assert all(first < second for first, second in drawn)


def test_by_user_refusals():
    users = np.array([0, 0, 1, 2])
    with pytest.raises(UserError, match="needs a data set with users"):
        Natural(1).split(users, None, 1, rng())
    with pytest.raises(
        UserError, match=r"^num_clients must be at most 1, the number of users with at least 2 training examples"
    ):
        Natural(2).split(users, users, 2, rng())
    with pytest.raises(ValueError, match=r"^num_clients must be >= 1"):
        Natural(2).split(users, users, 0, rng())


@pytest.mark.parametrize("name", NAMES)
def test_many_clients(name):
    """Vectorised: 100,000 samples over 10,000 clients take a moment."""
    n, num_clients = 100_000, 10_000
    strata = np.arange(n) % 10
    changes = {"min_size": 1} if name == "quantity_skew" else {}
    split = partition(name, **changes).split(strata, np.arange(n) // 10, num_clients, rng())
    np.testing.assert_array_equal(np.sort(np.concatenate(split)), np.arange(n))
