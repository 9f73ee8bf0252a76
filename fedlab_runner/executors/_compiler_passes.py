"""Passes for PyTorch's compiler: one mends a fault of it, and with the other a local step on a CPU updates a linear
layer without storing its gradient.
"""

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, Match
from torch._ops import OpOverload
from torch.fx import Graph, Node

aten = torch.ops.aten
MIN_VALUES = 2**17  # of a layer: a smaller layer stays in a core's cache, so that the pass gains nothing

_GRADIENT = CallFunction(aten.mm.default, KeywordArg("a"), KeywordArg("b"))  # the pattern of a linear layer's gradient
# The pattern of weights after a step.
_MOVED = CallFunction(aten.sub.Tensor, KeywordArg("w"), CallFunction(aten.mul.Tensor, _GRADIENT, KeywordArg("lr")))
_UPDATE = CallFunction(aten.copy_.default, KeywordArg("w"), _MOVED)  # the pattern that the pass replaces


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
            if isinstance(match, Match) and _gains(match.kwargs["w"].meta["val"]):
                _replace(match, **match.kwargs)

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


def _gains(w: Tensor) -> bool:
    return w.device.type == "cpu" and w.numel() >= MIN_VALUES


def _replace(match: Match, w: Node, a: Node, b: Node, lr: Node) -> None:
    def call(target: OpOverload, like: Node, *args: Node) -> Node:
        node = match.graph.call_function(target, args)
        node.meta["val"] = like.meta["val"].clone()
        return node

    with match.graph.inserting_before(match.output_node()):
        step = call(aten.mul.Tensor, a, a, call(aten.neg.default, lr, lr))
        call(aten.addmm_.default, w, w, step, b)
    match.erase_nodes()
