"""DFML's identities, its plain twin, its cycle and its peak models."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.algorithms.dfml import DFML, DFMLState
from fedlab_runner.algorithms.shared import mutual_learning as mutual_learning_module
from fedlab_runner.algorithms.shared import pupils as pupils_module
from fedlab_runner.algorithms.shared.decentralized import pick_participants, train
from fedlab_runner.algorithms.shared.mutual_learning import (
    Learners,
    MutualJob,
    mutual_learning,
    mutual_losses,
    teacher_weights,
)
from fedlab_runner.algorithms.shared.pupils import Group, Step, _Networks, _Stacks
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.losses import WSM, losses
from fedlab_runner.core.model_family import Batch
from fedlab_runner.core.optimizer import SGD, Adam
from fedlab_runner.core.own_models import models_of
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.team import Team
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.utils.errors import UserError
from tests.helpers.mixed import KINDS, mixed, stacks
from tests.helpers.toy import algorithm, evaluate, federation, local, mlp, normed, run, stacked, vectors


def dfml(**changes: Any) -> DFML:
    built = algorithm("dfml", **changes)
    assert isinstance(built, DFML)
    return built


def learners(fed: Federation) -> list[Learners]:
    return [Learners(family, stack) for family, stack in zip(fed.families, stacks(fed), strict=True)]


def learnt(fed: Federation, students: list[Learners], gamma: float, alpha: float, epochs: int = 2) -> list[Tensor]:
    sizes = torch.tensor([float(s.family.num_params) for s in students for _ in s.models], dtype=torch.float64)
    weights = teacher_weights(sizes)

    def objective(logits: Tensor, batch: Batch) -> Tensor:
        return mutual_losses(logits, batch, weights, gamma, alpha)

    fed.begin(1, 1.0)
    return mutual_learning(fed, 2, students, epochs, objective)


def plain_twin(fed: Federation, students: list[Learners], gamma: float, alpha: float, epochs: int) -> list[Tensor]:
    """Modules, torch optimisers, and Eq 1 to 3 written out model by model."""
    nets = [(s.family, s.family.build().double(), w) for s in students for w in s.models]
    sizes = [family.num_params for family, _, _ in nets]
    for family, net, w in nets:
        net.load_state_dict(family.state_dict(w), strict=False)  # counters are no model's
    setting = fed.local
    optimizers = [
        torch.optim.SGD(net.parameters(), fed.lr, setting.momentum, weight_decay=setting.weight_decay)
        for _, net, _ in nets
    ]
    for batch in MutualJob.of(fed, 2, [family for family, _, _ in nets], 0, epochs, lambda z, _: z).batches():
        logits = [net(batch.inputs) for _, net, _ in nets]
        losses = []
        for n, z in enumerate(logits):
            counts = torch.bincount(fed.client_data.targets[fed.client_data.members(2)], minlength=z.shape[1])
            beta = counts.double() / counts.sum()
            supervised = (-z[range(len(z)), batch.targets] + torch.log((beta * z.exp()).sum(1))).mean()
            others = [q for q in range(len(nets)) if q != n]
            total = sum(sizes[q] for q in others)
            kl = sum(
                sizes[q] / total * F.kl_div(z.log_softmax(-1), logits[q].detach().softmax(-1), reduction="batchmean")
                for q in others
            )
            losses.append(gamma * supervised + alpha * kl)
        for optimizer, loss, (_, net, _) in zip(optimizers, losses, nets, strict=True):
            optimizer.zero_grad()
            loss.backward()
            slopes = [w.grad for w in net.parameters() if w.grad is not None]
            norm = torch.cat([g.flatten() for g in slopes]).norm()
            for g in slopes:
                g *= min(1.0, float((setting.clip_norm or torch.inf) / norm))
        for optimizer in optimizers:
            optimizer.step()
    return [family.vector(net) for family, net, _ in nets]


@pytest.mark.parametrize("executor", [None, Vectorized(2, compile=False)])
@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_mutual_learning_is_its_plain_twin(executor: Any, alpha: float) -> None:
    how: dict[str, Any] = {"loss_function": WSM(), "training": local(momentum=0.9, weight_decay=5e-4, clip_norm=0.2)}
    how |= {} if executor is None else {"executor": executor}
    fed = mixed(**how)
    ours = [w for stack in learnt(fed, learners(fed), 1 - alpha, alpha) for w in stack]
    for mine, theirs in zip(ours, plain_twin(fed, learners(fed), 1 - alpha, alpha, 2), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("taught", [False, True])
def test_threads_share_the_models(taught: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a round, where all teach each other or the aggregator alone learns."""
    monkeypatch.setattr(pupils_module, "MIN_SHARED_FLOPS", 0)
    each, parts, found, before = Team.each, set[int](), [], torch.get_num_threads()
    monkeypatch.setattr(Team, "each", lambda self, work, count: (parts.add(count), each(self, work, count))[1])
    for threads in (1, 3, 3):
        torch.set_num_threads(threads)
        fed = mixed(cohort=5, loss_function=WSM(), training=local(momentum=0.9, clip_norm=1.0))
        found.append(run(dfml(epochs=2, mutual=not taught), fed, 2))
    torch.set_num_threads(before)
    assert parts == {1, 3}
    one, several, again = (vectors(state.models) for state in found)
    torch.testing.assert_close(several, one, rtol=0, atol=1e-12)
    assert torch.equal(again, several)


