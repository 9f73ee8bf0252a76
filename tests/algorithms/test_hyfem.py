"""HyFEM and stand-alone training: identities, twins, growth, partial reports, bad input."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hydra.errors import InstantiationException
from torch import Tensor, nn

from fedlab_runner.algorithms.matching.pfnm import Neurons, SquaredDistance, match
from fedlab_runner.algorithms.shared.averaging import Models
from fedlab_runner.algorithms.shared.feature_blocks import Layout, blocks_of, check_blocks, reading, train_on_blocks
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.config.build import build
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.losses import losses
from fedlab_runner.core.updates import Updates
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.delays.constant import ConstantDelay
from fedlab_runner.evaluation import scoring
from fedlab_runner.evaluation.client_models import ClientModels
from fedlab_runner.evaluation.matrix import Matrix
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.run import prepare
from fedlab_runner.models.blocks_mlp import BlocksMLP
from fedlab_runner.participation.fixed import FixedParticipation
from fedlab_runner.participation.over_selection import OverSelection
from fedlab_runner.utils.errors import UserError
from tests.evaluation.test_evaluator import evaluation
from tests.helpers.composed import composed
from tests.helpers.identities import close
from tests.helpers.toy import CLASSES, FEATURES, algorithm, federation, home, local, normed, run, tensors

OWNED = np.array([[1, 1, 0], [0, 1, 1], [1, 1, 0], [1, 0, 1]], dtype=bool)  # clients 0 and 2 have the same blocks
SIZES = (9, 6, 12, 5)


def network(
    hidden: Sequence[int] = (6,), server_hidden: Sequence[int] | None = None, blocks: Sequence[int] | None = None
) -> Callable[[], nn.Module]:
    """Blocks of 2, 2 and 1 of the toy's 5 features."""
    chosen = None if blocks is None else list(blocks)
    wide = None if server_hidden is None else list(server_hidden)
    return lambda: BlocksMLP(None, None, [2, 2, 1], chosen, [4, 3], list(hidden), wide).build(FEATURES, 1, CLASSES)


def with_norm() -> nn.Module:
    """Extractors with batch norm."""
    built: Any = network()()
    for extract in built.extractors:
        extract.insert(1, nn.BatchNorm1d(4))
    return built


def hybrid(sizes: Sequence[int] = SIZES, *, owned: Any = OWNED, build: Any = None, **more: Any) -> Federation:
    fed = federation(sizes, build=build or network(), **more)
    fed.blocks = owned[: len(sizes)]
    return fed


def hyfem(**changes: Any) -> Any:
    return algorithm("hyfem", **changes)


def server_update(fed: Federation, state: Any, rows: Tensor, built: Any = None, ids: Any = None) -> Any:
    """The server's work on models [A, D] of clients `ids` (all)."""
    chosen = torch.arange(len(rows)) if ids is None else torch.tensor(ids)
    sizes = torch.from_numpy(fed.client_data.num_examples)[chosen]
    fed.begin(0, 1.0)
    arrivals = Updates(Models(rows), chosen, sizes, torch.zeros_like(chosen))
    return (built or hyfem())._server_update(state, arrivals, fed)


def far_apart(fed: Federation, seed: int) -> Tensor:
    """A model whose neurons are not alike, as a client's (without room to grow)."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(fed.family.size, generator=generator, dtype=fed.family.dtype)


def shuffled(layout: Layout, w: Tensor, blocks: Any, orders: Sequence[np.ndarray]) -> Tensor:
    """A client's model with its hidden neurons in other orders: the same function."""
    out = torch.zeros_like(w)
    layout.put(out, w, blocks, torch.cat([torch.from_numpy(order) for order in orders]))
    return out


def test_clients_with_fewer_blocks_compute_less() -> None:
    """Two extractors and the columns of three, which are zero for the block that is lacking."""
    cost = {}
    for name, owned in {"some": OWNED, "all": np.ones_like(OWNED)}.items():
        fed = hybrid(owned=owned)
        run(hyfem(), fed, 1)
        cost[name] = fed.collect()["cost/client_gflops"]
    one = np.array([[2 * 2 * (n * 4 + 4 * 3) + 2 * 4 * 3 for n in (2, 2, 1)]])  # forward, weights, hidden layer
    epochs = 2 * np.array(SIZES)[:, None]
    assert 1e9 * (cost["all"] - cost["some"]) == pytest.approx(((~OWNED * one) * epochs).sum())


