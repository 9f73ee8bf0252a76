"""What an algorithm adds to local steps is tried once, before clients train with it, and leaves no trace."""

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.algorithms.feddyn import _Dynamic
from fedlab_runner.algorithms.scaffold import _corrected
from fedlab_runner.core import trainer
from fedlab_runner.core.additions import Proximal, Pull
from fedlab_runner.core.additions_trial import try_additions
from fedlab_runner.core.losses import ACE, WSM, LossFunction, losses
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.work import Work
from fedlab_runner.executors._autotune.ways import fitting
from fedlab_runner.executors.auto import Auto
from fedlab_runner.executors.compiled import in_layers
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.overwriting import Overwritten
from tests.helpers.toy import CLASSES, FEATURES, asked, federation, mlp, model_family, normed


def each(model: FunctionalModel, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


def plain(model: FunctionalModel, batch: Batch) -> Tensor:
    return each(model, batch).mean()


def logits_alone(model: FunctionalModel, batch: Batch) -> Tensor:
    return model(batch.inputs).square().mean()


@dataclass(frozen=True)
class Scaled:
    by: float

    def __call__(self, model: FunctionalModel, batch: Batch) -> Tensor:
        return self.by * plain(model, batch)


def zero() -> nn.Module:
    """A model that gives all classes the same logit."""
    module = nn.Linear(FEATURES, CLASSES)
    for value in module.parameters():
        nn.init.zeros_(value)
    return module


def trained(loss: Any = None, build: Any = mlp, **given: Any) -> Tensor:
    fed = federation(build=build)
    fed.begin(0, 1.0)
    return asked(fed, [1, 0, 2]).train(fed.family.init(0), loss=loss, **given)


@pytest.mark.parametrize("build", [mlp, zero])
@pytest.mark.parametrize("loss", [plain, logits_alone, Scaled(1e-3), lambda *given: plain(*given)])
def test_a_mean_over_what_fills_a_minibatch_up_is_refused(loss: Any, build: Any) -> None:
    with pytest.raises(UserError, match=r"^\S*(plain|logits_alone|Scaled|<lambda>) counts .* batch\.mean\(losses\)"):
        trained(loss, build)


def test_a_function_takes_the_tensors_that_it_gets() -> None:
    line = r"^plain gets model, batch and 1 tensors, .* common: too many positional arguments$"
    with pytest.raises(UserError, match=line):
        trained(plain, common=(torch.ones(1),))
    with pytest.raises(UserError, match=r"^moved_by gets values and 0 tensors, .*: missing .* argument: 'anchor'$"):
        trained(correct=moved_by)


def moved_by(g: Tensor, anchor: Tensor) -> Tensor:
    return g + anchor


def test_a_loss_is_a_scalar() -> None:
    with pytest.raises(UserError, match=r"^each must give a scalar, batch\.mean\(losses\) .*, got torch float64 \[3\]"):
        trained(each)


def test_a_family_that_mixes_examples_has_no_filled_minibatches() -> None:
    trained(plain, normed)


def nothing(*given: Any) -> Any:
    return None


def as_array(g: Tensor, *own: Tensor) -> Any:
    return np.asarray(g.detach())


def too_short(g: Tensor, *own: Tensor) -> Tensor:
    return g[1:]


def constant(*given: Any) -> Tensor:
    return torch.ones(())


@dataclass(frozen=True)
class ByHand:
    """A penalty with a gradient of its own."""

    gradient: Any

    def __call__(self, w: Tensor) -> Tensor:
        return w.sum()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"loss": nothing}, r"nothing must give a scalar, batch\.mean\(losses\) .*, got None"),
        ({"loss": lambda model, batch: plain(model, batch).item()}, r"\S*<lambda> must give a scalar, .*, got [\d.]+"),
        ({"loss": constant}, "constant must give a scalar that depends on the model's parameters"),
        ({"penalty": nothing}, "nothing must give a scalar, a sum over the parameters, got None"),
        ({"penalty": constant}, "constant must give a scalar that depends on the model's parameters"),
        ({"penalty": ByHand(nothing)}, r"ByHand\.gradient must give a value for each parameter, .* \[57\], got None"),
        ({"perturb": nothing}, "nothing must give a value for each parameter, a tensor .57., got None"),
        ({"correct": nothing}, "nothing must give a value for each parameter, a tensor .57., got None"),
        ({"correct": as_array}, "as_array must give .* got numpy float64"),
        (
            {"correct": too_short, "per_step": nothing},
            r"nothing must give a tuple of tensors \[k, ...\], .*, got for one None",
        ),
        ({"correct": too_short, "per_step": constant}, "constant must give a tuple of tensors"),
        ({"correct": too_short}, r"too_short must give .* got torch float64 \[56\]"),
    ],
)
def test_what_a_function_gives_is_checked(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=f"^{line}"):
        trained(**given)


