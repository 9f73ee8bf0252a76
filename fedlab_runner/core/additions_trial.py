"""Tries the functions that an algorithm adds to local steps, before clients train with them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from fedlab_runner.core.additions import parted, side_by_side
from fedlab_runner.core.additions_checks import check_arguments, check_scalar, check_size, named
from fedlab_runner.core.global_rng import all_states, kept_globals, own_generators
from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.network_state import differ, is_same, reason
from fedlab_runner.core.network_trial import MAX_STEP_FLOPS
from fedlab_runner.core.work import Objective, Work, gradient_of
from fedlab_runner.utils.contract import in_words
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.overwriting import Overwritten, unchanged

NEAR = 0.01  # a model that starts at zero gives every class the same loss: so far from it are the parameters tried
TOLERANCE = 1e-4  # relative to a loss
# Decimal exponents of the first and the last value that is tried: a bound between them acts on a norm of all values,
# and on the norms of some tensors alone.
SPREAD = 3, -3
_OWN = "its rows of per_client or into common"  # what no function may write into
RIGHT = 'batch.mean(losses) of losses [b], such as F.cross_entropy(..., reduction="none")'  # what a loss gives
_DRAWS = "draws"  # of a function that draws random numbers; and a key of a work's notes while one is tried
# The functions, by their kind and code, with _DRAWS or None; and all functions of a work, with why clients cannot take
# its steps side by side (None: they can).
_tried: WeakKeyDictionary[ModelFamily, dict[Any, str | None]] = WeakKeyDictionary()


def try_additions(work: Work) -> None:
    """Tries each function of the work for the first client that takes a step: once with a model family, also if each
    round makes another closure. A trial leaves the model, the tensors and all generators as they were. Then it takes a
    step of two models side by side, whose failure `obstacle` tells.

    Raises UserError where a function gives something else than `Cohort.train` says, where examples that do not count
    change the loss, where a correction or penalty is not value by value, and Overwritten where a function writes into
    its tensors.
    """
    tried, functions = _tried.setdefault(work.family, {}), _functions(work)
    if not functions or functions in tried or not work.num_steps.any():
        return
    first = np.flatnonzero(work.num_steps)[:1]
    given, one = work.select(first), work.select(first)  # with copies of its rows
    one = replace(one, common=tuple(value.clone() for value in work.common))
    for key in functions:
        if key not in tried:
            function = getattr(work, key[0])
            if key[0] != "per_step":  # which gives tensors, and takes none
                check_arguments(function, ("model", "batch") if key[0] == "loss" else ("values",), len(_own(one)))
            with unchanged(named(function), _OWN, (one.per_client, one.common)):
                _TRIALS[key[0]](one)
            if not all(map(is_same, (*one.per_client, *one.common), (*given.per_client, *given.common))):
                raise Overwritten(
                    f"{named(function)} writes into {_OWN}, as batch norm in training mode does: ask another model by "
                    "model.family.evaluate(params, buffers, inputs)"
                )
            tried[key] = one.notes.pop(_DRAWS, None)
    tried[functions] = _side_by_side(one)


def obstacle(work: Work) -> str | None:
    """Why clients cannot take the steps of a work side by side, in a few words; None if nothing is known that hinders
    them.
    """
    return work.family.alone or _tried.get(work.family, {}).get(_functions(work))


def draws(work: Work) -> bool:
    """Whether the steps of a work draw random numbers of a global generator, as dropout does: these depend on the
    clients that train side by side.
    """
    tried = _tried.get(work.family, {})
    return work.family.draws or any(tried.get(key) for key in _functions(work))


@contextmanager
def _from_a_seed(one: Work) -> Iterator[None]:
    """A context in which torch's generators begin from a seed, and after which all generators are as they were. It
    notes whether any was drawn from.
    """
    device = one.family.device
    with kept_globals(), own_generators(device, 0):
        before = all_states(device)
        yield
        if all_states(device) != before:
            one.notes[_DRAWS] = _DRAWS


def _functions(work: Work) -> tuple[tuple[str, Any], ...]:
    """The functions of a work, by their kind and code."""
    functions = ((name, getattr(work, name)) for name in _TRIALS)
    return tuple((name, getattr(each, "__code__", type(each))) for name, each in functions if each is not None)


def _side_by_side(one: Work) -> str | None:
    """Takes a step of the client's model and of its twin under vmap. Says why it fails, or None."""
    family, twins = one.family, np.zeros(2, np.int64)
    index = one.plan(twins).indices[:, 0]
    if one.per_step is None:  # else its tensors may have a row for each example
        index = index[:, :3]
    batch = family.batch(*one.client_data.minibatch(index), torch.ones(index.shape).to(one.start))
    if family.flops(batch.inputs[0]).step > MAX_STEP_FLOPS:
        return None
    every = partial(side_by_side, common=len(one.common))
    steps = [one.followed(gradient_of(every(one.objective())), every)]  # executors take this one or, on a GPU, another
    if family.device.type != "cpu":  # it imports torch's compiler, which takes more than a second
        steps.append(every(one.followed(one.gradient(partial(grad, has_aux=True)))))
    params, buffers = one.start_of(twins)
    family.mode(True)
    try:
        for step in steps:
            with kept_globals(), own_generators(family.device, 0):
                step(params, buffers, *batch[:3], *one.own(twins, 0), *one.common)
    except Exception as error:
        names = ", ".join(named(getattr(one, name)) for name, _ in _functions(one))
        return f"{names}: {reason(error)}"
    return None


