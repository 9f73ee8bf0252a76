"""What the reference loops are written in: plain PyTorch, a network as a function of two vectors, and the draws that a
run makes by key. Nothing of the package is imported here or in a reference loop.

A reference loop is a generator `method(p, **hyperparameters)`: it gets a `Problem` and the keys of the method's config,
and yields after each round the values of the State's fields, under their names. A model is a pair `Model(w, s)`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

MLP, BATCH_NORM = ("mlp",), ("batch_norm",)  # networks of a case
Fields = dict[str, Any]  # values of a State by field name: tensors, numbers, and tuples, lists or dicts of them
EMPTY = torch.zeros(0)  # a vector of no values, which joins those of any precision


class Model(NamedTuple):
    """A model: trainable parameters, and batch norm's running means and variances, which are state."""

    w: Tensor  # [P], in the order of `named_parameters`
    s: Tensor  # [B], in the order of `named_buffers`; integer counters are left out

    @property
    def vector(self) -> Tensor:
        """Parameters, then statistics [D]."""
        return torch.cat(self)


class Net:
    """A network as a function of a `Model` of any precision; a `head` [C' (F + 1)] replaces its last layer."""

    def __init__(self, build: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> None:
        self.build, self.module, self.dtype = build, build().to(dtype), dtype
        self.shapes = {k: v.shape for k, v in self.module.named_parameters()}
        self.stats = {k: v.shape for k, v in self.module.named_buffers() if v.is_floating_point()}
        self.num_params = sum(shape.numel() for shape in self.shapes.values())
        self.num_stats = sum(shape.numel() for shape in self.stats.values())
        self.num_features = list(self.shapes.values())[-2][-1]  # F, the inputs of the last layer

    def tensors(self, w: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views of w [P]."""
        parts = torch.split(w, [shape.numel() for shape in self.shapes.values()])
        return {k: part.view(shape) for (k, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def statistics(self, s: Tensor) -> dict[str, Tensor]:
        """The running statistics by name, as views of s [B]."""
        parts = torch.split(s, [shape.numel() for shape in self.stats.values()])
        return {k: part.view(shape) for (k, shape), part in zip(self.stats.items(), parts, strict=True)}

    def parts(self, model: Model) -> dict[str, Tensor]:
        """All values of a model by name, as views."""
        return self.tensors(model.w) | self.statistics(model.s)

    def joined(self, parts: dict[str, Tensor]) -> Model:
        """The model that has these values by name."""
        w, s = (torch.cat([*(parts[k].reshape(-1) for k in names), EMPTY]) for names in (self.shapes, self.stats))
        return Model(w, s)

    def model(self, vector: Tensor) -> Model:
        """The model of a vector [D]."""
        return Model(*torch.split(vector, [self.num_params, self.num_stats]))

    def train(self, w: Tensor, s: Tensor, x: Tensor, head: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits [b, C] in training mode, and the statistics after this minibatch."""
        return self._call(w, s, x, head, training=True)

    def eval(self, w: Tensor, s: Tensor, x: Tensor, head: Tensor | None = None) -> Tensor:
        """Logits [b, C] in evaluation mode."""
        return self._call(w, s, x, head, training=False)[0]

    def _call(self, w: Tensor, s: Tensor, x: Tensor, head: Tensor | None, training: bool) -> tuple[Tensor, Tensor]:
        self.module.train(training)
        buffers, named = self.statistics(s.to(self.dtype).clone()), self.tensors(w.to(self.dtype))
        if head is not None:
            (weight, bias), classes, head = list(named)[-2:], len(head) // (self.num_features + 1), head.to(self.dtype)
            named |= {weight: head[:-classes].view(classes, self.num_features), bias: head[-classes:]}
        logits = torch.func.functional_call(self.module, named | buffers, (x.to(self.dtype),))
        return logits, torch.cat([*(b.reshape(-1) for b in buffers.values()), EMPTY])


class Data(NamedTuple):
    """Examples."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n]


class Local(NamedTuple):
    """Local training of the clients, by SGD."""

    lr: float
    momentum: float
    weight_decay: float
    batch_size: int
    epochs: int


class Start(NamedTuple):
    """A client that receives the server's model and trains."""

    client: int
    due: int  # the round in which its update arrives


class Problem(NamedTuple):
    """A federation, and everything that is drawn in it."""

    nets: Sequence[Net]  # client i has network i mod len(nets); `net` is the first
    data: Data  # of all clients
    members: Sequence[Tensor]  # rows of `data` of each client
    num_classes: int
    local: Local
    num_rounds: int
    server: Data  # examples of the server's
    server_classes: int  # of `server`; out-of-domain, these are not the clients' and their number is another
    auxiliary: Data  # examples of the server's of other classes
    auxiliary_classes: int
    loss: str  # of the labels: ce, or wsm as in DFML
    topology: np.ndarray | None  # who reaches whom [N, N] bool; None: all do
    blocks: np.ndarray | None  # which feature blocks each client has [N, d0] bool
    cohort: Callable[[int], list[Start]]
    """(round) -> who starts in it, in the order of sampling."""
    sample: Callable[[int, Sequence[int]], list[int]]
    """(round, clients) -> those of the clients that take part, in the order of sampling, where no one is late."""
    batches: Callable[..., list[Tensor]]
    """(client, round, purpose="BATCHES", epochs=None, drop_single=None) -> rows of `data`, a tensor for each local
    step. A last minibatch of one example is left out where `drop_single` (None: where the network has batch norm).
    """
    server_batches: Callable[..., list[Tensor]]
    """(round, epochs, batch_size, max_steps=None, stage=0, training=True, purpose="SERVER_BATCHES", data=None) -> rows
    of `server`, or of other `data`, a tensor for each step."""
    server_client_batches: Callable[[int], list[Tensor]]
    """(round) -> rows of `server` in each step of a server that trains as the clients do."""
    rng: Callable[..., np.random.Generator]
    """(purpose, round=0, client=0, step=0) -> the stream of a key."""
    initial: Callable[..., Tensor]
    """(build=None, seed=None, number=0) -> the fresh model [D] of the first network, or of another one."""
    uniform: Callable[[str, int], Tensor]
    """(purpose, n) -> n numbers of torch's from [0, 1)."""

    @property
    def net(self) -> Net:
        return self.nets[0]

    @property
    def x0(self) -> Model:
        """The first model of the server."""
        return self.net.model(self.initial())

    @property
    def num_clients(self) -> int:
        return len(self.members)

    def net_of(self, client: int) -> Net:
        """The network of a client."""
        return self.nets[client % len(self.nets)]

    def n(self, client: int) -> int:
        """The number of a client's examples, n_j."""
        return len(self.members[client])

    def label_counts(self, client: int) -> Tensor:
        """How many examples of each class a client has [C]."""
        return torch.bincount(self.data.y[self.members[client]], minlength=self.num_classes)

    def gradient(
        self,
        w: Tensor,
        s: Tensor,
        rows: Tensor,
        client: int,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        net: Net | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The gradient [P] of the loss on a client's minibatch, and the statistics after it.

        A client with a single example trains with batch norm in evaluation mode: it cannot train on one.
        """
        x, y = self.data.x[rows], self.data.y[rows]
        return gradient(net or self.net_of(client), w, s, x, y, loss, frozen=self.n(client) == 1)


def gradient(
    net: Net,
    w: Tensor,
    s: Tensor,
    x: Tensor,
    y: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    frozen: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradient [P] of the loss on a minibatch, and the statistics after it.

    `frozen`: batch norm in evaluation mode; by default, as the server does, where the minibatch has one example.
    """
    leaf = w.detach().requires_grad_()
    if len(x) == 1 if frozen is None else frozen:
        logits = net.eval(leaf, s, x)
    else:
        logits, s = net.train(leaf, s, x)
    (g,) = torch.autograd.grad(loss(logits, y), leaf)
    return g, s.detach()


def sgd(
    p: Problem, x: Model, client: int, round: int, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
) -> Model:
    """ClientUpdate of FedAvg: the model after plain SGD from x on the client's minibatches of a round."""
    w, s = x
    for b in p.batches(client, round):
        g, s = p.gradient(w, s, b, client, loss)
        w = w - p.local.lr * g
    return Model(w, s)


def mean(rows: Iterable[Tensor], weights: Iterable[float]) -> Tensor:
    """sum_j weights_j rows_j / sum_j weights_j."""
    weights = list(weights)
    total = sum(weight * row for weight, row in zip(weights, rows, strict=True))
    assert isinstance(total, Tensor)
    return total / sum(weights)


class Sent(NamedTuple):
    """What a client made in `round` of the model x that it received; it arrives in the round `due`."""

    round: int
    client: int
    due: int
    x: Model
    y: Model


def arrived(sent: Sequence[Sent], round: int, late_policy: str = "delta") -> list[Sent]:
    """What arrives in a round, the oldest first; discard: only what was sent in this round (Feddle, Eq 2)."""
    return [u for u in sent if u.due == round and (late_policy != "discard" or u.round == round)]


def sizes(p: Problem, here: Sequence[Sent], weighting: str = "size") -> list[int]:
    """The weights of FedAvg's mean: the numbers of examples n_k, or 1."""
    return [p.n(u.client) if weighting == "size" else 1 for u in here]


def fedavg_step(
    p: Problem, x: Model, here: Sequence[Sent], late_policy: str, weighting: str, server_lr: float = 1.0
) -> Model:
    """The server's step of FedAvg; batch norm's statistics are replaced by the mean of those that arrive."""
    if not here:
        return x
    n = sizes(p, here, weighting)
    # McMahan et al., Algorithm 1: w_{t+1} <- sum_k n_k / n w_{t+1}^k
    # Feddle, Eq 1 and 3: w_{t+1} <- w_t + sum_k n_k / n Delta_k
    before = [x.w if late_policy == "model" else u.x.w for u in here]
    step = mean([u.y.w - w for u, w in zip(here, before, strict=True)], n)
    return Model(x.w + server_lr * step, mean([u.y.s for u in here], n))


class Adam:
    """Adam (Kingma and Ba, 2015, Algorithm 1), with L2 decay in the gradient."""

    def __init__(self, w: Tensor, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0) -> None:
        self.m, self.v, self.t = torch.zeros_like(w), torch.zeros_like(w), 0
        self.betas, self.weight_decay = betas, weight_decay

    def step(self, w: Tensor, g: Tensor, lr: float) -> Tensor:
        """The parameters after a step along g."""
        (b1, b2), self.t = self.betas, self.t + 1
        g = g + self.weight_decay * w
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        return w - lr * (self.m / (1 - b1**self.t)) / ((self.v / (1 - b2**self.t)).sqrt() + 1e-8)


@dataclass(frozen=True)
class Case:
    """A method in one setting, to be compared with its reference loop. A file of a loop lists its own in `CASES`."""

    name: str  # of the case; begins with the method's key
    reference: Callable[..., Iterator[Fields]]
    keys: dict[str, Any] = field(default_factory=dict)  # of the method's config, where they are not the default
    local: dict[str, Any] = field(default_factory=dict)  # keys of conf/local, where they are not the toy's
    std: float = 0.0  # of the half-normal delays; 0: nobody is late
    cohort: int = 4
    optimizer: tuple[str, dict[str, Any]] | None = None  # the server's, and its keys where they are not the default
    home: str | None = None  # what clients keep to themselves
    models: tuple[tuple[str, ...], ...] = (MLP, BATCH_NORM)  # names of networks in the toy; each is a test
    loss: str = "ce"  # of the labels: ce or wsm
    topology: str = ""  # ring; empty: everyone reaches everyone
    out_of_domain: bool = False  # the server's examples are of other classes than the clients'
    rounds: int = 6
    equations: str = ""  # what of the paper the loop follows

    @property
    def method(self) -> str:
        return self.name.partition(" ")[0]