def unit(g: Tensor) -> Tensor:
    return g / g.norm().clamp_min(1e-9)


def clipped(g: Tensor) -> Tensor:
    return g * (0.5 / g.norm()).clamp_max(1)


def clipped_with_noise(g: Tensor) -> Tensor:
    return clipped(g) + torch.randn_like(g)


def without_the_last(g: Tensor) -> Tensor:
    return torch.cat([g[:-3], g.new_zeros(3)])


@pytest.mark.parametrize("correct", [unit, clipped, clipped_with_noise, without_the_last])
def test_a_correction_changes_each_value_by_itself(correct: Any) -> None:
    with pytest.raises(
        UserError, match=rf"^{correct.__name__} must change each value .*local\.clip_norm.* for one tensor, "
    ):
        trained(correct=correct)


def test_a_vector_comes_as_data() -> None:
    with pytest.raises(UserError, match=r"by itself .* of one tensor it fails .* by per_client or common"):
        trained(correct=lambda g: g + torch.ones(57, dtype=g.dtype))


def test_a_penalty_is_a_sum_over_the_parameters() -> None:
    with pytest.raises(
        UserError, match=r"<lambda> must be a sum over the parameters, .* for one tensor, others for all"
    ):
        trained(penalty=lambda w: w.norm())


def moved(g: Tensor, *own: Tensor) -> Tensor:
    own[-1].mul_(0.5)
    return g + sum(own)


def measured(w: Tensor, *own: Tensor) -> Tensor:
    return (w * moved(torch.zeros_like(w), *own)).sum()


def judged(model: FunctionalModel, batch: Batch, *own: Tensor) -> Tensor:
    return batch.mean(each(model, batch)) + measured(model.params, *own)


@pytest.mark.parametrize("given", [{"correct": moved}, {"perturb": moved}, {"penalty": measured}, {"loss": judged}])
@pytest.mark.parametrize("where", ["per_client", "common"])
def test_a_function_writes_into_none_of_its_tensors(where: str, given: dict[str, Any]) -> None:
    fed = federation()
    values = torch.ones(3, fed.family.num_params, dtype=torch.float64)
    (function,) = given.values()
    with pytest.raises(Overwritten, match=rf"^{function.__name__} writes into its rows of per_client or into common, "):
        trained(**given, **{where: (values,) if where == "per_client" else (values[0],)})
    assert bool((values == 1).all())


def with_offsets(model: FunctionalModel, batch: Batch) -> Tensor:
    return batch.mean(losses(model(batch.inputs), batch.targets, batch.offsets))


def without_offsets(model: FunctionalModel, batch: Batch) -> Tensor:
    return batch.mean(each(model, batch))