def _try_per_step(one: Work) -> None:
    per_step = one.per_step
    assert per_step is not None
    with _from_a_seed(one):
        found = per_step(one, np.arange(1), 0)
    if not isinstance(found, tuple) or not all(isinstance(t, Tensor) and t.shape[:1] == (1,) for t in found):
        rule = "a tuple of tensors [k, ...], with a row for each of the k clients"
        raise UserError(f"{named(per_step)} must give {rule}, got for one {in_words(found)}")


def _try_loss(one: Work) -> None:
    """Computes the loss on a minibatch, of which one example counts."""
    family, loss = one.family, one.loss
    assert loss is not None
    index = one.plan(np.arange(1)).indices[0, 0]
    if one.per_step is None:  # else its tensors may have a row for each example
        index = index[:3]
    mask = (torch.arange(len(index), device=index.device) < 1).to(family.dtype)
    family.mode(True)
    params, buffers = (part[0] for part in one.start_of(np.arange(1)))
    with own_generators(family.device, 0):
        near = params + NEAR * torch.randn_like(params)

    def checked(model: FunctionalModel, batch: Batch, *own: Tensor) -> Tensor:
        found = loss(model, batch, *own)
        check_scalar(loss, found, RIGHT, moves=any(one.moving))
        return found

    objective = replace(one, loss=checked).objective(penalized=False)
    own = (*(() if one.offsets is None else one.offsets), *_own(one))

    def tried(
        examples: Tensor, shift: int = 0, objective: Objective = objective, own: tuple[Tensor, ...] = own
    ) -> tuple[Tensor, Tensor]:
        """The loss, and the change [B] of the buffers."""
        inputs, targets = one.client_data.minibatch(examples)
        targets = torch.where(mask > 0, targets, (targets + shift) % family.num_classes)
        with _from_a_seed(one):
            batch = family.batch(inputs, targets, mask)
            value, (_, after) = objective(near.clone().requires_grad_(), buffers.clone(), *batch[:3], *own)
            return value.detach(), after.detach() - buffers

    first, change = tried(index)
    second, _ = tried(index[:1].expand_as(index), 1)
    if family.writes_buffers and not bool(change.any()):
        plain = replace(one, loss=None).objective(penalized=False)
        if bool(tried(index, objective=plain)[1].any()):
            raise UserError(
                f"{named(loss)} must call its model(batch.inputs), which moves batch norm's statistics: a step leaves "
                "them as they are"
            )
    if one.offsets is not None:
        others = torch.linspace(-1, 1, len(own[0])).to(own[0])  # each changes a softmax
        if torch.equal(tried(index, own=(others, *own[1:]))[0], first):
            raise UserError(
                f"{named(loss)} leaves out batch.offsets, which the config's loss decides: take "
                "losses(model(batch.inputs), batch.targets, batch.offsets) of fedlab_runner.core.losses, or set loss=ce"
            )
    # A family that mixes examples has no filled minibatches.
    if not family.mixes and bool((first - second).abs() > TOLERANCE * first.abs()):
        raise UserError(
            f"{named(loss)} counts examples that only fill up a minibatch (where batch.mask is 0): it must give {RIGHT}"
        )


