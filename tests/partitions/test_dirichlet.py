"""The balanced Dirichlet draw of Yurochkin et al., its repair, and Lin et al.'s partition that is made of it."""

import numpy as np
import pytest

from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.partitions import dirichlet_equal_size
from fedlab_runner.partitions._balanced_dirichlet import balanced_counts
from fedlab_runner.partitions._common import cut, dirichlet
from fedlab_runner.partitions.dirichlet import Dirichlet
from fedlab_runner.partitions.dirichlet_equal_size import DirichletEqualSize
from fedlab_runner.partitions.dirichlet_unbounded import DirichletUnbounded


def rng(seed: int = 0) -> np.random.Generator:
    return generator(seed, Purpose.PARTITION)


def sizes(split: list[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in split])


def class_counts(split: list[np.ndarray], strata: np.ndarray) -> np.ndarray:
    return np.array([np.bincount(strata[part], minlength=strata.max() + 1) for part in split])


@pytest.mark.parametrize("alpha", [1e-9, 1e-3, 0.1, 1.0, 1e9])
def test_dirichlet_draws_are_shares(alpha):
    """Finite, sum 1, nothing for closed entries; mean 1 / k and variance (1 / k) (1 - 1 / k) / (k alpha + 1)."""
    open = np.tile([True, False, True, True, True], (20_000, 1))
    draws = dirichlet(rng(), alpha, open)
    np.testing.assert_allclose(draws.sum(1), 1)
    assert (draws[:, 1] == 0).all()
    variance = 0.25 * 0.75 / (4 * alpha + 1)
    assert draws[:, 0].mean() == pytest.approx(0.25, abs=5 * np.sqrt(variance / 20_000))
    assert draws[:, 0].var() == pytest.approx(variance, rel=0.06)


def test_cut_gives_the_rest_to_the_last_with_weight():
    counts = cut(np.array([[0.25, 0.25, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0]]), np.array([7, 3]))
    np.testing.assert_array_equal(counts, [[1, 2, 4, 0], [0, 3, 0, 0]])


