"""Decentralised partial training (DFML, Khalil et al., TMLR 2024), Algorithm 3: models are parts of the widest one."""

from collections.abc import Callable

import torch
from torch import Tensor

from tests.reference.chain import hidden_layers
from tests.reference.decentralized import Meeting, label_loss
from tests.reference.plain import Model, Net, Problem, sgd

Choose = Callable[[int, int], list[int]]  # (neurons of W_n's layer, neurons J_i of W_g's) -> X_{n,i}
Indices = dict[str, tuple[Tensor, ...]]  # of each tensor of a model, the rows and columns of W_g's that it has


def indices(net: Net, wide: Net, choose: Choose) -> Indices:
    """X_{n,i} of all layers i: a layer's inputs are the outputs of the layer before; inputs and logits are whole."""
    found = {k: [torch.arange(n) for n in shape] for k, shape in (net.shapes | net.stats).items()}
    for layer, whole in zip(hidden_layers(net), hidden_layers(wide), strict=True):
        x = torch.tensor(choose(layer.size, whole.size))
        for name in layer.rows + layer.statistics:
            found[name][0] = x
        found[layer.columns][1] = x
    return {k: torch.meshgrid(*axes, indexing="ij") for k, axes in found.items()}


def partial_training(
    p: Problem,
    w: list[Model],
    meeting: Meeting,
    t: int,
    choose: Callable[[int], Choose],
    cut_from: Callable[[int], Choose] | None = None,
) -> None:
    """A round of Algorithm 3 on the clients' models w. `choose(n)` gives X_n.

    `cut_from(n)` (FedRolex with a server): where model n was cut from, which is where its values are averaged. W_g is
    then as wide as the widest model of all clients, and where nobody at the meeting has a value each keeps its own.
    """
    for n in meeting.participants:  # client side: locally train W_n using Eq 2
        w[n] = sgd(p, w[n], n, t, label_loss(p, n))
    nets = p.nets if cut_from else [p.net_of(n) for n in meeting.participants]
    wide = max(nets, key=lambda net: net.num_params)  # W_g is like the largest available model
    total = {k: torch.zeros(shape, dtype=wide.dtype) for k, shape in (wide.shapes | wide.stats).items()}
    count = {k: torch.zeros_like(v) for k, v in total.items()}
    cut = {n: indices(p.net_of(n), wide, choose(n)) for n in meeting.participants}
    # Eq 6: W_g,[i,j] <- sum_n d_n W_n,[i,j] / sum_n d_n, with d_n = 1 / |P|. As printed it sums over all of P, which
    # would shrink what few models have; as in HeteroFL's code the sums are over the models that have the value.
    for n in meeting.participants:
        place = indices(p.net_of(n), wide, cut_from(n)) if cut_from else cut[n]
        for name, values in p.net_of(n).parts(w[n]).items():
            total[name][place[name]] += values
            count[name][place[name]] += 1
    for n in meeting.participants:  # W_n <- W_g,X_n: split W_g into local models
        new = {}
        for name, values in p.net_of(n).parts(w[n]).items():
            there = count[name][cut[n][name]]
            new[name] = torch.where(there > 0, total[name][cut[n][name]] / there.clamp(min=1), values)
        w[n] = p.net_of(n).joined(new)


WIDTHS = (("width_2", "width_4", "width_1"), ("width_2_norm", "width_4_norm", "width_1_norm"))