@pytest.mark.parametrize("chosen", [ACE(), WSM()])
def test_a_loss_reads_the_offsets_of_the_chosen_loss(chosen: LossFunction) -> None:
    fed = federation(loss_function=chosen)
    fed.begin(0, 1.0)
    asked(fed, [1, 0, 2]).train(fed.family.init(0), loss=with_offsets)
    with pytest.raises(UserError, match=r"^without_offsets leaves out batch\.offsets, .* or set loss=ce$"):
        asked(fed, [1, 0, 2]).train(fed.family.init(0), loss=without_offsets)


def through_another(model: FunctionalModel, batch: Batch) -> Tensor:
    return batch.mean(each(FunctionalModel(model.family, model.params, model.buffers), batch))


def test_a_loss_moves_the_statistics_of_batch_norm() -> None:
    trained(through_another)
    with pytest.raises(
        UserError, match=r"^through_another must call its model\(batch\.inputs\), which moves batch norm"
    ):
        trained(through_another, normed)


def taught(model: FunctionalModel, batch: Batch, x: Tensor) -> Tensor:
    family, p = model.family, model.family.num_params
    logits = family.forward(family.views(x[:p]) | family.buffer_views(x[p:]), batch.inputs)
    return batch.mean(each(model, batch) + (model(batch.inputs) - logits).square().sum(-1))


def test_batch_norm_of_another_model_writes_into_no_tensor() -> None:
    x = federation(build=normed).family.init(0)
    before = x.clone()
    with pytest.raises(Overwritten, match=r"^taught writes into .* batch norm .* model\.family\.evaluate\("):
        trained(taught, normed, common=(x,))
    assert torch.equal(x, before)


def branching(model: FunctionalModel, batch: Batch) -> Tensor:
    loss = batch.mean(each(model, batch))
    return loss if loss > 0 else -loss


def with_a_gradient(model: FunctionalModel, batch: Batch) -> Tensor:
    loss = batch.mean(each(model, batch))
    (g,) = torch.autograd.grad(loss, model.params, create_graph=True)
    return loss + 0.1 * g.square().sum()


def with_a_branch(g: Tensor) -> Tensor:
    return g * 2 if g.sum() > 0 else g


@pytest.mark.parametrize("given", [{"loss": branching}, {"loss": with_a_gradient}, {"perturb": with_a_branch}])
def test_a_step_that_vmap_cannot_take_is_taken_one_by_one(given: dict[str, Any]) -> None:
    fed = federation()
    family, ids, steps = fed.family, np.array([3, 4]), np.ones(2, np.int64)
    work = Work(family, fed.client_data, ids, steps, fed.local, 0.1, 0, 0, family.init(0))
    assert {way.chunk_size for way in fitting(work, compile=False)} != {1}
    work = replace(work, **given)
    try_additions(work)
    assert {way.chunk_size for way in fitting(work, compile=False)} == {1}
    Loop(compile=False).train(work)
    (function,) = given.values()
    line = rf"^models .* cannot train side by side \({function.__name__}: .*\): take executor=loop$"
    with pytest.raises(UserError, match=line):
        Vectorized(chunk_size=None, compile=False).train(work)
    Vectorized(chunk_size=None, compile=False).train(replace(work, loss=None, perturb=None))


def drawn(like: Tensor, *own: Tensor) -> Tensor:
    return like * torch.rand_like(like)


def drawn_loss(model: FunctionalModel, batch: Batch, *own: Tensor) -> Tensor:
    return batch.mean(drawn(each(model, batch)))


def drawn_penalty(w: Tensor) -> Tensor:
    return drawn(w).sum()


def drawn_by_numpy(g: Tensor, *own: Tensor) -> Tensor:
    return g * np.random.rand()


def drawn_by_python(g: Tensor, *own: Tensor) -> Tensor:
    return g * random.random()


def scaled(g: Tensor, *own: Tensor) -> Tensor:
    return g * own[-1]


def drawn_per_step(work: Work, rows: np.ndarray, step: int) -> tuple[Tensor, ...]:
    return (torch.rand(len(rows), dtype=work.start.dtype),)


