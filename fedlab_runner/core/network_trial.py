"""Tries a network before a run, so that one whose results nobody could repeat is refused, and one that cannot compute
side by side with others is known.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedlab_runner.core.classifier import Classifier, candidates, giving_logits
from fedlab_runner.core.global_rng import own_generators, seeded, torch_states
from fedlab_runner.core.layers.kinds import adapts_gradients
from fedlab_runner.core.layers.replacement import cast
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import FunctionalModel, ModelFamily
from fedlab_runner.core.network_state import (
    Call,
    applied,
    by_torch,
    check_saved,
    check_unheld,
    check_ways,
    named_values,
    reason,
    shifted,
    unheld,
)
from fedlab_runner.utils.precision import full_precision

MAX_STEP_FLOPS = 5e8  # of an example, up to which models are tried side by side
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}  # see `tolerance_of`
AUTOCAST_TOLERANCE = 0.2  # the same with autocast
SUM_TOLERANCE = 1e-5  # how far from 1 the sum of the probabilities of an example is by rounding
LEAST_STEP = 1e-3  # length of a gradient, below which it is rounding


def try_network(family: ModelFamily, inputs: Tensor) -> None:
    """Applies a family's network to three of the stored inputs [n, ...], in evaluation and in training mode. Notes in
    `family.draws` whether it draws random numbers in training, in `family.mixes` whether it mixes the examples of a
    minibatch, in `family.classifier` which layer gives the logits, and in `family.alone` why its models cannot compute
    side by side.

    Raises ValueError if the network has nothing to train, a value that is not finite or a hook on a parameter,
    does not give logits, gives probabilities, writes into its inputs, changes or keeps what `core.network_state`
    says, gives other logits by another way of computing them, or in evaluation draws random numbers, mixes examples
    or uses values of an earlier model, and UserError if it takes numbers from elsewhere than torch.
    """
    _check_values(family)
    before, stored = unheld(family), inputs[[0, -1, len(inputs) // 2]].to(family.device)
    remembers = _remembers(family, stored[:2])
    three = family.normalize(stored, family.dtype)
    three = three + torch.linspace(-0.1, 0.1, three.numel()).view(three.shape).to(three)  # may be one three times
    with _in_full(family):
        change = _check_calls(family, three, before, remembers)
        family.classifier = _classifier(family, three, change)
    with by_torch():
        flops = family.flops(three)
    if flops.step <= MAX_STEP_FLOPS:
        with own_generators(family.device):
            family.alone = _obstacle(family, three)


def _check_values(family: ModelFamily) -> None:
    """Raises ValueError if no executor could train a model's values."""
    if not family.num_params:
        raise ValueError("the model has no parameter to train")
    for name, value in named_values(family.module).items():
        if name not in family.layout:
            continue
        if not value.requires_grad and not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"the model's buffer {name} must be finite, because clients send it and the server takes means: make "
                "a mask a bool buffer, and fill with -inf in forward()"
            )
        if value.requires_grad and not bool(torch.isfinite(value).all()):
            raise ValueError(f"the model's parameter {name} must be finite before the first round: look at its weights")
        if value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"the model's parameter {name} has a hook for its gradient, which compiled steps and models side by "
                "side pass by: change what forward() makes of the parameter, as torch.nn.utils.prune does"
            )


def _check_calls(family: ModelFamily, three: Tensor, before: dict[str, Tensor], remembers: bool) -> Tensor:
    """Applies the network in evaluation, in training and in evaluation again, and gives training's change [B] of the
    float buffers. `before` is what no vector held at first; `remembers` is whether the network keeps values of a model.
    """
    w, example = shifted(family), three[:2]
    beside, drawn = _called(family, w, three, training=False)
    if bool((beside.logits >= 0).all() and ((beside.logits.sum(1) - 1).abs() < SUM_TOLERANCE).all()):
        raise ValueError(
            "the model gives probabilities, of which cross entropy would take the softmax again: leave the softmax out"
        )
    first, draws = _called(family, w, three, training=True)

    def trained(inputs: Tensor) -> Call:
        with own_generators(family.device, 0):  # with the random numbers of the first call
            return applied(family, w, inputs, training=True)

    again = trained(three)
    check_unheld(family, before)
    check_saved(family, first.change)
    if first.differs(again):
        raise ValueError(
            "the model's logits or buffers in training depend on earlier calls, which other executors make in another "
            "order: keep what lasts in a float buffer, and write it in place"
        )
    if not family.mixes:
        other = trained(three[[0, 1, 0]])
        family.mixes = Call(first.logits[:2], first.change).differs(other._replace(logits=other.logits[:2]))
    alone = applied(family, w, example, training=False).logits
    check_unheld(family, before)
    if remembers:
        raise ValueError(
            "the model's logits in evaluation depend on the model that the network had before, so that no metric would "
            "be of one model: compute what forward() takes from parameters in each call, and keep it in no attribute"
        )
    if drawn:
        raise ValueError(
            "the model draws random numbers in evaluation too, so that no metric could be repeated: draw in training "
            "alone, as F.dropout(x, p, training=self.training) does"
        )
    # The batches may take other kernels, whose rounding differs. False for what is not a number.
    if bool((alone - beside.logits[:2]).norm() > TOLERANCE[family.dtype] * alone.norm()):
        raise ValueError(
            "the model's logits for an example depend in evaluation on the other examples of its batch, so that no "
            "metric would be of the model: a batch norm needs track_running_stats=True, a mean over examples has to go"
        )
    check_ways(family, w, example, alone)
    family.draws |= draws
    return first.change


