"""Finds, from a model's graph, the neurons that can change places without changing the model's function."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from fedlab_runner.algorithms.matching.neurons import NeuronGroup, NeuronSlice, permute
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.layers.linear import Linear
from fedlab_runner.core.layers.norms import BATCH_NORMS
from fedlab_runner.core.layers.pooling import Pooling
from fedlab_runner.core.layers.replacement import CONVOLUTIONS, OURS
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.utils.errors import UserError

TOLERANCE = 0.05  # share of the logits' range by which a permuted model may differ: bfloat16 is that coarse

# Modules and functions that treat all channels alike and keep their order. Exact types only: a subclass may do
# anything.
_ELEMENTWISE: set[Any] = {nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU}
_ELEMENTWISE |= {nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid}
_ELEMENTWISE |= {nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d}
_ELEMENTWISE |= {torch.relu, torch.tanh, torch.sigmoid, F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish}
_ELEMENTWISE |= {F.tanh, F.sigmoid, F.softplus, F.hardswish, F.hardtanh, F.dropout, "relu", "tanh", "sigmoid"}
_POOLING: set[Any] = {nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d}
_POOLING |= {nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d}
_POOLING |= {Pooling, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d}
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *CONVOLUTIONS)


# Cached by family, because each round asks for the groups.
_found: "WeakKeyDictionary[ModelFamily, list[NeuronGroup]]" = WeakKeyDictionary()


def require_groups(algorithm: Any, fed: Federation) -> list[NeuronGroup]:
    """The neuron groups of the federation's model. Raises UserError if none is certain."""
    groups = neuron_groups(fed.family, fed.client_data.inputs[:1])
    if not groups:
        name = algorithm.name
        model = type(fed.family.module).__name__
        raise UserError(
            f"algorithm={name} matches hidden neurons, and finds none in this {model} that may change places: use a "
            "model such as mlp, cnn_small or resnet18 (with norm: batch)"
        )
    return groups


def neuron_groups(family: ModelFamily, inputs: Tensor) -> list[NeuronGroup]:
    """The neuron groups of a family's models, in the order of computation; empty if they are not certain.

    This function reads them off the graph of the computation (torch.fx). Channels that go into an unknown operation or
    an addition keep their places, so that no residual stream is permuted. Then a test on stored `inputs` [b, ...]
    decides: the groups count only if permuted models give the same logits.
    """
    if family in _found:
        return _found[family]
    finder = _Finder(family, _input_ranks(family, inputs))
    finder.search(family.module, "")
    groups = [space.group() for space in finder.spaces if space.is_free()]
    _found[family] = groups if _preserves_logits(family, groups, inputs) else []
    return _found[family]


@torch.no_grad()
def _preserves_logits(family: ModelFamily, groups: list[NeuronGroup], inputs: Tensor) -> bool:
    """Whether a permuted model with random values (positive, as some are variances) gives the same logits."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(family.size, generator=generator).to(family.device, family.dtype)
    w = family.vector(family.module) + 0.1 * noise
    permuted = w
    for group in groups:
        permuted = permute(permuted, group, torch.randperm(group.size, generator=generator))
    before, after = family.predict(w, inputs), family.predict(permuted, inputs)
    return bool((before - after).abs().max() <= TOLERANCE * (before.max() - before.min()))


def _input_ranks(family: ModelFamily, inputs: Tensor) -> dict[str, int]:
    """The number of dimensions of each module's input; 0 for a module that the network calls more than once."""
    ranks: dict[str, int] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, received: tuple[Any, ...]) -> None:
            first = received[0] if received and isinstance(received[0], Tensor) else None
            ranks[name] = first.dim() if first is not None and name not in ranks else 0

        return hook

    handles = [m.register_forward_pre_hook(note(name)) for name, m in family.module.named_modules()]
    try:
        family.predict(family.vector(family.module), inputs[:1])
    finally:
        for handle in handles:
            handle.remove()
    return ranks


@dataclass
class _Space:
    """The channels of one layer's output, while the finder reads the graph."""

    name: str
    size: int
    rows: list[NeuronSlice] = field(default_factory=list)
    columns: list[NeuronSlice] = field(default_factory=list)
    statistics: list[NeuronSlice] = field(default_factory=list)
    pinned: bool = False  # whether an operation depends on the order

    def is_free(self) -> bool:
        return not self.pinned and bool(self.columns) and self.size > 1

    def group(self) -> NeuronGroup:
        return NeuronGroup(self.name, self.size, tuple(self.rows), tuple(self.columns), tuple(self.statistics))


class _Value(NamedTuple):
    """A tensor of the graph. The channels of a space are its axis 1 (images) or its `last` axis (features).

    `flattened`: each channel is a block of that axis.
    """

    space: _Space
    last: bool
    flattened: bool = False


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, OURS) or super().is_leaf_module(m, module_qualified_name)