# --- identities ---


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_one_block_without_pull_is_fedavg(weighting: str) -> None:
    """With plain models, which are one block; and with one extractor and a classifier that does not move."""
    quiet = {"mu1": 0.0, "mu2": 0.0, "weighting": weighting}
    training = local(epochs=None, steps=5)
    plain = run(hyfem(**quiet), federation(SIZES, training=training), 3)
    expected = run(algorithm("fedavg", weighting=weighting), federation(SIZES, training=training), 3)
    close(plain.params, expected.params)

    def one() -> nn.Module:
        return BlocksMLP(None, None, [5], None, [4], [6], None).build(FEATURES, 1, CLASSES)

    everything = np.ones((4, 1), dtype=bool)
    blocks = run(hyfem(**quiet, sweeps=0), hybrid(owned=everything, build=one, training=training), 3)
    expected = run(algorithm("fedavg", weighting=weighting), federation(SIZES, build=one, training=training), 3)
    close(blocks.params, expected.params)


def test_the_pull_is_fedprox() -> None:
    plain = run(hyfem(mu1=0.7), federation(SIZES), 2)
    close(plain.params, run(algorithm("fedprox", mu=0.7), federation(SIZES), 2).params)


def test_of_one_client_the_server_has_the_model() -> None:
    fed = hybrid([9], build=network((6,), (9,)), owned=np.ones((1, 3), dtype=bool))
    built = hyfem(mu1=0.0, mu2=0.0)
    state = run(built, fed, 1)
    alone = federation([9], build=network((6,), (9,)))
    alone.begin(0, 1.0)
    close(state.params, alone.start_cohort(()).train(built.init(fed).params)[0])
    assert state.places.tolist() == [list(range(6))]


@pytest.mark.parametrize("hidden", [(6,), ()])
def test_extractors_are_means_over_their_holders(hidden: Any) -> None:
    """And without hidden layers so is the classifier, whose columns belong to a block's features."""
    fed, built = hybrid(build=network(hidden)), hyfem()
    layout, state = Layout.of(fed.family), built.init(fed)
    rows = torch.stack([layout.take(far_apart(fed, m), blocks_of(fed)[m], state.places[m]) for m in range(4)])
    after = server_update(fed, state, rows)
    for block in range(3):
        holders = np.flatnonzero(OWNED[:, block])
        p = torch.tensor(np.array(SIZES)[holders], dtype=torch.float64)
        for span in layout.extractors[block]:
            close(after.params[span], (p.unsqueeze(1) * rows[holders][:, span]).sum(0) / p.sum())
        if not hidden:
            columns, (layer,) = layout.columns((block,), torch.device("cpu")), layout.layers
            theirs = torch.stack([layer.weights(row)[:, columns] for row in rows[holders]])
            close(layer.weights(after.params)[:, columns], torch.tensordot(p / p.sum(), theirs, 1))


@pytest.mark.parametrize(("cost", "ids"), [("pfnm", [0, 1, 2, 3]), ("pfnm", [2]), ("l2", [2])])
@pytest.mark.parametrize("hidden", [(6,), (6, 5)])
@pytest.mark.parametrize("include_outgoing", [False, True])
def test_the_order_of_a_clients_neurons_does_not_matter(
    cost: str, ids: list[int], hidden: Any, include_outgoing: bool
) -> None:
    """Client 2's neurons, in another order than the server knows, are found where they were: it is the same model.

    l2 may lead the others astray before it is client 2's turn, so there it alone reports.
    """
    fed = hybrid(build=network(hidden, [2 * h for h in hidden]))
    built = hyfem(cost=cost, include_outgoing=include_outgoing, nu=1.0 if cost == "l2" else None)
    layout, state, blocks = Layout.of(fed.family), built.init(fed), blocks_of(fed)
    server = far_apart(fed, 3)
    rows = torch.stack([layout.take(server, blocks[m], state.places[m]) for m in range(4)])
    orders = [np.random.default_rng(1).permutation(h) for h in hidden]
    other = rows.clone()
    other[2] = shuffled(layout, rows[2], blocks[2], orders)
    with reading(fed.family, blocks[2]):
        close(fed.family.predict(other[2], fed.client_data.inputs), fed.family.predict(rows[2], fed.client_data.inputs))
    state = state._replace(params=layout.take(server, range(3), state.places[0]))
    same, moved = (server_update(fed, state, each[ids], built, ids) for each in (rows, other))
    assert [a.tolist() for a in layout.by_layer(moved.places[2])] == [np.argsort(o).tolist() for o in orders]
    share = np.concatenate([np.argsort(o) != np.arange(len(o)) for o in orders]).mean() / len(ids)
    assert fed.collect()["algorithm/moved_neurons"] == pytest.approx(share), "of those that report"
    close(moved.params, same.params)
    close(same.params, layout.take(server, range(3), state.places[0]))