def literal_sizes(class_sizes: list[int], num_clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """The authors' loop on sizes: draw for all clients, zero those at the mean, renormalise, cut."""
    got = np.zeros(num_clients, int)
    for size in class_sizes:
        q = rng.dirichlet([alpha] * num_clients) * (got < sum(class_sizes) / num_clients)
        cuts = (np.cumsum(q / q.sum()) * size).astype(int)[:-1]
        got += np.diff(np.concatenate([[0], cuts, [size]]))
    return got


def test_a_hopeless_draw_is_cut_short():
    """And only that: with a minimum, the draws that reach it are as many, and whole."""
    class_sizes, everyone = np.array([[100, 100, 100]]), np.ones((1, 10), bool)
    generators = rng(1), rng(2)
    whole = [balanced_counts(class_sizes, everyone, 0.5, generators[0]) for _ in range(2000)]
    short = [balanced_counts(class_sizes, everyone, 0.5, generators[1], least=5) for _ in range(2000)]
    good = [counts for counts in short if counts.sum(1).min() >= 5]
    assert all(counts.sum() == 300 for counts in good)
    assert len(good) == pytest.approx(sum(counts.sum(1).min() >= 5 for counts in whole), rel=0.1)
    assert balanced_counts(class_sizes, everyone, 0.5, rng(), least=31).sum() == 0
    assert balanced_counts(np.full((1, 6), 10), everyone[:, :6], 1e-9, rng(), least=10).sum() == 60, "just enough"


def test_the_fair_share_is_that_of_the_clients_in_a_group():
    """With alpha near 0 a client gets whole classes until it has its share, of two clients a half."""
    counts = balanced_counts(np.full((9, 10), 10), np.tile(np.arange(10) < 2, (9, 1)), 1e-9, rng())
    assert (counts.sum(1) == [50, 50, *[0] * 8]).all()


def test_same_distribution_as_the_literal_loop():
    class_sizes, draws = [100, 30, 60, 10, 100], 3000
    generators = rng(1), rng(2)
    fast = balanced_counts(np.tile(class_sizes, (draws, 1)), np.ones((draws, 6), bool), 0.5, generators[0])
    np.testing.assert_array_equal(fast.sum(2), np.tile(class_sizes, (draws, 1)))
    slow = np.array([literal_sizes(class_sizes, 6, 0.5, generators[1]) for _ in range(draws)])
    for ours, theirs in zip(np.sort(fast.sum(1)).T, np.sort(slow).T, strict=True):
        error = np.sqrt((ours.var() + theirs.var()) / draws)
        assert abs(ours.mean() - theirs.mean()) < 4.5 * error
        assert abs(np.median(ours) - np.median(theirs)) < 6 * error + 1


@pytest.mark.parametrize(
    ("num_classes", "num_clients", "alpha", "success", "below_ten"),
    [(10, 500, 0.1, (0.0, 0.0), (36, 39)), (10, 500, 0.3, (0.3, 0.6), (0, 2)), (10, 100, 0.1, (0.15, 0.33), (1, 2))],
)
def test_how_often_every_client_gets_ten(num_classes, num_clients, alpha, success, below_ten):
    """50,000 samples, simulated with the authors' loop: never for 500 clients at 0.1, about 21 % for 100."""
    tries = 200
    class_sizes = np.full((tries, num_classes), 50_000 // num_classes)
    drawn = balanced_counts(class_sizes, np.ones((tries, num_clients), bool), alpha, rng()).sum(1)
    assert success[0] <= (drawn.min(1) >= 10).mean() <= success[1]
    assert below_ten[0] <= (drawn < 10).sum(1).mean() <= below_ten[1]


def test_redraws_until_everyone_has_the_minimum():
    strata = np.arange(5000) % 10
    for seed in range(10):
        split = Dirichlet(alpha=0.1, min_size=10, max_tries=1000, min_floor=0).split(strata, None, 30, rng(seed))
        assert sizes(split).min() >= 10
        scarce = Dirichlet(1.0, min_size=2, max_tries=1000, min_floor=0).split(np.arange(4) % 2, None, 2, rng(seed))
        assert sizes(scarce).tolist() == [2, 2], "where that takes all examples"
    single = [Dirichlet(0.1, 10, 1, 0).split(strata, None, 30, rng(seed)) for seed in range(10)]
    assert min(sizes(split).min() for split in single) < 10  # so the test above had something to do


def test_repairs_what_cannot_be():
    """A-F13: 500 clients, ten classes, alpha 0.1: no draw reaches 10 samples each, and some clients are empty."""
    strata = np.arange(50_000) % 10
    bare = Dirichlet(0.1, 10, 50, 0).split(strata, None, 500, rng())
    repaired = Dirichlet(0.1, 10, 50, 5).split(strata, None, 500, rng())
    before, after = sizes(bare), sizes(repaired)
    assert before.min() < 5
    np.testing.assert_array_equal(after[before < 5], 5)
    moved = np.maximum(5 - before, 0).sum()
    assert (before - after)[before >= 5].sum() == moved
    gave = before > after
    assert after[gave].min() >= after.max() - 1  # each gift came from the largest client of that moment
    untouched = before == after
    for first, second in zip(np.array(bare, object)[untouched], np.array(repaired, object)[untouched], strict=True):
        np.testing.assert_array_equal(first, second)
    given = [(whole, np.setdiff1d(whole, left)) for whole, left in zip(bare, repaired, strict=True)]
    assert any(not np.array_equal(moved, whole[: len(moved)]) for whole, moved in given), "random ones of the giver's"


def test_minimum_that_the_samples_cannot_fill():
    strata = np.arange(100) % 10
    split = Dirichlet(1e-3, 10**6, 10**9, 4).split(strata, None, 25, rng())
    np.testing.assert_array_equal(sizes(split), 4)
    with pytest.raises(ValueError, match=r"^min_floor must be at most 4 "):
        Dirichlet(1e-3, 10**6, 1, 5).split(strata, None, 25, rng())


def test_closes_clients_at_the_mean():
    """With one client's worth left at most, nobody exceeds the mean by more than the class that overfilled it."""
    strata = np.arange(20_000) % 100
    split = Dirichlet(0.01, 0, 1, 0).split(strata, None, 10, rng())
    assert sizes(split).max() < 20_000 / 10 + 200
    plain = DirichletUnbounded(0.01).split(strata, None, 10, rng())
    assert sizes(plain).max() > 20_000 / 10 + 200
    one_class_each = Dirichlet(1e-9, 0, 1, 0).split(np.arange(60) % 6, None, 6, rng())
    np.testing.assert_array_equal(sizes(one_class_each), 10)  # a client at the mean, to the example, is closed
    again = Dirichlet(1e-9, 10, 5, 10).split(np.arange(60) % 6, None, 6, rng())  # each has the least size: one draw
    assert all(map(np.array_equal, one_class_each, again))


def test_counts_are_rounded_to_the_nearest():
    """As in FedLAW's code."""
    assert sizes(DirichletUnbounded(1e9).split(np.zeros(11, np.int64), None, 3, rng())).tolist() == [4, 4, 3]


def test_dir_lin_groups_share_nothing():
    """Each ten clients draw from their own random part, so no class is concentrated over all clients."""
    strata = np.arange(10_000) // 1000
    counts = class_counts(DirichletEqualSize(0.01, 1000).split(strata, None, 50, rng()), strata)
    by_group = counts.reshape(5, 10, 10).sum(1)
    assert (np.abs(by_group - 200) < 80).all()
    assert counts.max() > 100  # while within a group they are


@pytest.mark.parametrize("num_clients", [100, 25])
def test_dir_lin_draws_again_what_is_too_uneven(num_clients, monkeypatch):
    """Only groups whose smallest client has less than half of the mean, and until none is left. What is drawn is cut in
    the order of the clients, and of the classes of each.
    """
    strata, calls, counts = np.arange(100 * num_clients) % 10, [], None

    def recorded(class_sizes, exists, alpha, rng):
        nonlocal counts
        counts = balanced_counts(class_sizes, exists, alpha, rng)
        calls.append([each[there].min() for each, there in zip(counts.sum(1), exists, strict=True)])
        assert (class_sizes.sum(1) == 100 * exists.sum(1)).all(), "a group has its clients' share of the examples"
        return counts

    monkeypatch.setattr(dirichlet_equal_size, "balanced_counts", recorded)
    DirichletEqualSize(0.3, 1000).split(strata, None, num_clients, rng())
    assert len(calls[0]) == -(-num_clients // 10) and len(calls) > 1
    for smallest, again in zip(calls, [*calls[1:], []], strict=True):
        assert len(again) == sum(each < 50 for each in smallest)
    split = DirichletEqualSize(0.3, 1).split(strata, None, num_clients, rng())
    joined = np.concatenate([np.repeat(np.arange(10), mine) for of_group in counts for mine in of_group.T])
    parts = np.array_split(joined, num_clients)
    assert class_counts(split, strata).tolist() == [np.bincount(part, minlength=10).tolist() for part in parts]


def test_a_least_size_that_is_not_met_is_said(caplog: pytest.LogCaptureFixture) -> None:
    strata = np.repeat(np.arange(3), 20)
    Dirichlet(alpha=10.0, min_size=2, max_tries=50, min_floor=1).split(strata, None, 6, rng())
    assert not caplog.records
    least = sizes(Dirichlet(alpha=0.1, min_size=15, max_tries=50, min_floor=1).split(strata, None, 6, rng())).min()
    (record,) = caplog.records
    assert least > 1
    wanted = f"partition.min_size=15 is not met after 1 draw: the smallest of 6 clients has {least} examples"
    assert record.getMessage() == wanted
