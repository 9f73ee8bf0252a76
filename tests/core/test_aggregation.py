"""An aggregator acts where an algorithm takes the mean of the arriving updates, and nowhere else."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlab_runner.aggregators.base import Aggregator
from fedlab_runner.config.build import build
from fedlab_runner.core.aggregation import squared_distances
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates, like
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.kinds import by_kind
from tests.helpers.toy import (
    AGGREGATORS,
    ALGORITHMS,
    aggregator,
    algorithm,
    default_home,
    federation,
    few_rounds,
    mlp,
    normed,
    run,
    tensors,
)

ACTING = [name for name in AGGREGATORS if aggregator(name).acts]
AVERAGING = [name for name in ALGORITHMS if algorithm(name).takes_aggregator()]
OTHERS = sorted(set(ALGORITHMS) - set(AVERAGING))
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 5, 12, 8, 7, 4, 5, 6, 2, 9], "cohort": 12, "std": 0.5, "build": normed}
ON_TIME = LATE | {"sizes": LATE["sizes"][:8], "std": 0.0, "cohort": 8}
TOLERANT = [name for name in ACTING if hasattr(aggregator(name), "byzantine")]
MANY, ONE = {"byzantine": 0.4}, {"byzantine": 0.13}  # as many as a rule bears; one of eight
ROUNDS = 3
LIE = -1e6  # the factor of an update that lies


def made(name: str, rule: Aggregator | None, **how: Any) -> Federation:
    return federation(**(LATE | {"home": default_home(name)} | how), rule=rule)


def largest_difference(one: Any, other: Any) -> float:
    pairs = zip(tensors(one), tensors(other), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs if a.numel())


def collected(fed: Federation, monkeypatch: pytest.MonkeyPatch, liar: int | None = None) -> list[Updates[Any]]:
    """All updates that will arrive; client `liar` sends the vectors of its own multiplied by `LIE`."""
    found, collect = list[Updates[Any]](), fed.collect_updates

    def watched(cohort: Any, upload: Any, known: Any = ()) -> Updates[Any]:
        lies = cohort.ids == (-1 if liar is None else liar)
        upload = like(upload, (t * torch.where(lies, LIE, 1.0).view(-1, *[1] * (t.dim() - 1)) for t in upload))
        found.append(collect(cohort, upload, known))
        return found[-1]

    monkeypatch.setattr(fed, "collect_updates", watched)
    return found


@pytest.mark.parametrize("name", by_kind(AVERAGING))
def test_the_mean_is_off_to_the_bit_and_every_rule_makes_a_difference(name: str) -> None:
    plain, off = (run(few_rounds(name), made(name, rule), ROUNDS) for rule in (None, aggregator("mean")))
    assert largest_difference(plain, off) == 0
    for rule in (aggregator(each, **(MANY if each in TOLERANT else {})) for each in ACTING):
        fed = made(name, rule)
        assert largest_difference(plain, run(few_rounds(name), fed, ROUNDS)) > 1e-7
        metrics = fed.collect()
        assert 1 <= metrics["aggregator/effective_updates"] <= metrics["late/arrived"] + 1e-9
        assert ("aggregator/tolerated" in metrics) == hasattr(rule, "byzantine")


@pytest.mark.parametrize("name", ACTING)
def test_clients_side_by_side_agree(name: str) -> None:
    """In each rule's case another algorithm trains them. The model has no statistics."""
    method = AVERAGING[ACTING.index(name)]
    one, other = (
        run(few_rounds(method), made(method, aggregator(name), executor=executor, build=mlp), ROUNDS)
        for executor in (None, Vectorized(chunk_size=3, compile=False))
    )
    assert largest_difference(one, other) < 1e-10


def test_without_byzantine_updates_the_trimmed_mean_bulyan_and_multi_krum_are_the_mean() -> None:
    plain = run(algorithm("fedavg", weighting="uniform"), made("fedavg", None), ROUNDS)
    for name in ("trimmed_mean", "bulyan", "multi_krum"):
        found = run(algorithm("fedavg", weighting="uniform"), made("fedavg", aggregator(name, byzantine=0.0)), ROUNDS)
        assert largest_difference(plain, found) < 1e-12
    by_size, kept = (
        run(algorithm("fedavg"), made("fedavg", rule), ROUNDS)
        for rule in (None, aggregator("multi_krum", byzantine=0.0))
    )
    assert largest_difference(by_size, kept) < 1e-12


@pytest.mark.parametrize("name", ACTING)
def test_a_client_that_lies_does_not_carry_the_server_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in (aggregator(name, **(ONE if name in TOLERANT else {})), None):
        fed, method = made("fedavg", rule, **ON_TIME), algorithm("fedavg", weighting="uniform")
        found = collected(fed, monkeypatch, liar=2)
        x = method.init(fed).params
        after: Any = run(method, fed, 1)
        honest = found[0].select(found[0].ids != 2).upload.rows
        length = float((after.params - x)[: honest.shape[1]].norm())
        assert (length > 1e3) == (rule is None)
        assert rule is None or length < 2 * float(honest.norm(dim=1).max())