def test_l2_spread_never_rises_over_sweeps() -> None:
    """Equal blocks and width, no growth: sum p ||W_m - Pi_m W_0||^2; a run of n sweeps begins like one of n - 1."""
    weights = np.array([0.1, 0.4, 0.3, 0.2])
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(7, 5, generator=generator, dtype=torch.float64) for _ in weights]
    clients = [Neurons(w, torch.arange(5), float(p)) for w, p in zip(rows, weights, strict=True)]
    spreads = []
    for sweeps in range(6):
        found = match(
            clients,
            SquaredDistance(0.0),
            num_columns=5,
            sweeps=sweeps,
            rng=np.random.default_rng(0),
            limit=7,
            start=[np.arange(7)] * 4,
        )
        mean = sum(p * w[np.argsort(a)] for p, w, a in zip(weights, rows, found.assignments, strict=True))
        spreads.append(
            sum(
                p * float((w[np.argsort(a)] - mean).square().sum())
                for p, w, a in zip(weights, rows, found.assignments, strict=True)
            )
        )
    assert all(after <= before + 1e-12 for before, after in pairwise(spreads))
    assert spreads[-1] < spreads[0]


@pytest.mark.parametrize("server_hidden", [None, (9,), (24,)])
def test_every_neuron_has_its_place_and_every_place_a_client(server_hidden: Any) -> None:
    """Clients with nothing in common: the server grows as far as it may, and what nobody uses is zero."""
    fed, built = hybrid(build=network((6,), server_hidden)), hyfem(sweeps=3)
    layout, state, blocks = Layout.of(fed.family), built.init(fed), blocks_of(fed)
    rows = torch.stack([layout.take(4 * far_apart(fed, m), blocks[m], state.places[m]) for m in range(4)])
    after = server_update(fed, state, rows, built)
    width, room = int(fed.collect()["algorithm/server_width"]), (server_hidden or (6,))[0]
    assert 6 <= width <= min(room, 24) and (server_hidden is None or width > 6)
    assert all(len(set(row)) == 6 for row in after.places.tolist())
    assert set(after.places.flatten().tolist()) == set(range(width))
    hidden, last = layout.layers
    assert not hidden.weights(after.params)[width:].any() and not hidden.biases(after.params)[width:].any()
    assert not last.weights(after.params)[:, width:].any() and hidden.weights(after.params)[:width].any(1).all()


def test_parts_are_taken_and_put_back_exactly() -> None:
    fed = hybrid(build=network((6, 4), (9, 7)))
    layout, x = Layout.of(fed.family), far_apart(fed, 1)
    places = torch.cat([torch.randperm(9)[:6], torch.randperm(7)[:4]])
    for blocks in ((0, 1, 2), (1,), (0, 2)):
        mine = layout.take(x, blocks, places)
        back = torch.zeros_like(x)
        layout.put(back, mine, blocks, places)
        assert torch.equal(layout.take(back, blocks, places), mine)
        assert torch.equal(back, torch.where(back != 0, x, 0)) and torch.equal(mine != 0, layout.own(x, blocks))


# --- a client's model is what it has, and no more ---


