"""Each aggregator has the formula of its paper; properties that all of them have."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlab_runner.aggregators import _columns
from fedlab_runner.core import aggregation
from fedlab_runner.core.aggregation import squared_distances
from tests.helpers.toy import AGGREGATORS, aggregator

ACTING = [name for name in AGGREGATORS if aggregator(name).acts]
WEIGHTED = {"geometric_median", "multi_krum"}  # the others take updates alike, however many examples clients have
SIZES = (5, 1, 9, 2, 4, 4, 7, 3, 8, 6, 2)  # of the clients' examples
A, N = len(SIZES), 40


def updates(a: int = A, n: int = N, seed: int = 3) -> Tensor:
    return torch.randn(a, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def combined(name: str, rows: Tensor, shares: Tensor | None = None, **keys: Any) -> Tensor:
    """What an aggregator makes of updates that have one tensor."""
    rule, a = aggregator(name, **keys), len(rows)
    shares = torch.full((a,), 1 / a, dtype=torch.float64) if shares is None else shares
    return rule.combine(rows, rule.weights(shares, squared_distances([rows])))


def by_size() -> Tensor:
    sizes = torch.tensor(SIZES, dtype=torch.float64)
    return sizes / sizes.sum()


def agree(mine: Tensor, theirs: Any, atol: float = 1e-12) -> None:
    torch.testing.assert_close(mine, torch.as_tensor(theirs), rtol=0, atol=atol)


# --- the papers' formulas, in NumPy and loops ---


def by_score(rows: np.ndarray, f: int) -> list[int]:
    """The updates, the best score of Krum first."""
    apart = [[float(((one - other) ** 2).sum()) for other in rows] for one in rows]
    near = max(1, len(rows) - f - 2)
    scores = [sum(sorted(each[:i] + each[i + 1 :])[:near]) for i, each in enumerate(apart)]
    return sorted(range(len(rows)), key=scores.__getitem__)


@pytest.mark.parametrize("a", [A, A - 1])
def test_the_median_is_numpys(a: int) -> None:
    agree(combined("median", updates(a)), np.median(updates(a).numpy(), axis=0))


@pytest.mark.parametrize(("byzantine", "f"), [(0.0, 0), (0.09, 0), (0.1, 1), (0.3, 3), (0.49, 5)])
def test_the_trimmed_mean_leaves_out_f_values_at_either_end(byzantine: float, f: int) -> None:
    ordered = np.sort(updates().numpy(), axis=0)
    agree(combined("trimmed_mean", updates(), byzantine=byzantine), ordered[f : A - f].mean(0))


@pytest.mark.parametrize(("byzantine", "f"), [(0.0, 0), (0.2, 2), (0.4, 4)])
def test_krum_takes_the_update_that_is_nearest_to_its_neighbours(byzantine: float, f: int) -> None:
    for seed in range(5):
        rows = updates(seed=seed)
        assert torch.equal(combined("krum", rows, byzantine=byzantine), rows[by_score(rows.numpy(), f)[0]])


@pytest.mark.parametrize(("kept", "m"), [(None, A - 2), (1, 1), (4, 4), (50, A)])
def test_multi_krum_is_the_weighted_mean_of_the_best(kept: int | None, m: int) -> None:
    best, w = by_score(updates().numpy(), 2)[:m], by_size()
    mean = sum(w[i] * updates()[i] for i in best) / sum(w[i] for i in best)
    agree(combined("multi_krum", updates(), w, kept=kept), mean)
    if m == 1:
        assert torch.equal(combined("multi_krum", updates(), w, kept=1), combined("krum", updates()))


@pytest.mark.parametrize(("byzantine", "f"), [(0.0, 0), (0.1, 1), (0.19, 2)])
def test_bulyan_averages_near_the_median_of_what_krum_selects_one_by_one(byzantine: float, f: int) -> None:
    rows = updates()
    left, selected = list(range(A)), []
    for _ in range(A - 2 * f):
        selected.append(left.pop(by_score(rows[left].numpy(), f)[0]))
    for column, found in zip(rows[selected].numpy().T, combined("bulyan", rows, byzantine=byzantine), strict=True):
        middle = np.median(column)
        nearest = sorted(column, key=lambda value: abs(value - middle))[: A - 4 * f]
        assert float(found) == pytest.approx(np.mean(nearest), abs=1e-12)


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_geometric_median_is_weiszfelds_algorithm_from_the_mean(iterations: int) -> None:
    rows, w = updates(), by_size()
    z = w @ rows
    for _ in range(iterations):
        beta = w / (rows - z).norm(dim=1).clamp_min(6.5)  # some updates are nearer than that
        z = (beta / beta.sum()) @ rows
    agree(combined("geometric_median", rows, w, nu=6.5, iterations=iterations), z)


def test_the_geometric_median_is_where_the_pulls_of_the_updates_cancel() -> None:
    rows, w = updates(), by_size()
    z = combined("geometric_median", rows, w)
    away = rows - z
    assert float((w / away.norm(dim=1) @ away).norm()) < 1e-9


# --- properties ---


@pytest.mark.parametrize("name", ACTING)
def test_updates_that_are_alike_give_that_update(name: str) -> None:
    row = updates(1)
    agree(combined(name, row.expand(A, N)), row[0])


@pytest.mark.parametrize("name", ACTING)
def test_the_order_of_updates_does_not_matter_and_a_shift_of_all_shifts_the_result(name: str) -> None:
    order, rows, w = torch.randperm(A, generator=torch.Generator().manual_seed(1)), updates(), by_size()
    if name != "bulyan":  # of the last three updates two always score alike: the first is selected
        agree(combined(name, rows[order], w[order]), combined(name, rows, w))
    agree(combined(name, rows + 3.0, w), combined(name, rows, w) + 3.0)


@pytest.mark.parametrize("name", ACTING)
def test_updates_that_are_far_away_do_not_carry_the_result_out_of_the_others(name: str) -> None:
    """Two of eleven, in the same place; the mean is out there."""
    honest = updates(A - 2)
    rows = torch.cat([honest, 1e6 + updates(2, seed=4)])
    for shares in (None, torch.full((A,), 1 / A, dtype=torch.float64)):
        found = combined(name, rows, shares, **({"byzantine": 0.19} if hasattr(aggregator(name), "byzantine") else {}))
        if name == "geometric_median":
            assert float(found.norm()) < 3 * float(honest.norm(dim=1).max())
        else:
            assert (honest.min(0).values <= found).all() and (found <= honest.max(0).values).all()
    assert (rows.mean(0) > honest.max(0).values).all()


@pytest.mark.parametrize("name", ACTING)
def test_how_clients_count_is_told_to_those_rules_alone_that_weigh(name: str) -> None:
    alike = torch.equal(combined(name, updates(), by_size()), combined(name, updates()))
    assert alike == (name not in WEIGHTED)


@pytest.mark.parametrize("a", [1, 2, 3, 6])
@pytest.mark.parametrize("name", ACTING)
def test_few_updates_lower_the_number_that_may_be_byzantine(name: str, a: int) -> None:
    keys = {"byzantine": 0.49} if hasattr(aggregator(name), "byzantine") else {}
    rule, rows = aggregator(name, **keys), updates(a)
    found = combined(name, rows, **keys)
    assert (rows.min(0).values - 1e-12 <= found).all() and (found <= rows.max(0).values + 1e-12).all()
    if name in ("krum", "multi_krum", "bulyan"):
        needed = 4 if name == "bulyan" else 2
        f = rule.tolerated(a)
        assert f is not None and (f == 0 or a >= needed * f + 3) and a < needed * (f + 1) + 3


def test_a_share_of_updates_is_rounded_down_but_not_by_the_digits_of_floats() -> None:
    rule = aggregator("trimmed_mean", byzantine=0.29)
    assert [rule.tolerated(a) for a in (3, 4, 99, 100)] == [0, 1, 28, 29]
    assert aggregator("median").tolerated(9) is None


@pytest.mark.parametrize("name", ACTING)
def test_weights_add_up_to_one_and_nothing_is_written_into(name: str) -> None:
    rule, rows, w = aggregator(name), updates(), by_size()
    apart = squared_distances([rows])
    before = [t.clone() for t in (rows, w, apart)]
    weights = rule.weights(w, apart)
    rule.combine(rows, weights)
    assert float(weights.sum()) == pytest.approx(1) and weights.dtype == torch.float64
    assert all(torch.equal(a, b) for a, b in zip(before, (rows, w, apart), strict=True))


@pytest.mark.parametrize("name", ACTING)
def test_blocks_of_columns_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = combined(name, updates())
    monkeypatch.setattr(_columns, "VALUES_PER_CALL", 3 * A)
    monkeypatch.setattr(aggregation, "VALUES_PER_CALL", 7 * A)
    agree(combined(name, updates()), whole)
    assert combined(name, updates(n=0)).shape == (0,)


def test_a_median_of_zeros_has_no_sign() -> None:
    assert not combined("median", torch.full((A, N), -0.0)).signbit().any(), "their order might decide it"


def test_distances_stay_exact_beside_an_update_that_is_far_away() -> None:
    rows = updates().float()
    far = torch.cat([rows, torch.full((1, N), 1e12)])
    near = ((rows[3].double() - rows[5].double()) ** 2).sum()
    assert float(squared_distances([far[:, :9], far[:, 9:]])[3, 5]) == pytest.approx(float(near), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        *((name, {"byzantine": 0.05}) for name in ("trimmed_mean", "multi_krum", "bulyan")),
        ("krum", {"byzantine": 0.4}),
        ("multi_krum", {"kept": 3}),
        ("geometric_median", {"nu": 6.5}),
        ("geometric_median", {"iterations": 1}),
    ],
)
def test_every_key_matters(name: str, keys: dict[str, Any]) -> None:
    rows = updates(seed=2)
    assert not torch.allclose(combined(name, rows, **keys), combined(name, rows), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "keys", "fault"),
    [
        ("krum", {"byzantine": 0.5}, r"byzantine must be in \[0, 0.5\), got 0.5"),
        ("trimmed_mean", {"byzantine": -0.1}, r"byzantine must be in \[0, 0.5\)"),
        ("multi_krum", {"kept": 0}, "kept must be >= 1, got 0"),
        ("geometric_median", {"nu": 0.0}, "nu must be > 0"),
        ("geometric_median", {"nu": math.nan}, "nu must be > 0"),
        ("geometric_median", {"iterations": 0}, "iterations must be >= 1"),
    ],
)
def test_what_is_out_of_range_is_refused(name: str, keys: dict[str, Any], fault: str) -> None:
    with pytest.raises(Exception, match=fault):
        aggregator(name, **keys)


def test_a_share_that_a_whole_round_cannot_bear_is_refused() -> None:
    aggregator("bulyan", byzantine=0.19).check(11)
    aggregator("krum", byzantine=0.49).check(1)
    wanted = r"^byzantine must be less than 0.2 with 10 updates a round, got 0.2: .* needs 4 f \+ 3$"
    with pytest.raises(ValueError, match=wanted):
        aggregator("bulyan", byzantine=0.2).check(10)
    with pytest.raises(ValueError, match=r"must be less than 0.4 with 10 updates"):
        aggregator("multi_krum", byzantine=0.45).check(10)
