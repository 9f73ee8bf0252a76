"""What reference loops without a server share (DFML, Khalil et al., TMLR 2024, section 3 and appendix A.3)."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.reference.plain import Model, Net, Problem


class Meeting(NamedTuple):
    """Who takes part in a round."""

    aggregator: int  # a
    senders: list[int]  # S
    next: int  # the aggregator of the next round

    @property
    def participants(self) -> list[int]:
        """P, the senders and the aggregator."""
        return sorted([*self.senders, self.aggregator])


def meetings(p: Problem, fixed: int | None = None) -> Iterator[Meeting]:
    """The meeting of each round. `fixed`: one aggregator for all rounds (appendix A.4.2).

    Section 3.1: in the first round the client with the lowest id is the aggregator; an aggregator chooses the next one.
    """
    a = clients(p)[0] if fixed is None else fixed
    for t in range(p.num_rounds):
        near = reached(p, a)
        chosen = int(p.rng("AGGREGATOR", t).choice(near)) if fixed is None else fixed
        yield Meeting(a, p.sample(t, near), chosen)
        a = chosen


def clients(p: Problem) -> list[int]:
    """The clients that have examples."""
    return [n for n in range(p.num_clients) if p.n(n)]


def reached(p: Problem, client: int) -> list[int]:
    """The other clients that a client can reach."""
    return [n for n in clients(p) if n != client and (p.topology is None or p.topology[client, n])]


def first_models(p: Problem) -> list[Model]:
    """W_n of all clients: models of one architecture have the same initialisation (Algorithm 2, input)."""
    return [p.net_of(n).model(p.initial(p.net_of(n).build)) for n in range(p.num_clients)]


def by_client(w: Sequence[Model]) -> dict[int, Tensor]:
    """The clients' models."""
    return {n: model.vector for n, model in enumerate(w)}


def label_loss(p: Problem, owner: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The supervision on the examples of `owner`: cross entropy, or L_WSM (Eq 2), a mean over the minibatch."""
    if p.loss == "ce":
        return F.cross_entropy
    beta = p.label_counts(owner).double() / p.n(owner)  # the proportion of each label

    def wsm(z: Tensor, y: Tensor) -> Tensor:
        return -(z[torch.arange(len(y)), y] - torch.log((beta * torch.exp(z)).sum(1))).mean()

    return wsm


def kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(p_q || p_n) of each example [b], from logits [b, C]. The teacher's predictions are constants."""
    log_q, log_p = F.log_softmax(teacher.detach(), 1), F.log_softmax(student, 1)
    return (log_q.exp() * (log_q - log_p)).sum(1)


def logits(net: Net, w: Tensor, s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits in training mode, and the statistics after this minibatch; on a single example batch norm is frozen."""
    return (net.eval(w, s, x), s) if len(x) == 1 else net.train(w, s, x)


def teach_each_other(
    p: Problem,
    owner: int,
    round: int,
    nets: tuple[Net, Net],
    pair: tuple[Model, Model],
    of_labels: tuple[float, float],
    of_other: tuple[float, float],
    epochs: int | None = None,
) -> tuple[Model, Model]:
    """Deep mutual learning (Zhang et al., CVPR 2018) of two models on the examples of `owner`.

    Model i learns of_labels_i L_label + of_other_i KL(other || own); both move after both have seen a minibatch.
    """
    (w, s), loss = map(list, zip(*pair, strict=True)), label_loss(p, owner)
    drop = any(net.stats for net in nets)
    for b in p.batches(owner, round, epochs=epochs, drop_single=drop):
        leaves = [each.clone().requires_grad_() for each in w]
        z, s = map(list, zip(*map(logits, nets, leaves, s, [p.data.x[b]] * 2), strict=True))
        for i in (0, 1):
            objective = of_labels[i] * loss(z[i], p.data.y[b]) + of_other[i] * kl(z[1 - i], z[i]).mean()
            (g,) = torch.autograd.grad(objective, leaves[i])
            w[i] = w[i] - p.local.lr * g
        s = [each.detach() for each in s]
    return Model(w[0], s[0]), Model(w[1], s[1])