@pytest.mark.parametrize(
    ("builds", "optimizer"),
    [(KINDS, Adam(0.9, 0.999, 1e-8, 0.01, decoupled=True)), (KINDS[::-1], SGD(0.9, False, 0.01))],
    ids=["batch norm teaches", "batch norm learns"],  # Adam would enlarge the rounding of gradients before batch norm
)
@pytest.mark.parametrize("executor", [Loop(compile=False), Vectorized(2, compile=False)])
def test_on_a_gpu_the_models_of_an_architecture_learn_in_one_call(
    executor: Executor, builds: Any, optimizer: Any
) -> None:
    """Stacks, as a GPU has them, and networks, as a CPU has them, come to the same models."""
    fed = mixed(builds=builds)
    step = Step(optimizer, 0.5, 0.1)
    found = []
    for kind in (lambda groups: _Stacks(groups, step, executor), lambda groups: _Networks(groups, step, Team())):
        pairs = zip(fed.families, stacks(fed), strict=True)
        its = kind([Group(family, stack.clone(), learn=g < 2) for g, (family, stack) in enumerate(pairs)])
        for t, batch in enumerate(MutualJob.of(fed, 2, fed.families, 0, 2, lambda z, _: z).batches()):
            its.step(its.logits(batch).softmax(-1)[: len(torch.cat([m[:, 0] for m in its.learnt()]))], t)
        found.append(its.learnt())
    for mine, theirs, start in zip(*found, stacks(fed)[:2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
        assert not torch.equal(mine, start)


@pytest.mark.parametrize("stacked", [False, True])
def test_a_part_learns_as_in_the_whole(stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a part that has no model of an architecture, as a worker of a cluster may have."""
    fed, weights = mixed(), teacher_weights(torch.arange(1.0, 8.0, dtype=torch.float64))
    if stacked:  # as on a GPU
        monkeypatch.setattr(mutual_learning_module, "pupils", lambda *how: nullcontext(_Stacks(*how)))

    def objective(logits: Tensor, batch: Batch) -> Tensor:
        return mutual_losses(logits, batch, weights, 0.6, 0.4)

    fed.begin(1, 1.0)
    groups, told = learners(fed), list[Tensor]()
    job = MutualJob.of(fed, 2, fed.families, len(groups), 2, objective)
    everyone = [torch.arange(len(group.models)) for group in groups]
    whole = job.carry_out(fed.executor, job.part(groups, everyone), lambda _, z: (told.append(z.detach()), z)[1])
    for left_out in range(len(groups)):
        rows = [some[: 0 if g == left_out else 2] for g, some in enumerate(everyone)]
        others = iter(told)
        found = job.carry_out(
            fed.executor, job.part(groups, rows), lambda places, z, others=others: next(others).index_copy(0, places, z)
        )
        for mine, all_of_them, its in zip(found, whole, rows, strict=True):
            torch.testing.assert_close(mine, all_of_them[its], rtol=0, atol=1e-12)


def test_students_alone_are_judged_by_the_labels() -> None:
    """One student of two teachers; the losses have offsets [C] for the logits, as WSM's."""
    z, offsets = torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    weights, targets = torch.tensor([[0.0, 0.3, 0.7]], dtype=torch.float64), torch.tensor([0, 1, 2, 4])
    batch = Batch(torch.zeros(4, 1), targets, torch.ones(4, dtype=torch.bool), offsets)
    kl = sum(
        weights[0, q] * (F.softmax(z[q], -1) * (F.log_softmax(z[q], -1) - F.log_softmax(z[0], -1))).sum(-1)
        for q in (1, 2)
    )
    wanted = (0.6 * losses(z[0], targets, offsets) + 0.4 * kl).mean()
    torch.testing.assert_close(mutual_losses(z, batch, weights, 0.6, 0.4), wanted[None])


def test_without_distillation_no_model_hears_of_another() -> None:
    fed = mixed()
    one = learnt(fed, learners(fed), 1.0, 0.0)
    first, second, third = learners(fed)
    other = learnt(fed, [first, second._replace(models=second.models + 1), third], 1.0, 0.0)
    assert torch.equal(one[0], other[0]) and torch.equal(one[2], other[2])
    assert not torch.equal(one[1], other[1])


def test_equal_models_have_nothing_to_teach_each_other() -> None:
    fed = federation([9] * 4)
    models = fed.family.init(3).repeat(4, 1)
    (after,) = learnt(fed, [Learners(fed.family, models)], 0.0, 1.0)
    torch.testing.assert_close(after, models, rtol=0, atol=1e-14)


def test_the_order_of_models_does_not_matter() -> None:
    """A Jacobi step: all see the minibatch before any moves."""
    fed = mixed()
    first, second, third = learners(fed)
    one = learnt(fed, [first, second, third], 0.5, 0.5)
    turned = Learners(first.family, first.models.flip(0))
    other = learnt(fed, [third, turned, second], 0.5, 0.5)
    for mine, theirs in zip(one, (other[1].flip(0), other[2], other[0]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_teachers_count_by_their_size() -> None:
    weights = teacher_weights(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
    expected = [[0, 2 / 7, 5 / 7], [1 / 6, 0, 5 / 6], [1 / 3, 2 / 3, 0]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))
    assert teacher_weights(torch.tensor([3.0, 8.0])).tolist() == [[0, 1], [1, 0]]
    assert teacher_weights(torch.tensor([3.0])).tolist() == [[0]], "a model alone has no teacher"


def test_the_divergence_is_the_weighted_mean_of_the_teachers() -> None:
    """Values too, and with WSL's weights of samples."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 4, dtype=torch.float64, generator=generator)
    targets = torch.tensor([0, 1, 2, 3, 1])
    batch = Batch(torch.zeros(5), targets, torch.ones(5))
    weights = teacher_weights(torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64))
    p = logits.softmax(-1)
    ce = F.cross_entropy(logits.flatten(0, 1), targets.repeat(3), reduction="none").view(3, 5)
    for wsl in (False, True):
        expected = torch.zeros(3, dtype=torch.float64)
        for n in range(3):
            for q in range(3):
                if q != n:
                    kl = (p[q] * (p[q].log() - p[n].log())).sum(-1)
                    scale = 1 - torch.exp(-ce[n] / (ce[q] + 1e-7)) if wsl else 1.0
                    expected[n] += weights[n, q] * (scale * kl).mean()
        found = mutual_losses(logits, batch, weights, 0.0, 1.0, wsl)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        some = mutual_losses(logits, batch, weights[:1], 0.3, 0.7, wsl)
        torch.testing.assert_close(some[0], 0.3 * ce[0].mean() + 0.7 * expected[0], rtol=0, atol=1e-12)


def test_a_round_is_local_training_then_mutual_learning() -> None:
    fed, built = mixed(cohort=3, loss_function=WSM()), dfml(epochs=2, schedule="fixed", alpha_max=0.3)
    state = run(built, fed, 1)
    fed.begin(0, 1.0)
    meeting = pick_participants(fed, 0)
    trained = train(fed, built.init(fed).models, meeting.participants)
    fed.begin(1, 1.0)  # another round, so that its minibatches must be this round's
    fed.begin(0, 1.0)
    sizes = torch.tensor([float(t.group.family.num_params) for t in trained for _ in t.after], dtype=torch.float64)
    weights = teacher_weights(sizes)
    after = mutual_learning(
        fed,
        meeting.aggregator,
        [Learners(t.group.family, t.after) for t in trained],
        2,
        lambda logits, batch: mutual_losses(logits, batch, weights, 0.7, 0.3),
    )
    for t, rows in zip(trained, after, strict=True):
        assert torch.equal(models_of(fed, state.models, t.group), rows)
    assert state.aggregator == meeting.next


def test_vanilla_distillation_teaches_the_aggregator_alone() -> None:
    fed, built = mixed(cohort=3), dfml(mutual=False, schedule="fixed", alpha_max=0.5, epochs=2)
    state = run(built, fed, 1)
    fed.begin(0, 1.0)
    meeting = pick_participants(fed, 0)
    for t in train(fed, built.init(fed).models, meeting.participants):
        rows = models_of(fed, state.models, t.group)
        same = [torch.equal(a, b) for a, b in zip(rows, t.after, strict=True)]
        assert same == [int(i) != meeting.aggregator for i in t.group.ids]


def test_an_aggregator_alone_learns_from_its_labels() -> None:
    fed = federation([9])
    one, other = run(dfml(schedule="fixed", alpha_max=1.0), fed, 2), run(dfml(schedule="fixed", alpha_max=0.0), fed, 2)
    assert torch.isfinite(vectors(one.models)).all()
    assert not torch.equal(one.models[0], other.models[0]), "with alpha 1 there is nothing left to learn from"


def test_a_client_of_one_example_may_aggregate() -> None:
    for builds in ((mlp,), (normed,), KINDS):
        state = run(dfml(epochs=1), mixed([1] * 7, cohort=3, builds=builds), 3)
        assert torch.isfinite(vectors(state.models)).all()


# The cycle.


def alphas(built: DFML, rounds: int) -> list[float]:
    """What a run reports."""
    fed, found = federation([2] * 3, cohort=2, training=local(epochs=1)), []
    state = built.init(fed)
    for round in range(rounds):
        fed.begin(round, 1.0)
        state = built.round(state, fed)
        found.append(fed.collect()["algorithm/alpha"])
    return found


def test_alpha_rises_in_periods_that_grow() -> None:
    found = alphas(dfml(alpha_max=0.9, epochs=0), 61)
    assert [r + 1 for r, a in enumerate(found) if a == 0.9] == [10, 30, 60]
    assert [r for r, a in enumerate(found) if a == 0.0] == [0, 10, 30, 60]
    assert found[10:30] == sorted(set(found[10:30]))
    assert found[1] == pytest.approx(0.45 * (1 - np.cos(np.pi / 9)))


def test_other_schedules() -> None:
    full = alphas(dfml(schedule="full", alpha_min=0.1, alpha_max=0.8, period=4, growth=0, epochs=0), 9)
    assert full == pytest.approx([0.1, 0.45, 0.8, 0.45] * 2 + [0.1])
    assert alphas(dfml(schedule="fixed", alpha_max=0.4, epochs=0), 3) == [0.4] * 3
    assert alphas(dfml(period=3, growth=0, epochs=0), 6) == pytest.approx([0, 0.45, 0.9] * 2)
    assert alphas(dfml(period=1, growth=0, epochs=0), 2) == [0.9] * 2
    anneal = dfml(schedule="anneal", anneal_rounds=4, alpha_max=1.0, epochs=0)
    assert alphas(anneal, 6) == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0])


def test_the_terms_have_schedules_of_their_own() -> None:
    expected = {"opposite": (0.7, 0.3), "supervision": (0.7, 1.0), "distillation": (1.0, 0.3), "both": (0.3, 0.3)}
    for kind, scales in expected.items():
        assert dfml(scheduled=kind).scales(0.3) == pytest.approx(scales)


def peaks(built: DFML, fed: Federation, rounds: int) -> list[set[int]]:
    """Whose peak models each round renews."""
    state, renewed = built.init(fed), []
    for round in range(rounds):
        before = state
        state = run(built, fed, 1, round, state)
        there = pick_participants(fed, before.aggregator).participants.tolist()
        for i in there:
            if not torch.equal(before.peaks[i], state.peaks[i]):
                assert torch.equal(state.peaks[i], state.models[i])
        changed = {i for i in range(fed.num_clients) if not torch.equal(before.peaks[i], state.peaks[i])}
        assert changed <= set(there)
        renewed.append(changed)
    return renewed


def test_peaks_follow_up_to_the_first_maximum_and_then_only_at_each() -> None:
    fed = federation([6] * 4, cohort=3, training=local(epochs=1))  # everyone meets in each round
    renewed = peaks(dfml(period=3, growth=1, epochs=1), fed, 9)
    assert [len(each) for each in renewed] == [4, 4, 4, 0, 0, 0, 4, 0, 0]


def test_few_senders_renew_peaks_more_often() -> None:
    """A.4.6: with a tenth of the clients sending, in the rounds with the five largest alphas."""
    built, rounds = dfml(), range(10)
    assert [built._is_peak(p, 10, 50, 5) for p in rounds] == [False] * 5 + [True] * 5
    assert [built._is_peak(p, 10, 50, 14) for p in rounds] == [False] * 8 + [True] * 2
    assert [built._is_peak(p, 10, 50, 25) for p in rounds] == [False] * 9 + [True]
    assert [dfml(peak_updates=2)._is_peak(p, 10, 50, 5) for p in rounds] == [False] * 8 + [True] * 2


@pytest.mark.parametrize("schedule", ["half", "full"])
@pytest.mark.parametrize("period", [1, 2, 5, 10])
def test_peak_rounds_are_those_with_the_largest_alphas(schedule: str, period: int) -> None:
    for wanted in range(1, period + 2):
        built = dfml(schedule=schedule, peak_updates=wanted)
        alphas = [round(built.alpha(position, 0, period), 9) for position in range(period)]
        least = sorted(alphas, reverse=True)[min(wanted, period) - 1]
        renewed = [built._is_peak(position, period, 50, 5) for position in range(period)]
        assert renewed == [alpha >= least for alpha in alphas]


def test_a_round_of_an_endless_period_takes_no_longer() -> None:
    built = dfml(period=2**47, epochs=1)
    state = run(built, federation([6] * 4, cohort=2, training=local(epochs=1)), 2)
    assert state.period == 2**47 and float(state.alphas.max()) < 1e-6


def test_who_missed_the_maximum_follows_earlier() -> None:
    """Algorithm 1: alpha >= alpha_n, so a late joiner's peak follows until it has met the maximum."""
    fed = federation([6] * 10, cohort=2, training=local(epochs=1))
    state = run(dfml(period=4, growth=0, epochs=1, peak_updates=1), fed, 9)
    assert len(set(state.alphas.tolist())) > 2 and float(state.alphas.max()) == 0.9


def test_a_fixed_alpha_has_no_peaks_and_both_kinds_of_models_can_be_evaluated() -> None:
    fed, built = federation([6] * 4, cohort=2), dfml(schedule="fixed", regular=True, epochs=1)
    state = run(built, fed, 4)
    assert torch.equal(stacked(state.models), stacked(state.peaks))
    metrics = evaluate(built, state, fed)
    assert metrics["regular/accuracy"] == metrics["test/accuracy"]
    assert "regular/accuracy" not in evaluate(dfml(), state, fed)


def test_a_fixed_aggregator() -> None:
    for client in (0, 3):
        fed, built = federation([6] * 5, cohort=2), dfml(fixed_aggregator=client, epochs=1)
        state = built.init(fed)
        for round in range(3):
            state = run(built, fed, 1, round, state)
            assert state.aggregator == client
    with pytest.raises(UserError, match=r"^algorithm\.fixed_aggregator must be an id below .* \(5\), got 5$"):
        dfml(fixed_aggregator=5).check(fed)
    fed = federation([6, 0, 6, 6, 6], participation=UniformParticipation(2, None, 1))
    assert len(fed.participants) == 3
    message = r"^algorithm\.fixed_aggregator must be a client that trains, got {}, "
    for never in (1, int(fed.held_out[0])):
        with pytest.raises(UserError, match=message.format(never)):
            dfml(fixed_aggregator=never).check(fed)
    dfml(fixed_aggregator=int(fed.participants[-1])).check(fed)


def test_the_aggregators_work_and_messages_are_counted() -> None:
    fed, built = federation([16] * 4, cohort=2, training=local(epochs=1)), dfml(epochs=3)
    run(built, fed, 1)
    metrics, size = fed.collect(), fed.family.size
    assert metrics["comm/models"] == 4
    assert metrics["comm/upload_mb"] == pytest.approx(2 * size * 4e-6)
    assert metrics["comm/download_mb"] == pytest.approx((2 * size + 2 + 2) * 4e-6)
    step = fed.family.flops(fed.client_data.inputs[:1]).step
    assert metrics["cost/server_gflops"] == pytest.approx(3 * 16 * 3 * step / 1e9)
    run(dfml(epochs=3, fixed_aggregator=0), fed, 1)
    assert fed.collect()["comm/download_mb"] == pytest.approx((2 * size + 2) * 4e-6), "it tells itself nothing"


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha_min": -0.1},
        {"alpha_max": 1.1},
        {"alpha_min": 0.95},
        {"schedule": "cosine"},
        {"scheduled": "none"},
        {"adaptive": "anl"},
        {"epochs": -1},
        {"period": 0},
        {"growth": -1},
        {"peak_updates": 0},
        {"fixed_aggregator": -1},
        {"anneal_rounds": 5},
    ],
)
def test_a_bad_setting_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(changes))} must be") as error:
        DFML(**{**vars(dfml()), **changes})
    assert "\n" not in str(error.value)


def test_the_state_has_everything() -> None:
    assert DFMLState._fields == ("models", "peaks", "alphas", "aggregator", "start", "period")