def _try_penalty(one: Work) -> None:
    penalty = one.penalty
    assert penalty is not None
    by_hand = getattr(penalty, "gradient", None)

    def gradient(values: Tensor, *own: Tensor) -> Any:
        leaf = values.requires_grad_()
        found = penalty(leaf, *own)
        check_scalar(penalty, found, "a sum over the parameters", moves=by_hand is None)
        return torch.autograd.grad(found, leaf)[0] if by_hand is None else by_hand(leaf.detach(), *own)

    name = named(penalty) + ("" if by_hand is None else ".gradient")
    rule = f"{named(penalty)} must be a sum over the parameters, as (w - x).square().sum()"
    start = one.starts(np.arange(1))[0, : one.family.num_params]
    _check_by_value(one, gradient, name, start + NEAR * _values(one), rule)


def _try_perturb(one: Work) -> None:
    perturb, g = one.perturb, _values(one)
    assert perturb is not None
    with _from_a_seed(one):
        check_size(named(perturb), perturb(g.clone(), *_own(one)), len(g))


def _try_correct(one: Work) -> None:
    correct = one.correct
    assert correct is not None
    rule = f"{named(correct)} must change each value of the gradient by itself (local.clip_norm clips a norm)"
    _check_by_value(one, correct, named(correct), _values(one), rule)


def _check_by_value(one: Work, function: Callable[..., Any], name: str, values: Tensor, rule: str) -> None:
    """Raises UserError, which begins with the `name`, unless `function` gives as many values [n] as it receives, and
    with the `rule` unless it gives the same for all `values` [P] and tensor by tensor. A function that draws random
    numbers must give the same for the first tensor, whatever the other tensors hold.
    """
    family, own = one.family, _own(one)

    def given(values: Tensor, *own: Tensor) -> Tensor:
        found = function(values.clone(), *own)
        check_size(name, found, len(values))
        return cast("Tensor", found)

    sizes = [shape.numel() for first, shape in family.layout.values() if first < family.num_params]
    with _from_a_seed(one):
        whole = given(values, *own)
        again = given(values, *own)
    if not torch.equal(whole, again):
        others = torch.cat([values[: sizes[0]], -2 * values[sizes[0] :]])
        with _from_a_seed(one):
            alike = not differ(given(others, *own)[: sizes[0]], whole[: sizes[0]])
    else:
        try:  # tensor by tensor: the memory of a trial is that of few models
            pairs = zip(parted((values, *own), sizes), torch.split(whole, sizes), strict=True)
            alike = not any(differ(given(*part), expected) for part, expected in pairs)
        except RuntimeError as error:  # a closure over a vector, say
            raise UserError(
                f"{rule}: for the values of one tensor it fails ({reason(error)}); a vector [{len(values)}] comes by "
                "per_client or common, in the parts of each tensor"
            ) from error
    if not alike:
        raise UserError(f"{rule}: some executors call it for one tensor, others for all, and the values would differ")


def _own(one: Work) -> tuple[Tensor, ...]:
    """The client's tensors in its first step, without the loss function's offsets."""
    offsets = int(one.offsets is not None)
    return (*(rows[0] for rows in one.own(np.arange(1), 0)[offsets:]), *one.common)


def _values(one: Work) -> Tensor:
    """A random gradient [P] of values that are large at first, and small in the end."""
    like = one.start.new_empty(one.family.num_params)
    with own_generators(one.family.device, 0):
        sizes = torch.logspace(*SPREAD, len(like), dtype=like.dtype, device=like.device)
        return sizes.mul_(torch.randn_like(like))


# What each field of a work that holds a function of the algorithm is tried with.
_TRIALS: dict[str, Callable[[Work], None]] = {
    "per_step": _try_per_step,  # first: the others receive its tensors
    "loss": _try_loss,
    "penalty": _try_penalty,
    "perturb": _try_perturb,
    "correct": _try_correct,
}