def _classifier(family: ModelFamily, three: Tensor, change: Tensor) -> Classifier | None:
    """The linear layer that gives the logits in evaluation; None if there is none. `change` [B] is what training does
    to the float buffers.
    """

    def logits(w: Tensor, inputs: Tensor) -> Tensor:
        return applied(family, w, inputs, training=False).logits

    layers = candidates(family.module, family.num_classes, family.layout)
    other = family.vector(family.module)
    other[family.num_params :] += change
    one = partial(logits, shifted(family), three[:2])
    return giving_logits(family.module, layers, one, partial(logits, other, three[1:]))


def _called(family: ModelFamily, w: Tensor, inputs: Tensor, training: bool) -> tuple[Call, bool]:
    """What `applied` gives with generators that begin from seed 0, and whether the network draws random numbers."""
    states: list[bytes] = []
    calls: list[Call] = []

    def logits() -> Tensor:
        states.append(torch_states(family.device))
        version = inputs._version  # torch counts what is written into a tensor and its views
        call = applied(family, w, inputs, training)
        if inputs._version != version:
            raise ValueError(
                "the model writes into its inputs, which may be the data set itself: replace an operation in place, "
                "such as x.sub_(1), by x - 1"
            )
        states.append(torch_states(family.device))
        calls.append(call)
        return _checked(call.logits, [len(inputs), family.num_classes])

    seeded(logits, 0, "forward()", family.device)
    return calls[0], states[0] != states[1]


def _remembers(family: ModelFamily, inputs: Tensor) -> bool:
    """Whether the network keeps values of a model: with parameters of NaN first, these reach the next model's logits.
    The network must not have computed before.
    """
    given, own = family.normalize(inputs, family.dtype), family.vector(family.module)
    spoilt = own.clone()
    spoilt[: family.num_params] = torch.nan

    def finite(module: nn.Module) -> bool:
        found = module(given.clone())
        return not isinstance(found, Tensor) or not bool(found.isnan().any())

    with torch.no_grad(), own_generators(family.device), suppress(Exception):  # the next checks name other faults
        for training in (False, True, False):
            family.mode(training)
            with suppress(Exception), family.bound(spoilt.clone()):  # a network may refuse NaN
                finite(family.module)
        with family.bound(own):
            if finite(family.module):
                return False
        return finite(cast(family.build(), family.device, family.dtype).eval())
    return False


def _obstacle(family: ModelFamily, three: Tensor) -> str | None:
    """Why two models of the family cannot take a step side by side, each on two examples of its own, in a few words;
    None if they can, and find what each of them finds alone.
    """
    if adapts_gradients(family.module):
        return "torch.func.vmap takes no padding_idx or scale_grad_by_freq of an embedding"
    w = family.vector(family.module)
    start, examples = torch.stack([w, 0.9 * w]), torch.stack([three[:2], three[1:]])
    targets = torch.zeros(2, dtype=torch.int64, device=family.device)

    def one(params: Tensor, buffers: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        model = FunctionalModel(family, params, buffers)
        return losses(model(inputs), targets, None).mean(), model.buffers

    def moved(step: Callable[..., tuple[Tensor, Tensor]], models: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        leaf, buffers = models[..., : family.num_params].detach().requires_grad_(), models[..., family.num_params :]
        loss, after = step(leaf, buffers.clone(), inputs)
        return torch.autograd.grad(loss.sum(), leaf)[0], after.detach() - buffers

    def same() -> bool:
        alone = [torch.stack(parts) for parts in zip(*map(partial(moved, one), start, examples), strict=True)]
        bound = TOLERANCE[family.dtype]
        return all(
            bool((a - b).norm() <= bound * b.norm().clamp_min(LEAST_STEP))
            for a, b in zip(moved(beside, start, examples), alone, strict=True)
        )

    beside = vmap(one, randomness="different")
    try:
        family.mode(True)
        moved(beside, start, examples)
        with _in_full(family):
            # Batch norm over two examples makes rounding large: then evaluation alone is compared.
            for training in (False,) if family.draws or family.has_batch_norm else (False, True):
                family.mode(training)
                if not same():
                    return "side by side they give other numbers than alone"
    except Exception as error:
        return reason(error)
    return None


@contextmanager
def _in_full(family: ModelFamily) -> Iterator[None]:
    """In the precision of the family's own numbers, without autocast and tf32."""
    autocast, family.autocast = family.autocast, None
    try:
        with full_precision():
            yield
    finally:
        family.autocast = autocast


def tolerance_of(family: ModelFamily) -> float:
    """How far two ways of computing steps may be apart, relative to the steps, and be the same but for rounding."""
    return TOLERANCE[family.dtype] if family.autocast is None else AUTOCAST_TOLERANCE


def _checked(found: Any, shape: list[int]) -> Tensor:
    if isinstance(found, Tensor) and list(found.shape) == shape and found.is_floating_point():
        return found
    given = f"{list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
    raise ValueError(f"the model must give logits [examples, classes], here {shape}, got {given}")