def drawn_per_step_by_numpy(work: Work, rows: np.ndarray, step: int) -> tuple[Tensor, ...]:
    return (torch.from_numpy(np.random.rand(len(rows))),)


@pytest.mark.parametrize(
    "given",
    [
        {"loss": drawn_loss},
        {"penalty": drawn_penalty},
        {"perturb": drawn},
        {"correct": drawn},
        {"perturb": drawn_by_numpy},
        {"correct": drawn_by_python},
        {"correct": scaled, "per_step": drawn_per_step},
        {"correct": scaled, "per_step": drawn_per_step_by_numpy},
    ],
)
def test_functions_that_draw_random_numbers_are_called_one_by_one(given: dict[str, Any]) -> None:
    """Also beside another function that has been tried alone."""
    fed = federation(executor=Auto(seconds=30.0, workers=1, compile=False))
    family, ids, steps = fed.family, np.array([3, 4]), np.ones(2, np.int64)
    work = Work(family, fed.client_data, ids, steps, fed.local, 0.1, 0, 0, family.init(0))
    still = Proximal(0.1) if "penalty" not in given else None
    for more in ({}, {"penalty": still, "common": (work.start[: family.num_params],)} if still else {}):
        one = replace(work, **given, **more)
        try_additions(one)
        assert {way.chunk_size for way in fitting(one, compile=False)} == {1} and not in_layers(one)
        found, expected = (each.train(one)[0] for each in (fed.executor, Loop(compile=False)))
        assert torch.equal(found, expected)
    try_additions(replace(work, loss=without_offsets))
    assert None in {way.chunk_size for way in fitting(replace(work, loss=without_offsets), compile=False)}


@dataclass(frozen=True)
class Noisy:
    """All functions of a step, with random numbers of each library."""

    seen: list[int] = field(default_factory=list)

    def noise(self, like: Tensor) -> Tensor:
        self.seen.append(1)
        return like * (torch.rand_like(like) + random.random() + np.random.rand())

    def loss(self, model: FunctionalModel, batch: Batch) -> Tensor:
        return batch.mean(self.noise(each(model, batch)))

    def penalty(self, w: Tensor) -> Tensor:
        return self.noise(w).sum()


@pytest.mark.parametrize("kind", ["loss", "penalty", "perturb", "correct"])
def test_a_function_is_tried_once_in_a_run_and_draws_from_none_of_its_generators(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, noisy, tried = federation(build=normed), Noisy(), list[int]()

    def states() -> Any:
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    def watched(work: Work) -> None:
        before, start, calls = states(), work.start.clone(), len(noisy.seen)
        try_additions(work)
        assert states() == before and torch.equal(work.start, start)
        tried.append(len(noisy.seen) - calls)

    monkeypatch.setattr(trainer, "try_additions", watched)
    for round in range(3):

        def function(*given: Any) -> Tensor:  # another closure in each round
            return getattr(noisy, kind, noisy.noise)(*given)

        fed.begin(round, 1.0)
        asked(fed, [round]).train(fed.family.init(0), **{kind: function})
    assert tried[0] and not any(tried[1:])


@pytest.mark.parametrize("build", [mlp, normed])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_corrections_and_penalties_of_the_package_are_value_by_value(build: Any, dtype: torch.dtype) -> None:
    family = model_family(build, dtype)
    p = family.num_params
    fed = federation(build=build)
    x, c = family.init(0), torch.randn(3, p, dtype=dtype)
    work = Work(
        family, fed.client_data, np.array([3, 4, 5]), np.ones(3, np.int64), fed.local, 0.1, 0, 0, x, per_client=(c,)
    )
    try_additions(replace(work, correct=_corrected, common=(c[0],)))
    try_additions(replace(work, penalty=_Dynamic(Proximal(0.1)), common=(x[:p],)))
    try_additions(replace(work, penalty=Pull(), common=(c[0].abs(),)))
