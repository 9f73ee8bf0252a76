"""What PyTorch's compiler does not find by itself in a local step on a CPU.

The gradient of max pooling, which it scatters value by value, and the update of a linear layer, for which it writes the
gradient out before it reads it again.
"""

import torch
from torch import Tensor, nn
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, Match
from torch._ops import OpOverload
from torch.fx import Graph, Node

aten = torch.ops.aten
LEAST = 2**17  # values of a layer from which on the update gains: fewer stay in a core's own cache


class Pooling(nn.MaxPool2d):
    """Max pooling that a compiled step does by comparisons. Everywhere else it is PyTorch's."""

    def forward(self, input: Tensor) -> Tensor:
        compiled = torch.compiler.is_compiling() and input.dim() == 4 and input.device.type == "cpu"
        if compiled and (side := _side(self)):
            return pooled(input, side)
        result: Tensor = super().forward(input)
        return result


def pooled(inputs: Tensor, side: int) -> Tensor:
    """The greatest value of each square of inputs [b, C, H, W], as `nn.MaxPool2d(side)` gives it, [b, C, H // side,
    W // side]: NaN where there is one, and the gradient goes to the first of equal values.
    """
    b, channels, h, w = inputs.shape
    h, w = h // side, w // side
    # Channels last, as convolutions on a CPU leave them: the compiler then treats several at once.
    squares = inputs[:, :, : h * side, : w * side].permute(0, 2, 3, 1).reshape(b, h, side, w, side, channels)
    given = squares.detach()
    most = given[:, :, 0, :, 0]
    place = torch.zeros_like(most, dtype=torch.int32)
    for i in range(1, side * side):
        value = given[:, :, i // side, :, i % side]
        more = (value > most) | value.ne(value)  # isnan would be asked one by one
        most, place = torch.where(more, value, most), torch.where(more, i, place)
    places = torch.arange(side * side, dtype=torch.int32, device=inputs.device).view(side, 1, side, 1)
    greatest = torch.where(place[:, :, None, :, None] == places, squares, 0.0).sum((2, 4))
    return greatest.permute(0, 3, 1, 2)


def _side(pool: nn.MaxPool2d) -> int:
    """Of the squares that a pooling takes the greatest of; 0 if they are none, or too large to be compared in turn."""
    sizes = {n for size in (pool.kernel_size, pool.stride) for n in ((size,) if isinstance(size, int) else size)}
    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1)) and not pool.ceil_mode
    return sizes.pop() if plain and not pool.return_indices and sizes in ({2}, {3}) else 0


def prepare(module: nn.Module) -> None:
    """Makes each max pooling of a module one that can be compiled well."""
    for part in module.modules():
        if type(part) is nn.MaxPool2d:
            part.__class__ = Pooling


_GRADIENT = CallFunction(aten.mm.default, KeywordArg("a"), KeywordArg("b"))
_MOVED = CallFunction(aten.sub.Tensor, KeywordArg("w"), CallFunction(aten.mul.Tensor, _GRADIENT, KeywordArg("lr")))
_UPDATE = CallFunction(aten.copy_.default, KeywordArg("w"), _MOVED)


class UpdateInPlace(CustomGraphPass):
    """w - lr * (a @ b), written back into w, becomes w.addmm_(-lr * a, b): the gradient a @ b needs no memory."""

    def __call__(self, graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
            match = _UPDATE.match(node)
            if isinstance(match, Match) and _gains(match.kwargs["w"].meta["val"]):
                _replace(match, **match.kwargs)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


def _gains(w: Tensor) -> bool:
    return w.device.type == "cpu" and w.numel() >= LEAST


def _replace(match: Match, w: Node, a: Node, b: Node, lr: Node) -> None:
    def call(target: OpOverload, like: Node, *args: Node) -> Node:
        node = match.graph.call_function(target, args)
        node.meta["val"] = like.meta["val"].clone()
        return node

    with match.graph.inserting_before(match.output_node()):
        step = call(aten.mul.Tensor, a, a, call(aten.neg.default, lr, lr))
        call(aten.addmm_.default, w, w, step, b)
    match.erase_nodes()