@pytest.mark.parametrize("training", [local(momentum=0.5, weight_decay=0.1), local(optimizer="adam")])
@pytest.mark.parametrize("executor", [None, Vectorized(2, compile=False)])
def test_training_equals_that_of_a_small_model_with_the_clients_blocks_only(training: Any, executor: Any) -> None:
    """The twin has no other extractors and no room to grow; here what is lacking stays zero without being told."""
    fed = hybrid(build=network((6,), (9,)), training=training, executor=executor)
    layout = Layout.of(fed.family)
    x = fed.family.init(0)
    fed.begin(0, 1.0)
    cohort = fed.start_cohort(())
    places = layout.first_places(1, x.device)[0]
    blocks = [blocks_of(fed)[m] for m in cohort.client_ids]
    start = torch.stack([layout.take(x, mine, places) for mine in blocks])
    y = train_on_blocks(cohort, fed.blocks, start)
    for row, client, mine in zip(y, cohort.client_ids.tolist(), blocks, strict=True):
        assert not row[~layout.own(x, mine)].any()
        small = federation(SIZES, build=network((6,), None, mine), training=training)
        small.begin(0, 1.0)
        of_small = Layout.of(small.family)
        begin = torch.zeros(small.family.size, dtype=torch.float64)
        for i, block in enumerate(mine):
            for ours, theirs in zip(of_small.extractors[i], layout.extractors[block], strict=True):
                begin[ours] = x[theirs]
        columns = layout.columns(mine, x.device)
        for ours, theirs in zip(of_small.layers, layout.layers, strict=True):
            first = ours is of_small.layers[0]
            weights = theirs.weights(x)[: ours.outputs]
            ours.weights(begin).copy_(weights[:, columns] if first else weights[:, : ours.inputs])
            ours.biases(begin).copy_(theirs.biases(x)[: ours.outputs])
        one = small.start_cohort(())
        z = one.select(np.flatnonzero(one.client_ids == client)).train(begin)[0]
        inputs = fed.client_data.inputs
        torch.testing.assert_close(fed.family.predict(row, inputs), small.family.predict(z, inputs), rtol=0, atol=1e-9)


def test_reading_fewer_blocks_changes_nothing_but_the_work() -> None:
    """Also with batch norm, whose statistics of missing blocks stay zero."""
    fed = hybrid(build=with_norm)
    layout, x = Layout.of(fed.family), fed.family.init(0)
    mine = layout.take(x, (0, 2), layout.first_places(1, x.device)[0])
    whole = fed.family.predict(mine, fed.client_data.inputs)
    with reading(fed.family, (0, 2)):
        close(fed.family.predict(mine, fed.client_data.inputs), whole)
    close(fed.family.predict(mine, fed.client_data.inputs), whole)
    fed.begin(0, 1.0)
    cohort = fed.start_cohort(())
    blocks = [blocks_of(fed)[m] for m in cohort.client_ids]
    start = torch.stack([layout.take(x, each, layout.first_places(1, x.device)[0]) for each in blocks])
    y, z = train_on_blocks(cohort, fed.blocks, start), cohort.train(start)
    mask = torch.stack([layout.own(x, each) for each in blocks])
    close(torch.where(mask, y, 0), torch.where(mask, z, 0))


@pytest.mark.parametrize("name", ["hyfem", "standalone"])
@pytest.mark.parametrize("changes", [{}, {"build": with_norm}, {"cohort": 2, "std": 1.5}])
def test_executors_agree_and_runs_resume_bit_for_bit(name: str, changes: dict[str, Any]) -> None:
    more = {"keep_own": True} if name == "hyfem" and "cohort" in changes else {}
    built = algorithm(name, **more)
    fed = hybrid(**changes)
    half = run(built, fed, 3)
    saved = pack({"state": half, "fed": fed.state_dict()})
    whole = run(built, fed, 3, first=3, state=half)
    other = hybrid(**changes)
    state = unpack(saved["state"], like=built.init(other))
    other.load_state_dict(saved["fed"])
    resumed = run(built, other, 3, first=3, state=state)
    assert all(torch.equal(a, b) for a, b in zip(tensors(resumed), tensors(whole), strict=True))
    vectorised = run(built, hybrid(**changes, executor=Vectorized(2, compile=False)), 6)
    for mine, theirs in zip(tensors(vectorised), tensors(whole), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-8)


# --- partial reports, payload, evaluation ---


def test_what_only_a_silent_client_has_stays() -> None:
    """Client 3 alone has block 2 besides client 1: when both are silent, it and their neurons stay as they were."""
    fed, built = hybrid(build=network((6,), (20,))), hyfem(sweeps=3)
    layout, state, blocks = Layout.of(fed.family), built.init(fed), blocks_of(fed)
    apart = torch.stack([layout.take(4 * far_apart(fed, m), blocks[m], state.places[m]) for m in range(4)])
    state = server_update(fed, state, apart, built)
    fresh = torch.stack(
        [layout.take(4 * far_apart(fed, 9 + m), blocks[m], layout.first_places(1, apart.device)[0]) for m in (0, 2)]
    )
    after = server_update(fed, state, fresh, built, ids=[0, 2])
    for span in layout.extractors[2]:
        assert torch.equal(after.params[span], state.params[span])
    hidden = layout.layers[0]
    mine = layout.columns((2,), apart.device)
    for client in (1, 3):
        before, now = (hidden.weights(s.params)[s.places[client]][:, mine] for s in (state, after))
        close(now, before)
    assert torch.equal(built.init(fed).places, run(built, hybrid(cohort=1, std=1e6), 2).places), "nobody reported"