@pytest.mark.parametrize("name", ["scaffold", "feddyn"])
def test_sums_over_clients_follow_the_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCAFFOLD's c and FedDyn's h."""
    kept = {"scaffold": "c", "feddyn": "h"}[name]
    lengths = []
    for rule in (aggregator("median"), None):
        fed = made(name, rule, **ON_TIME)
        collected(fed, monkeypatch, liar=2)
        lengths.append(float(getattr(run(algorithm(name), fed, 1), kept).norm()))
    assert lengths[0] < 10 and lengths[1] > 100


def test_one_update_is_chosen_for_all_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    fed, method = made("scaffold", aggregator("krum", **ONE), **ON_TIME), algorithm("scaffold")
    found, state = collected(fed, monkeypatch), method.init(fed)
    after: Any = run(method, fed, 1, state=state)
    delta_y, delta_c, statistics = found[0].upload
    apart = squared_distances([delta_y, delta_c, statistics])
    k = int((apart + torch.eye(8) * 1e9).sort(1).values[:, :5].sum(1).argmin())  # 8 - 1 - 2
    p = fed.family.num_params
    assert torch.equal(after.params[p:], statistics[k])
    assert torch.allclose(after.params[:p] - state.params[:p], delta_y[k], rtol=0, atol=1e-14)
    assert torch.allclose(after.c, delta_c[k], rtol=0, atol=1e-14)  # of 8 clients all 8 report
    metrics = fed.collect()
    assert (metrics["aggregator/left_out"], metrics["aggregator/tolerated"]) == (7, 1)
    assert metrics["aggregator/effective_updates"] == 1


def test_what_clients_keep_and_single_numbers_are_not_compared() -> None:
    """Of a personal method's upload the client sends the first two fields; FedNova's has numbers of steps."""
    seen: list[list[Tensor]] = []

    class Watched:
        def weights(self, shares: Tensor, payload: list[Tensor]) -> Tensor:
            seen.append(payload)
            return shares

        def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
            return rows[0]

    for name, keys in (("ditto", {}), ("ditto", {"late_policy": "discard"}), ("fednova", {})):
        fed = made(name, None, **ON_TIME)
        fed.deliveries.aggregation = Watched()  # type: ignore[assignment]
        run(algorithm(name, **keys), fed, 1)
        sizes = (fed.family.num_params, fed.family.num_buffers)
        assert [t.shape[1] for t in seen[-1]] == [*sizes]


def test_a_policy_that_drops_late_updates_drops_them_before_the_rule() -> None:
    """So krum with one update that is not late takes it."""
    fed = made("fedavg", aggregator("median"), sizes=[6, 3, 9], cohort=3, std=3.0, seed=1)
    run(algorithm("fedavg", late_policy="discard"), fed, 6)
    metrics = fed.collect()
    on_time = sum(metrics.get(key, 0) for key in metrics if key == "late/staleness_count/0")
    assert metrics.get("aggregator/effective_updates", 0) == pytest.approx(on_time) and on_time < 3


def test_comparing_costs_operations() -> None:
    gflops = []
    for name in ("median", "krum"):
        run(algorithm("fedavg"), fed := made("fedavg", aggregator(name), **ON_TIME), 1)
        gflops.append(fed.collect()["cost/server_gflops"])
    assert gflops[1] - gflops[0] == pytest.approx(3 * fed.family.size * 28 / 1e9)


def test_it_has_no_memory_of_its_own() -> None:
    fed, plain = made("fedavg", aggregator("bulyan")), made("fedavg", None)
    run(algorithm("fedavg"), fed, 2)
    run(algorithm("fedavg"), plain, 2)
    assert fed.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("name", OTHERS)
def test_algorithms_that_do_not_step_by_the_mean_refuse_it_in_one_line(name: str) -> None:
    why = (
        "which has no server" if algorithm(name).decentralized else "whose server does not step by the mean of updates"
    )
    with pytest.raises(UserError, match=f"^aggregator must be mean with algorithm={name}, {why}$"):
        build(composed(f"algorithm={name}", "aggregator=krum"))
    if not algorithm(name).takes_sums():
        with pytest.raises(
            UserError, match=f"^aggregator.sum_every must be null with algorithm={name}, wh.* "
        ) as raised:
            build(composed(f"algorithm={name}", "aggregator.sum_every=2"))
        assert ("which has no server" in str(raised.value)) == algorithm(name).decentralized


def test_who_does_not_step_by_the_mean() -> None:
    assert {"fedasync", "fedbuff", "ca2fl", "feddle", "fedcda", "feddf", "fedbe", "fedlaw", "fedma", "gamf"} < set(
        OTHERS
    )
    assert {name for name in ALGORITHMS if algorithm(name).decentralized} < set(OTHERS)
    assert {"fedavg", "scaffold", "feddyn", "fednova", "fedexp", "qfedavg", "ditto", "fedwalk"} < set(AVERAGING)
    assert not algorithm("fedwalk", base="fedbuff").takes_aggregator()


def test_a_share_that_the_cohort_cannot_bear_is_refused_before_the_run(tmp_path: Path) -> None:
    cfg = composed(
        *("algorithm=fedavg", "dataset=synthetic", "model=logistic", "aggregator=bulyan", "aggregator.byzantine=0.3"),
        *("num_clients=10", "participation.cohort_size=10", "rounds=1", "device=cpu", "logger=none"),
    )
    with pytest.raises(
        UserError, match=r"^aggregator.byzantine must be less than 0.2 with 10 updates a round, [^\n]*$"
    ):
        run_in(tmp_path, cfg)