class _Finder:
    """Reads graphs of computation: that of a module or, if torch.fx cannot trace it, those of its parts."""

    def __init__(self, family: ModelFamily, ranks: dict[str, int]) -> None:
        self.spaces: list[_Space] = []
        self._layout, self._ranks = family.layout, ranks
        names: dict[int, list[str]] = {}
        for name, parameter in family.module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        self._shared = {name for several in names.values() if len(several) > 1 for name in several}

    def search(self, module: nn.Module, prefix: str) -> None:
        try:
            graph = _Tracer().trace(module)
        except Exception:  # a model's code may do anything with a value that is not a tensor
            for name, child in module.named_children():
                if not type(child).__module__.startswith("torch.nn") or isinstance(child, nn.Sequential):
                    self.search(child, f"{prefix}{name}.")
            return
        values: dict[fx.Node, _Value] = {}
        for node in graph.nodes:
            value = self._apply(node, values, module, prefix)
            if value is not None:
                values[node] = value

    def _apply(self, node: fx.Node, values: dict[fx.Node, _Value], root: nn.Module, prefix: str) -> _Value | None:
        """The node's output, if its channels are known. Notes in the inputs' spaces what the node does to them."""
        inputs = [values[source] for source in node.all_input_nodes if source in values]
        value = inputs[0] if len(inputs) == 1 and len(node.all_input_nodes) == 1 else None
        if node.op == "call_module":
            name = f"{prefix}{node.target}"
            handled, out = self._module(name, root.get_submodule(str(node.target)), value)
        elif value is not None and node.op in ("call_function", "call_method"):
            handled, out = _function(node, value)
        else:
            handled, out = False, None
        if not handled:
            for source in inputs:
                source.space.pinned = True
        return out

    def _module(self, name: str, module: nn.Module, value: _Value | None) -> tuple[bool, _Value | None]:
        """(whether the module keeps its input's channels apart in a known way, its output)."""
        if value is not None and (type(module) in _ELEMENTWISE or (type(module) in _POOLING and not value.last)):
            return True, value
        if self._ranks.get(name, 0) == 0:  # not called exactly once: its parameters have several uses or none
            return False, None
        if type(module) in (nn.Linear, Linear, *_CONVOLUTIONS):
            return self._layer(name, module, value)
        if value is None:
            return False, None
        if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
            return (True, _flattened(value)) if not value.last or self._ranks[name] == 2 else (False, None)
        first = not value.last or self._ranks[name] == 2  # the channels are axis 1
        if type(module) in BATCH_NORMS and first:
            return self._norm(name, module, value, ("weight", "bias", "running_mean", "running_var"))
        alike = type(module) is nn.GroupNorm and module.num_groups in (1, module.num_channels) and first
        if alike or (type(module) is nn.LayerNorm and len(module.normalized_shape) == 1 and value.last):
            return self._norm(name, module, value, ("weight", "bias"))
        return False, None

    def _layer(self, name: str, module: Any, value: _Value | None) -> tuple[bool, _Value | None]:
        """A linear layer or convolution reads one space and makes another."""
        weight = self._at(f"{name}.weight")
        if weight is None or (module.bias is not None and self._at(f"{name}.bias") is None):
            return False, None
        start, shape = weight
        made, inner = shape[0], shape.numel() // shape[0]
        is_linear, handled = isinstance(module, nn.Linear), False
        if not is_linear and module.groups != 1:
            return False, None
        if value is not None and value.last == is_linear:
            n = value.space.size
            if shape[1] == n or (value.flattened and shape[1] % n == 0):
                value.space.columns.append(NeuronSlice(f"{name}.weight", start, made, n, inner // n))
                handled = True
        space = _Space(name, made, [NeuronSlice(f"{name}.weight", start, 1, made, inner)])
        if module.bias is not None:
            bias = self._at(f"{name}.bias")
            assert bias is not None
            space.rows.append(NeuronSlice(f"{name}.bias", bias[0], 1, made, 1))
        self.spaces.append(space)
        return handled, _Value(space, last=is_linear)

    def _norm(self, name: str, module: Any, value: _Value, parts: Sequence[str]) -> tuple[bool, _Value | None]:
        """The parameters and statistics of a norm belong to the neurons before it."""
        space = value.space
        for part in parts:
            if getattr(module, part) is None:
                continue
            place = self._at(f"{name}.{part}")
            if place is None or place[1].numel() % space.size:
                return False, None
            piece = NeuronSlice(f"{name}.{part}", place[0], 1, space.size, place[1].numel() // space.size)
            (space.statistics if part.startswith("running") else space.rows).append(piece)
        return True, value

    def _at(self, name: str) -> tuple[int, torch.Size] | None:
        """The first index and the shape of a tensor in the vector; None if it is not trained or is shared."""
        return None if name in self._shared else self._layout.get(name)


def _flattened(value: _Value) -> _Value:
    return value if value.last else value._replace(last=True, flattened=True)


def _function(node: fx.Node, value: _Value) -> tuple[bool, _Value | None]:
    """(whether a function or method of one tensor keeps the channels apart in a known way, its output)."""
    if node.target in _ELEMENTWISE or node.target == "contiguous" or (node.target in _POOLING and not value.last):
        return True, value
    if node.target in (torch.flatten, "flatten") and not value.last:
        arguments = {**dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)), **node.kwargs}
        if arguments.get("start_dim", 0) == 1 and arguments.get("end_dim", -1) == -1:
            return True, _flattened(value)
    return False, None