def test_a_round_costs_little_for_silent_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those that report have all parts, the parts of the others are not added up; sizes are those of blocks."""
    fed, built = hybrid(build=network((6,), (6,))), hyfem()
    state, calls = built.init(fed), Counter[str]()
    layout, blocks = Layout.of(fed.family), blocks_of(fed)
    for name in ("put", "own"):
        whole = getattr(Layout, name)
        monkeypatch.setattr(Layout, name, lambda *a, name=name, whole=whole: calls.update([name]) or whole(*a))
    arrived = torch.stack([layout.take(state.params, blocks[m], state.places[m]) for m in (0, 1, 2)])
    server_update(fed, state, arrived, built, ids=[0, 1, 2])
    assert calls == {"put": 2 * 3}
    assert len(built._sizes(fed)) == 4 and calls["own"] == 3, "clients; blocks"


def test_clients_that_are_silent_count_by_their_examples_too() -> None:
    """In the matching. So three times as many examples for all, in full-batch steps, change nothing."""
    found = []
    for times in (1, 3):
        split = [np.tile(part, times) for part in np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])]
        reporting, whole = FixedParticipation([0, 1], 0), local(batch_size=200)
        fed = hybrid(split=split, participation=reporting, training=whole, build=network((6,), (9,)))
        found.append(run(hyfem(cost="l2", keep_own=True, first_classifiers="own"), fed, 3))
    assert torch.equal(found[0].places, found[1].places) and not torch.equal(found[0].places[0], found[0].places[1])
    close(found[0].params, found[1].params)


def test_clients_send_and_receive_their_parts() -> None:
    fed = hybrid(build=network((6,), (9,)))
    run(hyfem(), fed, 1)
    extractor = {0: 2 * 4 + 4 + 15, 1: 2 * 4 + 4 + 15, 2: 1 * 4 + 4 + 15}
    sizes = [sum(extractor[b] for b in mine) + 6 * (3 * len(mine)) + 6 + 6 * 3 + 3 for mine in blocks_of(fed)]
    metrics = fed.collect()
    assert metrics["comm/upload_mb"] == pytest.approx(4 * sum(sizes) / 1e6)
    assert metrics["comm/download_mb"] == pytest.approx(4 * (sum(sizes) + 4 * 6) / 1e6)
    run(hyfem(send_all=True), fed, 1, first=1)
    server = sum(extractor.values()) + 6 * 9 + 6 + 6 * 3 + 3
    assert fed.collect()["comm/download_mb"] == pytest.approx(4 * 4 * (server + 6) / 1e6)
    wasteful = hybrid(build=network((6,), (9,)), participation=OverSelection(2, 2.0, 0))
    run(hyfem(), wasteful, 1)
    assert wasteful.collect()["late/arrived"] == 2, "all four clients are asked"
    assert wasteful.collect()["comm/download_mb"] == metrics["comm/download_mb"]
    run(algorithm("standalone"), fed, 1, first=2)
    assert fed.collect()["comm/upload_mb"] == 0 == fed.collect()["comm/download_mb"]


def test_clients_are_evaluated_with_their_own_blocks() -> None:
    fed = hybrid()
    built, layout = hyfem(), Layout.of(fed.family)
    state = run(built, fed, 2)
    models = built.client_models(state, fed, np.arange(4))
    assert torch.equal(models[[2, 0]], built.client_models(state, fed, np.array([2, 0])))
    for m, w in enumerate(models):
        assert torch.equal(w, layout.take(state.params, blocks_of(fed)[m], state.places[m]))
        changed = fed.client_data.inputs.clone()
        for block, columns in enumerate([slice(0, 2), slice(2, 4), slice(4, 5)]):
            if not OWNED[m, block]:
                changed[:, columns] += 100
        assert torch.equal(fed.family.predict(w, changed), fed.family.predict(w, fed.client_data.inputs)), (
            "it cannot see"
        )
    kept, fed = hyfem(keep_own=True), hybrid()
    state = run(kept, fed, 2)
    first, (places, *_) = fed.family.init(fed.seed), layout.first_places(1, state.params.device)
    for m, own in zip((3, 1), kept.client_models(state, fed, np.array([3, 1])), strict=True):
        assert torch.equal(own, state.own[m] if m in state.own else layout.take(first, blocks_of(fed)[m], places))
    assert 1 in state.own


def test_a_client_is_tested_on_its_blocks_alone(monkeypatch: Any) -> None:
    """Extractors of blocks that a client lacks are skipped, with the same result: they are zero in its model."""
    fed = hybrid()
    built = hyfem()
    state, read = run(built, fed, 2), []
    predict = type(fed.family).evaluate

    def spy(self: Any, *arguments: Any) -> Any:
        read.append(self.module.active_part)
        return predict(self, *arguments)

    monkeypatch.setattr(type(fed.family), "evaluate", spy)
    inputs, targets = fed.client_data.inputs, fed.client_data.targets
    asked = evaluation(matrix=["client/global"], batch_size=len(targets))
    test = Examples(inputs, targets, targets, None)
    judge = Matrix(asked, built, fed, test, ClientModels(asked, fed, test))
    found = judge.by_client(state, 2)["client/global"].accuracy
    assert set(read) == set(blocks_of(fed)) and fed.family.module.active_part == (0, 1, 2), "all are read again"
    whole = [fed.family.predict(w, inputs).argmax(1) for w in built.client_models(state, fed, np.arange(4))]
    assert found == pytest.approx([float((logits == targets).double().mean()) for logits in whole])


def test_the_server_is_tested_on_all_blocks_whatever_was_read_before(monkeypatch: Any) -> None:
    """Networks that have read a client's blocks serve the server's model too."""
    monkeypatch.setattr(scoring, "MIN_ALONE_FLOPS", 0.0)
    fed, built = hybrid(), hyfem()
    x, inputs, targets = run(built, fed, 2).params, fed.client_data.inputs, fed.client_data.targets
    test, found = Examples(inputs, targets, targets, None), []
    for blocks in ((0,), (0, 1, 2), (1, 2)):
        with reading(fed.family, blocks):
            evaluation(batch_size=4).evaluate(fed.executor, fed.family, x, test)
        found.append(evaluation(batch_size=4).evaluate(fed.executor, fed.family, x, test)["test/loss"])
    expected = float(losses(fed.family.predict(x, inputs), targets, None).mean())
    assert found == pytest.approx([expected] * 3, rel=1e-12)


@pytest.mark.parametrize("kept", ["none", "head"])
def test_a_late_client_gets_its_own_model_when_its_update_arrives(kept: str) -> None:
    """Until then it is busy. A part at home, if there is one, belongs to the same model."""
    fed, built = hybrid(delay=ConstantDelay("client", 2), home=home(kept)), hyfem(keep_own=True)
    state = built.init(fed)
    first = built.client_models(state, fed, np.arange(4))
    for round in range(3):
        state = run(built, fed, 1, first=round, state=state)
        own = built.client_models(state, fed, np.arange(4))
        assert torch.equal(own, first) == (round < 2)
        assert bool((own != first).any(1).all()) == (round == 2)


# --- what stays at home ---


def test_without_blocks_and_pull_a_part_at_home_is_fedavgs() -> None:
    """FedPer, LG-FedAvg and FedBN."""
    for kept in ("head", "body", "norm"):
        how: dict[str, Any] = {"sizes": SIZES, "cohort": 2, "build": normed, "home": home(kept)}
        feds, found = [federation(**how) for _ in range(2)], []
        for fed, built in zip(feds, (hyfem(mu1=0.0, mu2=0.0), algorithm("fedavg")), strict=True):
            state = run(built, fed, 4)
            found.append([built.models(state), built.client_models(state, fed, np.arange(4))])
        close(found[0], found[1])


@pytest.mark.parametrize("kept", ["head", "body"])
@pytest.mark.parametrize("keys", [{}, {"keep_own": True, "include_outgoing": True}], ids=["server's", "own"])
def test_a_part_at_home_is_in_the_order_of_the_clients_neurons(kept: str, keys: dict[str, Any]) -> None:
    """The server's stays as it was, clients send the rest, and neurons whose weights are at home keep their places."""
    how: dict[str, Any] = {"build": network((6,), (20,)), "home": home(kept), "cohort": 3, "std": 1.0}
    fed, built = hybrid(**how), hyfem(**keys)
    layout, mask, state = Layout.of(fed.family), fed.home.mask(fed.family), built.init(fed)
    first, rng = state.params, np.random.default_rng(0)
    places = torch.from_numpy(np.stack([rng.permutation(6) for _ in range(4)]))
    state = run(built, fed, 4, state=state._replace(places=places))
    own = built.client_models(state, fed, np.arange(4))
    assert torch.equal(state.params[mask], first[mask]) and not torch.equal(state.params[~mask], first[~mask])
    assert kept == "head" or torch.equal(state.places, places)
    for m, blocks in enumerate(blocks_of(fed)):
        mine = layout.own(first, blocks)
        assert not own[m][~mine].any() and (own[m] != first)[mask & mine].any()
        if not keys:
            taken = layout.take(state.params, blocks, state.places[m])
            assert torch.equal(own[m][~mask], taken[~mask])
    changed = hybrid(**how)
    changed.client_data.inputs[: SIZES[0]] += 1
    others = [built.client_models(run(built, f, 1), f, np.arange(4)) for f in (hybrid(**how), changed)]
    alike = (others[0][1:] == others[1][1:])[:, mask]
    assert alike.all(), "what others keep is theirs"


