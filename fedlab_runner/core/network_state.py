"""What a network must not do to its values, and what it must not keep: executors count on both.

A model's vector holds trainable parameters and float buffers. All clients share the rest, a worker process has its own
copy of it, and no checkpoint saves it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedlab_runner.core.layers.tied import first_names
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.separate_module import SeparateModule

# How far numbers are apart, relative to all of them, that differ by rounding alone.
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-1}
MAX_SHOWN = 120  # characters of torch's reason
# What a network that changes its parameters can do instead.
_WAY_OUT = "leave the parameter, and compute with what forward() makes of it, as torch.nn.utils.parametrize does"


def named_values(module: nn.Module) -> dict[str, Tensor]:
    """A module's parameters and buffers by their first names."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


class Call(NamedTuple):
    """What a model's network gives."""

    logits: Tensor  # [n, C]
    change: Tensor  # [B] of the float buffers

    def differs(self, other: "Call") -> bool:
        """Whether two calls differ by more than rounding."""
        return any(differ(*pair) for pair in zip(self, other, strict=True))


def shifted(family: ModelFamily) -> Tensor:
    """A model [D] whose parameters all differ from the network's own, those that are zero too."""
    w, p = family.vector(family.module), family.num_params
    w[:p:2] *= 0.8
    w[1:p:2] *= 1.25
    w[:p] += 1e-4
    return w


def differ(found: Tensor, expected: Tensor) -> bool:
    """Whether numbers differ by more than rounding."""
    if found.shape != expected.shape:
        return True
    size = float(expected.nan_to_num(0, 0, 0).norm())
    near = max(ROUNDING[found.dtype], ROUNDING[expected.dtype]) * size
    return not torch.allclose(found.to(expected.dtype), expected, rtol=0, atol=near, equal_nan=True)


def is_same(found: Tensor, expected: Tensor) -> bool:
    """Whether two values are equal, NaN in the same places too."""
    return torch.equal(found, expected) or (
        found.shape == expected.shape and bool(((found == expected) | (found.isnan() & expected.isnan())).all())
    )


def unheld(family: ModelFamily) -> dict[str, Tensor]:
    """Copies of what no model's vector holds: parameters without a gradient, and buffers that are not floats."""
    return {k: v.detach().clone() for k, v in named_values(family.module).items() if k not in family.layout}


def check_unheld(family: ModelFamily, before: dict[str, Tensor]) -> None:
    """Raises ValueError if what no vector holds is not as `before`."""
    now = named_values(family.module)
    for name, value in before.items():
        if name not in now or not is_same(now[name], value):
            raise ValueError(
                f"the model changes {name}, which no model's vector holds, in forward() or train(), so that all "
                "clients would share it: keep what changes in a float buffer, and merge no weights in train()"
            )


def check_saved(family: ModelFamily, change: Tensor) -> None:
    """Raises ValueError if the network's state dict lacks a value of a model's vector that is not a constant: one that
    differs in a fresh network, or that training changes, as the `change` [B] of the float buffers says.
    """
    first, module = first_names(family.module), family.module
    saved = {first.get(name, name) for name in module.state_dict()}
    missing = {name: place for name, place in family.layout.items() if name not in saved}
    if not missing:
        return
    apart = family.init(0) != family.vector(module)
    apart[family.num_params :] |= change != 0
    for name, (begin, shape) in missing.items():
        if bool(apart[begin : begin + shape.numel()].any()):
            raise ValueError(
                f"the model's state_dict() lacks {name}, which training changes or build() draws, so that no saved "
                "model would have it: register a buffer with persistent=True"
            )


def applied(family: ModelFamily, w: Tensor, inputs: Tensor, training: bool) -> Call:
    """Applies the network of a model w [D] to normalised inputs [n, ...].

    Raises ValueError if the network changes a parameter, or a buffer in evaluation, or puts another tensor in the place
    of one.
    """
    after = w.clone()
    with torch.no_grad(), family.bound(after):
        family.mode(training)
        found = family.module(inputs)
        _check_places(family, after)
    kept = family.num_params if training else family.size
    if not torch.equal(after[:kept], w[:kept]):
        spans = ((name, slice(begin, begin + shape.numel())) for name, (begin, shape) in family.layout.items())
        name, span = next((name, span) for name, span in spans if not torch.equal(after[span], w[span]))
        if span.start >= family.num_params:
            raise ValueError(
                f"the model changes its buffer {name} in evaluation too, so that an evaluation would change the model: "
                "change it only if self.training"
            )
        raise ValueError(
            f"the model changes its parameter {name} in forward() or train(), besides training: {_WAY_OUT}"
        )
    return Call(found, after[family.num_params :] - w[family.num_params :])


def _check_places(family: ModelFamily, w: Tensor) -> None:
    """Raises ValueError if a value of the network, which is bound to w [D], is not where w has it."""
    now = named_values(family.module)
    for name, (begin, shape) in family.layout.items():
        if shape.numel() and (name not in now or now[name].data_ptr() != w[begin:].data_ptr()):
            own = name.rpartition(".")[2]
            if begin >= family.num_params:
                raise ValueError(
                    f"the model puts another tensor in the place of its buffer {name}, whose values would reach no "
                    f"model's vector: write in place, as self.{own}.copy_(...) does"
                )
            raise ValueError(
                f"the model puts another tensor in the place of its parameter {name}, as self.{own}.data = ... does, "
                f"and training would not reach it: {_WAY_OUT}"
            )


def check_ways(family: ModelFamily, w: Tensor, inputs: Tensor, expected: Tensor) -> None:
    """Computes the logits of a model w [D] in evaluation as executors also do: from its values by name, and with a copy
    of the network.

    Raises ValueError if torch cannot or if they are not the `expected` ones [n, C], which the network itself gives.
    """
    with by_torch(), torch.no_grad():
        # In another order: a copy that reads what the network itself keeps finds other examples.
        by_name = family.evaluate(w[: family.num_params], w[family.num_params :], inputs.flip(0)).flip(0)
    try:
        network = SeparateModule(family, w.clone())
    except Exception as error:
        raise ValueError(
            f"the model cannot be copied ({reason(error)}): keep no lock, file, generator or module of Python in an "
            "attribute of it"
        ) from error
    with by_torch(), torch.no_grad():
        network.follow_mode()
        copied = network(inputs)
        network.give_back()
    if differ(by_name, expected):
        raise ValueError(
            "the model does not compute with the parameters that it has by name, but with others, as from a list: "
            "take each from its layer in every call"
        )
    if differ(copied, expected):
        raise ValueError(
            "a copy of the model gives other logits than the model, as where a hook refers to the model itself: make "
            "the hook's work a part of forward()"
        )


@contextmanager
def by_torch() -> Iterator[None]:
    """Turns what torch cannot do with a network into a ValueError of one line."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"torch cannot compute the model as a function of its values ({reason(error)}): give a plain nn.Module, "
            "without torch.jit, DataParallel and sparse gradients"
        ) from error


def reason(error: Exception) -> str:
    """The beginning of torch's words."""
    return shorten(str(error), MAX_SHOWN, placeholder=" ...")
