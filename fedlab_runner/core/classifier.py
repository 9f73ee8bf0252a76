"""The linear layer of a network that gives the logits."""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Classifier(NamedTuple):
    """The linear layer of a model that gives the logits."""

    name: str
    num_features: int
    has_bias: bool
    direct: bool = True  # whether its output is the logits, and nothing acts on it


def candidates(module: nn.Module, num_classes: int, trained: Collection[str]) -> list[Classifier]:
    """The linear layers of `num_classes` outputs whose weight is among the names `trained`, in the module's order."""
    return [
        Classifier(name, layer.in_features, layer.bias is not None)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == num_classes and f"{name}.weight" in trained
    ]


def giving_logits(
    module: nn.Module, layers: Collection[Classifier], one: Callable[[], Tensor], other: Callable[[], Tensor]
) -> Classifier | None:
    """The one of these layers on whose output alone the logits depend; None if it is none of them.

    `one` and `other` apply the module with other parameters to other inputs [b, ...] and give the logits [b, C]. With
    the layer's output of the first call in its place, the second call must give the first call's logits.
    """
    seen: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}

    def note(name: str, output: Tensor) -> None:
        seen[name].append(output.clone())  # the network may write into it

    with _hooked(module, seen, note):
        logits = one()
    for layer in layers:
        outputs = seen[layer.name]
        left = iter(outputs)

        def replace(name: str, output: Tensor, left: Iterator[Tensor] = left) -> Tensor:
            return next(left, output).clone()

        with _hooked(module, [layer.name], replace):
            found = other()
        if outputs and torch.equal(found, logits):
            return layer._replace(direct=len(outputs) == 1 and torch.equal(outputs[0], logits))
    return None


@contextmanager
def _hooked(module: nn.Module, names: Collection[str], act: Callable[[str, Tensor], Tensor | None]) -> Iterator[None]:
    """A context in which `act` gets the output of each of these submodules, and may give another. In it the network
    computes uncompiled, because what `torch.compile` made passes hooks by.
    """
    compiler = "torch._dynamo" in sys.modules  # without it nothing is compiled; to import it takes a second
    hooks = [
        module.get_submodule(name).register_forward_hook(lambda layer, inputs, output, name=name: act(name, output))
        for name in names
    ]
    try:
        with torch.compiler.set_stance("force_eager") if compiler else nullcontext():
            yield
    finally:
        for hook in hooks:
            hook.remove()