def test_biases_at_home_have_no_part_in_the_matching_of_weights_that_clients_send() -> None:
    fed = hybrid(build=network((6,), (20,)), home=home("prefixes", prefixes=["classifier.0.bias"]))
    layout, mask, state = Layout.of(fed.family), fed.home.mask(fed.family), hyfem().init(fed)
    models = [far_apart(fed, m) for m in range(4)]
    rows = torch.stack([layout.take(w, mine, state.places[0]) for w, mine in zip(models, blocks_of(fed), strict=True)])
    one, other = (server_update(fed, state, torch.where(mask, scale * rows, rows)).places for scale in (1, -5))
    assert torch.equal(one, other) and not torch.equal(one, state.places)


def test_clients_send_and_receive_their_parts_without_those_at_home() -> None:
    sent = []
    for kept in ("none", "head"):
        fed = hybrid(build=network((6,), (9,)), home=home(kept))
        for round, built in enumerate((hyfem(), hyfem(send_all=True))):
            run(built, fed, 1, first=round)
            sent.append((fed.collect()["comm/upload_mb"], fed.collect()["comm/download_mb"]))
    head = 4 * 4 * (6 * 3 + 3) / 1e6
    for whole, rest in zip(sent[:2], sent[2:], strict=True):
        assert np.subtract(whole, rest) == pytest.approx([head, head])


