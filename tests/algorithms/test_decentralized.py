"""Identities of learning without a server: who meets, decentralised averaging, partial training, FML, Def-KT."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.algorithms.def_kt import DefKT
from fedlab_runner.algorithms.fedrolex import ORDERS
from fedlab_runner.algorithms.fml import FML
from fedlab_runner.algorithms.shared.decentralized import (
    Clients,
    cluster_means,
    initial_models,
    pick_participants,
    train,
    updated,
)
from fedlab_runner.algorithms.shared.width_slicing import check_sliceable, places
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily, Normalize
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.models.dfml_cnn import DFMLCNN
from fedlab_runner.models.preact_resnet import PreActResNet
from fedlab_runner.models.vit_small import SmallViT
from fedlab_runner.topologies.ring import Ring
from fedlab_runner.topologies.star import Star
from fedlab_runner.topologies.two_groups import TwoGroups
from fedlab_runner.utils.errors import UserError
from tests.helpers.mixed import KINDS, distinct, mixed, sliceable
from tests.helpers.toy import (
    ALGORITHMS,
    CLASSES,
    EQUAL,
    FEATURES,
    algorithm,
    evaluate,
    federation,
    local,
    mlp,
    run,
    tensors,
    vectors,
)

SERVERLESS = [name for name in ALGORITHMS if algorithm(name).decentralized]
MIXED = sorted(set(SERVERLESS) - {"def_kt", "heterofl", "fedrolex", "federated_dropout"})
PARTIAL = ["heterofl", "fedrolex", "federated_dropout"]
WIDTHS = (sliceable(4), sliceable(2), sliceable(1))


def close(one: Any, other: Any, atol: float = 1e-10) -> None:
    for mine, theirs in zip(tensors(one), tensors(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=atol)


# Who meets.


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


@pytest.mark.parametrize("name", MIXED)
def test_architectures_may_be_mixed_in_every_executor(name: str) -> None:
    built = algorithm(name)
    one = run(built, mixed(cohort=3), 4)
    close(one, run(built, mixed(cohort=3, executor=Vectorized(2, compile=False)), 4), atol=1e-8)
    assert [len(stack) for stack in built.models(one)] == [3, 2, 2]


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
    before, (after,) = state.models[0], run(built, fed, 1, 3, state).models
    changed = {i for i in range(8) if not torch.equal(before[i], after[i])}
    there = set(pick_participants(fed, state.aggregator).participants.tolist())
    assert changed and (changed <= there if name != "def_kt" else len(changed) <= 4)


@pytest.mark.parametrize("name", SERVERLESS)
def test_more_senders_than_there_can_be_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"^participation must .* 4 clients.*got 4 senders$") as error:
        algorithm(name).check(federation(EQUAL, cohort=4))
    assert "\n" not in str(error.value)


# Decentralised FedAvg and FedProx.


def test_with_everyone_there_decentralised_fedavg_is_fedavg() -> None:
    sizes = [8, 3, 20, 5]
    central, fed = run(algorithm("fedavg"), federation(sizes), 3), federation(sizes, cohort=3)
    state = run(algorithm("dec_fedavg"), fed, 3)
    assert all(torch.allclose(row, central.params, rtol=0, atol=1e-12) for row in state.models[0])


def test_each_architecture_has_its_own_mean_and_one_alone_keeps_its_model() -> None:
    fed = mixed(cohort=3)
    models = distinct(fed)
    ids = np.array([0, 3, 4])  # two of the first architecture, one of the second
    trained = train(fed, models, ids)
    means = {group.architecture: mean for group, mean in cluster_means(fed, trained)}
    first, second = trained
    torch.testing.assert_close(means[0], (9 * first.after[0] + 7 * first.after[1]) / 16, rtol=0, atol=1e-12)
    assert torch.equal(means[1], second.after[0])
    state = updated(models, [(t.group, means[t.group.architecture]) for t in trained])
    assert torch.equal(state[2], models[2]) and torch.equal(state[0][2], models[0][2])
    assert torch.equal(state[0][0], state[0][1]) and torch.equal(state[1][1], second.after[0])


def test_dec_fedprox_without_its_term_is_dec_fedavg_and_a_strong_one_holds_models_back() -> None:
    plain = run(algorithm("dec_fedavg"), mixed(cohort=3), 3)
    close(plain, run(algorithm("dec_fedprox", mu=0.0), mixed(cohort=3), 3))
    start = initial_models(mixed(cohort=3))[0]
    held = run(algorithm("dec_fedprox", mu=5.0), mixed(cohort=3), 1).models[0]
    free = run(algorithm("dec_fedavg"), mixed(cohort=3), 1).models[0]
    assert (held - start).norm() < 0.7 * (free - start).norm()


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
        cohort.train(distinct(fed)[group.architecture][group.rows])
        assert cohort.last_loss is not None
        every.append((cohort.last_loss * cohort.num_examples).sum())
    fed.begin(0, 1.0)
    train(fed, distinct(fed), np.arange(7))
    assert fed.collect()["train/loss"] == pytest.approx(float(sum(every)) / fed.client_data.num_examples.sum())


# Partial training.

CUTS = {
    "cnn": [DFMLCNN(None, None, w) for w in ([8, 6], [4, 3], [3, 1])],
    "resnet": [PreActResNet(None, None, w) for w in ([8, 12], [4, 6], [4, 2])],
    "vit": [SmallViT(None, None, d, 2, 4, 2, 3, 0.1, "cardinal") for d in (8, 4, 3)],
}


def families(models: Any) -> list[ModelFamily]:
    return [
        ModelFamily(
            lambda model=model: model.build(2, 8, 3),
            3,
            normalize=Normalize(None, None),
            device=torch.device("cpu"),
            dtype=torch.float64,
        )
        for model in models
    ]


@pytest.mark.parametrize("kind", CUTS)
def test_a_cut_of_channels_is_a_cut_of_every_tensor(kind: str) -> None:
    """HeteroFL's sets: each tensor of the narrow model is the first corner of the wide one's, and comes back whole."""
    wide, *narrow = families(CUTS[kind])
    w = wide.init(0)
    whole = wide.views(w[: wide.num_params]) | wide.buffer_views(w[wide.num_params :])
    for family in narrow:
        index = places(family, wide, lambda label, k, of: torch.arange(k))
        assert len(index) == family.size and len(index.unique()) == family.size
        part = w[index]
        for name, value in (
            family.views(part[: family.num_params]) | family.buffer_views(part[family.num_params :])
        ).items():
            if name == "head.weight" and kind == "cnn":
                continue  # a flattened map: its corner is below
            assert torch.equal(value, whole[name][tuple(slice(n) for n in value.shape)]), name
        embedded = torch.full_like(w, torch.nan)
        embedded[index] = part
        assert torch.equal(embedded[index], part), "slice after embed is the identity"
    assert torch.equal(places(wide, wide, lambda label, k, of: torch.arange(k)), torch.arange(wide.size))


def test_channels_of_a_flattened_map_stay_together() -> None:
    wide, narrow, _ = families(CUTS["cnn"])
    index = places(narrow, wide, lambda label, k, of: torch.tensor([4, 0, 2]) if label == "conv2" else torch.arange(k))
    w = wide.init(0)
    head = wide.views(w)["head.weight"].view(3, 6, 4)  # classes, channels, 2x2 pixels
    assert torch.equal(narrow.views(w[index])["head.weight"].view(3, 3, 4), head[:, [4, 0, 2]])
    assert torch.equal(narrow.views(w[index])["conv2.weight"], wide.views(w)["conv2.weight"][[4, 0, 2]][:, :4])


@pytest.mark.parametrize("kind", CUTS)
def test_permuted_channels_compute_the_same(kind: str) -> None:
    """A model of full width with all channels in another order is the same function: no axis is forgotten."""
    wide = families(CUTS[kind])[0]
    rng = generator(0, Purpose.ALGORITHM)
    index = places(wide, wide, lambda label, k, of: torch.from_numpy(rng.permutation(of)))
    w, x = wide.init(0), torch.randn(4, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = w + 0.1 * torch.rand(
        len(w), dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )  # norms that differ
    assert not torch.equal(w[index], w)
    torch.testing.assert_close(wide.predict(w[index], x), wide.predict(w, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "how"), [*((name, {}) for name in PARTIAL), *(("fedrolex", {"order": order}) for order in ORDERS)]
)
def test_equal_widths_are_uniform_decentralised_fedavg(name: str, how: dict[str, str]) -> None:
    for build in (sliceable(3), mlp):
        one = run(algorithm(name, **how), federation([8] * 6, build=build, cohort=3), 4)
        close(one.models, run(algorithm("dec_fedavg"), federation([8] * 6, build=build, cohort=3), 4).models)


@pytest.mark.parametrize("name", PARTIAL)
def test_shared_values_are_the_mean_of_those_who_have_them(name: str) -> None:
    """A plain twin, value by value."""
    fed, built = mixed(builds=(*WIDTHS, sliceable(2, norm=False)), cohort=4), algorithm(name)
    fed.begin(3, 1.0)
    state = built.init(fed)._replace(models=distinct(fed), aggregator=0)
    meeting, after = pick_participants(fed, 0), {}
    for group, _, rows in train(fed, state.models, meeting.participants):
        after |= {int(i): (group.family, row) for i, row in zip(group.ids, rows, strict=True)}
    wide = max((family for family, _ in after.values()), key=lambda family: family.num_params)

    def channels(client: int) -> dict[str, list[int]]:
        family = after[client][0]
        k, of = family.views(after[client][1])["a.bias"].numel(), wide.views(wide.init(0))["a.bias"].numel()
        rng = generator(fed.seed, Purpose.SUBMODEL, fed.round, client)
        sets = {}
        for label, n, j in (("one", k, of), ("two", 2 * k, 2 * of)):
            if name == "heterofl":
                sets[label] = list(range(n))
            elif name == "fedrolex":
                sets[label] = [(3 + i) % j for i in range(n)]
            else:
                sets[label] = sorted(rng.choice(j, n, replace=False).tolist())
        return sets

    total = {k: torch.zeros_like(v) for k, v in wide.views(wide.init(0)).items()}
    count = {k: torch.zeros_like(v) for k, v in total.items()}
    grids = {}
    for client, (family, row) in after.items():
        s = channels(client)
        ix = {
            "a.weight": np.ix_(s["one"], range(FEATURES)),
            "a.bias": (s["one"],),
            "b.weight": np.ix_(s["two"], s["one"]),
            "b.bias": (s["two"],),
            "c.weight": np.ix_(range(CLASSES), s["two"]),
            "c.bias": (list(range(CLASSES)),),
        }
        grids[client] = ix
        for key, value in family.views(row).items():
            total[key][ix[key]] += value
            count[key][ix[key]] += 1
    assert all((c >= 1).all() for c in count.values()), "every value of the widest model is covered"
    new = built.round(state, fed).models
    for client, (family, _) in after.items():
        mine = family.views(new[client % 4][client // 4])
        for key, value in mine.items():
            expected = (total[key] / count[key])[grids[client][key]]
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)


def test_fedrolex_begins_as_heterofl_and_a_window_in_order_changes_nothing_without_a_server() -> None:
    def after(name: str, rounds: int, **how: Any) -> Any:
        return run(algorithm(name, **how), mixed(builds=WIDTHS, cohort=4), rounds)

    for order in ORDERS:
        close(after("fedrolex", 1, order=order).models, after("heterofl", 1).models)
    close(after("fedrolex", 5).models, after("heterofl", 5).models)
    later = [vectors(after("fedrolex", 5, order=order).models) for order in ORDERS]
    for one, other in itertools.combinations(later, 2):
        assert not torch.allclose(one, other, atol=1e-3)


def test_fedrolex_puts_models_back_where_they_were_cut_from() -> None:
    """Where nobody learns there is one widest model and all others are windows of it: today's, or that of the round in
    which a client met last. By the indices of one round alone the widest model would be stirred.
    """
    fed = mixed(builds=WIDTHS, cohort=4, training=local(lr=1e-300))
    wide = max(fed.families, key=lambda family: family.num_params)
    built, whole = algorithm("fedrolex", order="returned"), wide.init(5)

    def part(family: Any, t: int) -> torch.Tensor:
        return whole[places(family, wide, lambda label, k, of: ((t + torch.arange(k)) % of).sort().values)]

    state = built.init(fed)
    state = state._replace(
        models=tuple(part(family, 0).repeat(len(w), 1) for family, w in zip(fed.families, state.models, strict=True))
    )
    last = [0] * fed.num_clients
    for t in range(7):
        fed.begin(t, 1.0)
        for client in pick_participants(fed, state.aggregator).participants.tolist():
            last[client] = t
        state = built.round(state, fed)
        for client, when in enumerate(last):
            count = len(fed.families)
            model = state.models[client % count][client // count]
            torch.testing.assert_close(model, part(fed.families[client % count], when), rtol=0, atol=1e-12)
    assert len(set(last)) > 1


def test_a_channel_that_nobody_at_the_meeting_has_is_kept() -> None:
    """Two clients of one width meet; today's window has a channel that neither was cut from."""
    fed, built = (
        mixed([5] * 6, builds=WIDTHS, cohort=1, training=local(lr=1e-300)),
        algorithm("fedrolex", order="returned"),
    )
    wide, narrow = fed.families[:2]

    def narrow_ones_meet(t: int) -> bool:
        fed.begin(t, 1.0)
        return set(pick_participants(fed, 1).participants.tolist()) == {1, 4}

    t = next(t for t in range(1, 400, 4) if narrow_ones_meet(t))  # of 4 channels the second and third
    state = built.init(fed)._replace(aggregator=1)
    before, after = state.models[1][0], built.round(state, fed).models[1][0]
    cut = [places(narrow, wide, lambda label, k, of, s=s: ((s + torch.arange(k)) % of).sort().values) for s in (0, t)]
    there = dict(zip(cut[0].tolist(), before, strict=True))
    expected = torch.stack([there.get(place, own) for place, own in zip(cut[1].tolist(), before, strict=True)])
    assert any(place in there for place in cut[1].tolist()) and not torch.equal(before, expected)
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("builds", "fault"),
    [
        (KINDS, "use model=dfml_cnn, preact_resnet or vit_small"),
        ((sliceable(3), sliceable(3, norm=True)), "only one of two models has a layer norm.bias"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(builds: Any, fault: str) -> None:
    for name in PARTIAL:
        with pytest.raises(UserError, match=rf"^algorithm={name} needs models that differ in width alone: {fault}"):
            algorithm(name).check(mixed(builds=builds, cohort=3))


def test_it_is_said_where_there_is_nothing_to_cut(caplog: pytest.LogCaptureFixture) -> None:
    for name in PARTIAL:
        algorithm(name).check(federation([5] * 4, cohort=2))
        assert f"algorithm={name} averages whole models, as all have one width" in caplog.text
    caplog.clear()
    algorithm("heterofl").check(mixed(builds=WIDTHS, cohort=3))
    assert not caplog.text


def test_the_layer_that_cannot_be_cut_is_named() -> None:
    fed = mixed(cohort=3)
    for models, layer in (
        ([DFMLCNN(None, None, [8, 6]), DFMLCNN(None, None, [4, 7])], r"conv2\.weight cannot be cut"),
        ([DFMLCNN(None, None, [8, 6]), DFMLCNN(None, None, [8])], r"only one of two models has a layer conv2\.bias"),
        (
            [SmallViT(None, None, 8, 1, 4, heads, 4, 0.1, "cardinal") for heads in (1, 2)],
            r"layer1\.qkv\.weight cannot be cut from",
        ),
    ):
        fed.families = tuple(families(models))
        with pytest.raises(UserError, match=layer):
            check_sliceable(algorithm("heterofl"), fed)


# FML and Def-KT.


def test_fml_with_labels_alone_is_local_training_beside_decentralised_fedavg_of_the_memes() -> None:
    """alpha = beta = 1: no gradient from the other model."""
    fed = mixed(cohort=3)
    state = run(FML(alpha=1.0, beta=1.0, meme=None), fed, 3)
    twin, homogeneous = mixed(cohort=3), mixed(cohort=3, builds=KINDS[:1])
    close(state.memes, run(algorithm("dec_fedavg"), homogeneous, 3).models[0])
    models, aggregator = initial_models(twin), 0
    for round in range(3):
        twin.begin(round, 1.0)
        meeting = pick_participants(twin, aggregator)
        models = updated(models, [(t.group, t.after) for t in train(twin, models, meeting.participants)])
        aggregator = meeting.next
    # drop_single of a pair follows both of its models, so clients whose sizes leave one example are not in this toy
    close(state.models, models)


def test_fml_pulls_the_two_models_together() -> None:
    def distance(alpha: float) -> float:
        fed = federation([12] * 4, cohort=3)
        algo = FML(alpha=alpha, beta=alpha, meme=None)
        state = run(algo, fed, 6)._replace()
        logits = [
            fed.family.predict(w, fed.client_data.inputs).softmax(-1) for w in (state.models[0][1], state.memes[1])
        ]
        return float((logits[0] - logits[1]).abs().mean())

    assert distance(0.2) < distance(1.0)


def test_only_memes_travel_and_both_kinds_are_evaluated() -> None:
    fed = mixed(cohort=3)
    built = FML(alpha=0.5, beta=0.5, meme=None)
    state = run(built, fed, 2)
    assert fed.collect()["comm/upload_mb"] == pytest.approx(3 * fed.family.size * 4 / 1e6)
    assert {"test/accuracy", "meme/accuracy", "meme/loss"} <= evaluate(built, state, fed).keys()


def test_a_meme_of_another_architecture() -> None:
    from fedlab_runner.models.mlp import MLP

    fed, built = mixed(cohort=3), FML(alpha=0.5, beta=0.5, meme=MLP(None, None, [7]))
    state = run(built, fed, 2)
    assert state.memes.shape == (7, 7 * FEATURES + 7 + CLASSES * 7 + CLASSES)
    assert fed.family_of(MLP(None, None, [7])) is fed.family_of(MLP(None, None, [7]))


def def_kt_twin(fed: Federation, models: Tensor, senders: list[int], receivers: list[int], epochs: int) -> Tensor:
    """Def-KT's round with two modules, two torch optimisers and plain losses."""
    models = models.clone()
    for client in senders:
        models[client] = fed.cohort(np.array([client])).train(models[client])[0]
    new = models.clone()
    for sender, receiver in zip(senders, receivers, strict=True):
        nets = [fed.family.build().double() for _ in range(2)]
        for net, w in zip(nets, (models[sender], models[receiver]), strict=True):
            net.load_state_dict(fed.family.state_dict(w))
        optimizers = [torch.optim.SGD(net.parameters(), fed.lr) for net in nets]
        plan = fed.client_data.plan(
            np.array([receiver]), local(epochs=epochs), seed=fed.seed, round=fed.round, drop_single=False
        )
        for t, size in enumerate(plan.sizes[0].tolist()):
            rows = plan.indices[0, t, :size]
            x, y = fed.client_data.inputs[rows], fed.client_data.targets[rows]
            p = [net(x) for net in nets]
            for i in (0, 1):
                own, other = p[i].log_softmax(-1), p[1 - i].detach().softmax(-1)
                loss = nn.functional.cross_entropy(p[i], y) + nn.functional.kl_div(own, other, reduction="batchmean")
                optimizers[i].zero_grad()
                loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        new[receiver] = fed.family.vector(nets[0])
    return new


def test_def_kt_is_its_plain_twin_and_senders_are_not_changed_by_receivers() -> None:
    fed, built = federation([8, 12, 5, 9, 16, 10], cohort=3), DefKT(epochs=2)
    fed.begin(2, 1.0)
    start = Clients(distinct(fed), 0)
    (after,) = built.round(start, fed).models
    metrics = fed.collect()
    assert metrics["comm/models"] == 3 and metrics["comm/download_mb"] == 0
    from fedlab_runner.algorithms.def_kt import _pairs

    senders, receivers = (ids.tolist() for ids in _pairs(fed))
    assert len(set(senders) | set(receivers)) == 6
    torch.testing.assert_close(after, def_kt_twin(fed, start.models[0], senders, receivers, 2), rtol=0, atol=1e-10)
    alone = DefKT(epochs=0).round(start, fed).models[0]
    assert torch.equal(alone[senders], after[senders]), "A's models do not depend on what B does"
    assert torch.equal(alone[receivers], after[senders])


def test_the_training_loss_of_def_kt_is_the_senders() -> None:
    """What receivers teach each other is another objective, reported beside it."""
    seen = []
    for epochs in (0, 2):
        fed, built = federation([8] * 6, cohort=3), DefKT(epochs)
        state = built.init(fed)
        fed.begin(0, 1.0)
        built.round(state, fed)
        seen.append(fed.collect())
    assert seen[0]["train/loss"] == seen[1]["train/loss"] > 0
    assert "algorithm/mutual_loss" not in seen[0] and seen[1]["algorithm/mutual_loss"] > seen[1]["train/loss"]


def test_def_kt_needs_one_architecture_and_half_of_the_clients() -> None:
    with pytest.raises(UserError, match=r"^algorithm=def_kt .* use one architecture$"):
        DefKT(epochs=1).check(mixed(cohort=3))
    with pytest.raises(UserError, match=r"^participation must be at most half of the 6 clients"):
        DefKT(epochs=1).check(federation([5] * 6, cohort=4))
    DefKT(epochs=1).check(federation([5] * 6, cohort=3))


def test_def_kt_pairs_neighbours_only() -> None:
    linked = Star(0).draw(generator(0, Purpose.TOPOLOGY), 7)
    from fedlab_runner.algorithms.def_kt import _pairs

    for round in range(6):
        fed = federation([5] * 7, cohort=3, topology=linked)
        fed.begin(round, 1.0)
        senders, receivers = _pairs(fed)
        assert len(senders) <= 1 and linked[senders, receivers].all()


# What the models are made of.


def test_shifted_patches_are_the_image_and_its_four_shifts() -> None:
    """Lee et al., Eq 2: tokens see the image and copies moved by half a patch, zeros where nothing moved in."""
    for shifts, steps in (
        ("cardinal", ((0, 1), (0, -1), (1, 0), (-1, 0))),
        ("diagonal", ((2, 2), (2, -2), (-2, 2), (-2, -2))),
    ):
        tokens: Any = SmallViT(None, None, 6, 1, 4, 1, 3, 0.0, shifts).build(1, 8, 3)[0]
        seen: list[Tensor] = []
        tokens.norm.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0]))
        image = torch.arange(1.0, 65).view(1, 1, 8, 8)
        tokens(image)
        whole = nn.functional.fold(seen[0].transpose(1, 2), 8, 4, stride=4)[0]  # [5, 8, 8]
        assert torch.equal(whole[0], image[0, 0])
        for dy, dx in steps:
            moved = torch.zeros(8, 8)
            moved[max(dy, 0) : 8 + min(dy, 0), max(dx, 0) : 8 + min(dx, 0)] = image[
                0, 0, max(-dy, 0) : 8 - max(dy, 0), max(-dx, 0) : 8 - max(dx, 0)
            ]
            assert any(torch.equal(copy, moved) for copy in whole[1:]), (shifts, dy, dx)


def test_no_token_attends_to_itself() -> None:
    """With two tokens each sees only the other, whatever the temperature."""
    layer: Any = SmallViT(None, None, 6, 1, 4, 2, 3, 0.0, "cardinal").build(1, 4, 3)[1]
    tokens = torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(0))
    values = layer.qkv(layer.norm1(tokens))[..., 12:]
    mixed_in = tokens + layer.out(values.flip(1))
    expected = mixed_in + layer.down(nn.functional.gelu(layer.up(layer.norm2(mixed_in))))
    torch.testing.assert_close(layer(tokens), expected)
    assert layer.temperature.exp().item() == pytest.approx(3**-0.5)
