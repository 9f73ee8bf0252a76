"""Passes for PyTorch's compiler: one mends a fault of it, with another a local step on a CPU updates a linear layer
without storing its gradient, and a third has oneDNN compute large products.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.lowering import fallback_handler, permute, register_lowering
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, Match
from torch._ops import OpOverload
from torch.fx import Graph, Node

from fedlab_runner.core import products

aten = torch.ops.aten
MIN_VALUES = 2**17  # of a layer: a smaller layer stays in a core's cache, so that the pass gains nothing
# Multiplications of a layer's gradient: in a larger one oneDNN's speed gains more than an update without a gradient.
MAX_UPDATE = 4_000_000

_GRADIENT = CallFunction(aten.mm.default, KeywordArg("a"), KeywordArg("b"))  # the pattern of a linear layer's gradient
# The pattern of weights after a step.
_MOVED = CallFunction(aten.sub.Tensor, KeywordArg("w"), CallFunction(aten.mul.Tensor, _GRADIENT, KeywordArg("lr")))
_UPDATE = CallFunction(aten.copy_.default, KeywordArg("w"), _MOVED)  # the pattern that the pass replaces


# A product in a graph, until the compiler writes the call of oneDNN.
torch.library.define("fedlab::product", "(Tensor a, Tensor b, Tensor? bias) -> Tensor")


@torch.library.impl("fedlab::product", "CompositeExplicitAutograd")
def _product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    return a @ b if bias is None else torch.addmm(bias, a, b)


@register_lowering(torch.ops.fedlab.product.default, type_promotion_kind=None)
def _called(a: Any, b: Any, bias: Any) -> Any:
    native = torch.ops.mkldnn._linear_pointwise.default  # which builds without oneDNN lack
    call = fallback_handler(native, add_to_fallback_set=False)  # type: ignore[no-untyped-call]  # torch has no types
    return call(a, permute(b, [1, 0]), bias, "none", [], "")


class ExplicitScale(CustomGraphPass):
    """x + alpha * y in one operation becomes two operations.

    The compiler makes addmm of a product of matrices and a sum, and forgets the sum's alpha (torch 2.14; related:
    https://github.com/pytorch/pytorch/issues/167313). A gradient with weight decay, g.add(w, alpha=decay), would be
    g + w.
    """

    def __call__(self, graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
            alpha = node.kwargs.get("alpha", 1)
            if alpha == 1 or not isinstance(node.args[1], Node):
                continue
            scaled = node.args[1]
            with graph.inserting_before(node):
                product = graph.call_function(aten.mul.Tensor, (scaled, alpha))
            product.meta["val"] = scaled.meta["val"] * alpha
            node.args, node.kwargs = (node.args[0], product), {}

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


class UpdateInPlace(CustomGraphPass):
    """w - lr * (a @ b), written back into w, becomes w.addmm_(-lr * a, b): the gradient a @ b needs no memory."""

    def __call__(self, graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
            match = _UPDATE.match(node)
            if isinstance(match, Match) and _updates(match.kwargs["w"].meta["val"], match.kwargs["a"].meta["val"]):
                _replace(match, **match.kwargs)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


class FastProducts(CustomGraphPass):
    """Products of matrices become oneDNN's where it gains (`core.products`)."""

    def __call__(self, graph: Graph) -> None:
        if not products.pays():
            return
        for target in (aten.mm.default, aten.addmm.default):
            for node in graph.find_nodes(op="call_function", target=target):
                *bias, a, b = node.args
                if not node.kwargs and _multiplies_fast(*(each.meta["val"] for each in (a, b, *bias))):
                    with graph.inserting_before(node):
                        fast = graph.call_function(torch.ops.fedlab.product.default, (a, b, *(bias or [None])))
                    fast.meta.update(node.meta)
                    node.replace_all_uses_with(fast)
                    graph.erase_node(node)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__, products.__file__)) + bytes([products.pays()])


class InTurn(CustomGraphPass):
    """Several passes, one after the other."""

    def __init__(self, passes: Sequence[CustomGraphPass]) -> None:
        self._passes = passes

    def __call__(self, graph: Graph) -> None:
        for each in self._passes:
            each(graph)

    def uuid(self) -> list[Any]:
        return [each.uuid() for each in self._passes]


def _updates(w: Tensor, a: Tensor) -> bool:
    """Whether the weights w [n, m] are updated without their gradient a [n, b] @ [b, m]."""
    fast = products.pays() and w.dtype == torch.float32 and a.numel() * w.shape[1] >= MAX_UPDATE
    return w.device.type == "cpu" and w.numel() >= MIN_VALUES and not fast


def _multiplies_fast(a: Tensor, b: Tensor, bias: Tensor | None = None) -> bool:
    sizes = *a.shape, b.shape[1]
    known = all(isinstance(n, int) for n in sizes) and a.dtype == torch.float32 and a.device.type == "cpu"
    return known and (bias is None or bias.dim() == 1) and products.gains(*sizes)


def _replace(match: Match, w: Node, a: Node, b: Node, lr: Node) -> None:
    def call(target: OpOverload, like: Node, *args: Node) -> Node:
        node = match.graph.call_function(target, args)
        node.meta["val"] = like.meta["val"].clone()
        return node

    with match.graph.inserting_before(match.output_node()):
        step = call(aten.mul.Tensor, a, a, call(aten.neg.default, lr, lr))
        call(aten.addmm_.default, w, w, step, b)
    match.erase_nodes()