def test_clients_with_blocks_and_a_part_at_home_resume_bit_for_bit() -> None:
    how: dict[str, Any] = {"build": with_norm, "home": home("prefixes", prefixes=["classifier.2", "extractors.0"])}
    feds = [hybrid(**how, cohort=2, std=1.5) for _ in range(2)]
    half = run(hyfem(), feds[0], 3)
    saved = pack({"state": half, "fed": feds[0].state_dict()})
    states = [run(hyfem(), feds[0], 3, first=3, state=half)]
    feds[1].load_state_dict(saved["fed"])
    states.append(run(hyfem(), feds[1], 3, first=3, state=unpack(saved["state"], like=hyfem().init(feds[1]))))
    own = [hyfem().client_models(state, fed, np.arange(4)) for state, fed in zip(states, feds, strict=True)]
    pairs = zip([*tensors(states[0]), own[0]], [*tensors(states[1]), own[1]], strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_classifier_of_its_own_is_refused_where_a_part_of_it_stays_at_home() -> None:
    built = hyfem(keep_own=True, first_classifiers="own")
    built.check(hybrid(home=home("prefixes", prefixes=["extractors"])))
    with pytest.raises(UserError, match=r"^algorithm\.first_classifiers must be same with [^\n]*$"):
        built.check(hybrid(home=home("head")))


def test_hyfem_learns_more_than_clients_alone() -> None:
    """Each client lacks a class and a block; the server's model knows all."""
    fed = federation([30, 30, 30], build=network((16,)), training=local(lr=0.2))
    fed.blocks = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=bool)
    state = run(hyfem(mu1=0.1, mu2=0.1), fed, 30)
    inputs, targets = fed.client_data.inputs, fed.client_data.targets
    accuracy = lambda w: float((fed.family.predict(w, inputs).argmax(1) == targets).double().mean())  # noqa: E731
    alone = run(algorithm("standalone"), fed, 30)
    assert accuracy(state.params) > np.mean([accuracy(w) for w in alone.own.values()]) + 0.05


def test_matching_finds_neurons_where_classifiers_are_the_clients_own() -> None:
    """Extractors begin alike all the same; coordinate averaging (no sweep) leaves every neuron where it is."""
    how: dict[str, Any] = {"keep_own": True, "first_classifiers": "own", "sigma": 0.1, "mu1": 0.0, "mu2": 0.0}
    fed = hybrid(build=network((12,)))
    state, layout = hyfem(**how).init(fed), Layout.of(fed.family)
    own = hyfem(**how).client_models(state, fed, np.arange(fed.num_clients))
    classifier = layout.in_classifier(state.params)
    for m, blocks in enumerate(blocks_of(fed)):
        mine = layout.take(state.params, blocks, state.places[m])
        assert torch.equal(own[m][~classifier], mine[~classifier])
        assert not torch.equal(own[m][classifier], mine[classifier])

    def moved(**changes: Any) -> float:
        fed = hybrid(build=network((12,)))
        run(hyfem(**{**how, **changes}), fed, 1)
        return fed.collect()["algorithm/moved_neurons"]

    assert moved() > 0.3
    assert moved(sweeps=0) == 0
    assert moved(first_classifiers="same", sigma=1.0) == 0


# --- bad input ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu1": -1.0}, "mu1 must be >= 0, got -1.0"),
        ({"mu2": -1.0}, "mu2 must be >= 0, got -1.0"),
        ({"nu": -1.0}, "nu must be >= 0, got -1.0"),
        ({"sigma": 0.0}, "sigma must be in [1e-6, 1e6], got 0.0"),
        ({"sigma0": 1e-30}, "sigma0 must be in [1e-6, 1e6], got 1e-30"),
        ({"gamma": 0.0}, "gamma must be > 0, got 0.0"),
        ({"cost": "cosine"}, "cost must be one of pfnm, l2, got cosine"),
        ({"sweeps": -1}, "sweeps must be >= 0, got -1"),
        ({"first_classifiers": "x"}, "first_classifiers must be one of same, own, got x"),
        ({"first_classifiers": "own"}, "keep_own must be true with first_classifiers own, got false"),
        ({"weighting": "x"}, "weighting must be one of size, uniform, got x"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InstantiationException) as error:
        hyfem(**changes)
    assert str(error.value.__cause__) == message


@pytest.mark.parametrize(
    ("name", "build", "owned", "message"),
    [
        ("hyfem", lambda: nn.Linear(FEATURES, CLASSES), OWNED, "^model must have an extractor for each .* got Linear"),
        ("hyfem", network(blocks=(0, 1)), OWNED, "^model must read all of the partition's 3 feature blocks, got 2"),
        ("fedavg", network(), OWNED, "^algorithm=fedavg has one model .*: there are none, so use algorithm=hyfem"),
        ("fedprox", network(), OWNED[:1], r"^algorithm=fedprox has one model .*: set model.blocks=\[0, 1\]"),
    ],
)
def test_models_that_do_not_fit_the_blocks_are_refused(name: str, build: Any, owned: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_blocks(algorithm(name), hybrid(SIZES[: len(owned)], owned=owned, build=build))


def test_fedavg_may_read_what_all_have() -> None:
    fed = hybrid(SIZES[:1], owned=OWNED[:1], build=network(blocks=(0, 1)))
    check_blocks(algorithm("fedavg"), fed)
    check_blocks(algorithm("fedavg"), federation(SIZES))


@pytest.mark.parametrize(("algorithm", "said"), [("hyfem", 1), ("standalone", 0)])
def test_hyfem_without_blocks_is_said(algorithm: str, said: int, caplog: pytest.LogCaptureFixture) -> None:
    prepare(build(composed(f"algorithm={algorithm}", "server_data=none")))
    assert sum("nothing to match without feature blocks" in record.getMessage() for record in caplog.records) == said
