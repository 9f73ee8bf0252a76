"""Joint graduated assignment of the neurons of several networks (GAMF, Liu et al., ICML 2022).
https://proceedings.mlr.press/v162/liu22k.html
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.matching.assignment import hungarian
from fedlab_runner.algorithms.matching.neurons import NeuronGroup, NeuronSlice
from fedlab_runner.utils.validate import at_least, finite_above, within

MAX_ITERATIONS_PER_TEMPERATURE = 50  # the authors' code
MIN_CHANGE = 2e-3  # squared, of a model's assignments: below it the temperature falls (the authors' code)


class Assignment(NamedTuple):
    """The neurons' places in the first model's order, and the cost of finding them."""

    orders: list[list[np.ndarray]]  # by group and model: its neurons [n] in the first model's order
    iterations: int
    flops: int


@dataclass(frozen=True)
class Graduated:
    """Sinkhorn assignments that grow sharper, then permutations by the Hungarian method.

    The temperature starts at `tau`; whenever the assignments come to rest, `tau_decay` multiplies it, down to
    `tau_min`. `pairwise` compares each model with the first model only, instead of with all others.
    """

    tau: float
    tau_decay: float
    tau_min: float
    sinkhorn_steps: int
    max_iterations: int
    pairwise: bool

    def assign(self, models: Tensor, groups: Sequence[NeuronGroup], rng: np.random.Generator) -> Assignment:
        """The orders that bring models [m, D] into the order of the first.

        X_i [n, n] assigns neurons of model i (rows) to neurons of the first model (columns); X_1 = I, as for inputs and
        outputs. In each iteration A_i = sum over j != i of (K_in + K_out) X_j, and X_i becomes Sinkhorn(A_i / tau).
        K_in compares the neurons of i and j by their incoming weights, K_out by their outgoing ones, both brought into
        the common order by the assignments of the layers before and behind.
        """
        m = len(models)
        others = 1 - torch.eye(m, dtype=models.dtype, device=models.device)
        if self.pairwise:
            others[:, 1:] = 0
        x, flops, iterations = [_start(models, group.size, rng) for group in groups], 0, 0
        older, tau, rested, sharp = x, self.tau, 0, False
        while m > 1 and iterations < self.max_iterations:
            affinities = self._affinities(models, groups, x, others)
            new = [self._solve(a, tau, sharp) for a in affinities]
            flops += sum(_flops(group, m, self.sinkhorn_steps) for group in groups)
            iterations, rested = iterations + 1, rested + 1
            change, (older, x) = _change(new, x, older), (x, new)
            if change < MIN_CHANGE or rested > MAX_ITERATIONS_PER_TEMPERATURE:
                if sharp:
                    break
                sharp, tau, rested = tau <= self.tau_min, tau * self.tau_decay, 0
        return Assignment([[_order(one) for one in of_group] for of_group in x], iterations, flops)

    def _affinities(
        self, models: Tensor, groups: Sequence[NeuronGroup], x: Sequence[Tensor], others: Tensor
    ) -> list[Tensor]:
        """A_i of each group [m, n, n]."""
        columns_moved, rows_moved = models.clone(), models.clone()
        for group, of_group in zip(groups, x, strict=True):
            for moved, pieces in ((columns_moved, group.columns), (rows_moved, group.rows)):
                for piece in pieces:
                    _mix(moved, models, piece, of_group)
        affinities = []
        for group, of_group in zip(groups, x, strict=True):
            m, n = of_group.shape[:2]
            both = _kernel(group.incoming(columns_moved)) + _kernel(group.outgoing(rows_moved))  # [m, n, m, n]
            both = both * others.view(m, 1, m, 1)
            affinities.append((both.reshape(m * n, m * n) @ of_group.reshape(m * n, n)).view(m, n, n))
        return affinities

    def _solve(self, affinity: Tensor, tau: float, sharp: bool) -> Tensor:
        """Assignments [m, n, n] for the most affinity: soft or, if `sharp`, permutations. The first model's is I."""
        n = affinity.shape[-1]
        if sharp:
            solved = torch.zeros_like(affinity)
            for one, of_model in zip(solved, affinity, strict=True):
                one[torch.arange(n), torch.from_numpy(hungarian(of_model))] = 1
        else:
            solved = sinkhorn(affinity / tau, self.sinkhorn_steps)
        solved[0] = torch.eye(n, dtype=solved.dtype, device=solved.device)
        return solved


def sinkhorn(scores: Tensor, steps: int) -> Tensor:
    """Doubly stochastic matrices [..., n, n]: exp(scores) with rows and columns normalised in turn, `steps` times."""
    for step in range(steps):
        scores = scores - scores.logsumexp(-1 - step % 2, keepdim=True)
    return scores.exp()


def _order(assignment: Tensor) -> np.ndarray:
    """A model's neurons in the order of the first model: the inverse of its assignment."""
    return np.argsort(hungarian(assignment))


def _start(models: Tensor, n: int, rng: np.random.Generator) -> Tensor:
    """Nearly uniform assignments [m, n, n]; the first model's is the identity."""
    x = torch.from_numpy(rng.uniform(-0.05, 0.05, (len(models), n, n)) + 1 / n).to(models.device, models.dtype)
    x[:1] = torch.eye(n, dtype=models.dtype, device=models.device)
    return x


def _mix(moved: Tensor, models: Tensor, piece: NeuronSlice, x: Tensor) -> None:
    """Writes a slice of models [m, D] into `moved` with its neurons in the order of the assignments x [m, n, n]."""
    piece.view(moved).copy_(torch.einsum("monr,mnp->mopr", piece.view(models), x))


def _kernel(features: Tensor) -> Tensor:
    """exp(-||a - b||_4 / 2) for all pairs of neurons [m, n, d], over its mean in each pair of models: [m, n, m, n]."""
    m, n, d = features.shape
    flat = features.reshape(m * n, d)
    square, cube, fourth = flat**2, flat**3, (flat**4).sum(1)
    # (a - b)^4, multiplied out, has three matrix products
    power = fourth.unsqueeze(1) + fourth + 6 * square @ square.T - 4 * (cube @ flat.T + flat @ cube.T)
    kernel = torch.exp(-0.5 * power.clamp_min(0) ** 0.25).view(m, n, m, n)
    return kernel / kernel.mean((1, 3), keepdim=True)


def _change(new: Sequence[Tensor], x: Sequence[Tensor], older: Sequence[Tensor]) -> float:
    """The mean over models of the squared change of their assignments, since the last iteration or the one before.

    The smaller of the two counts: assignments may alternate.
    """
    pairs = [
        torch.minimum((a - b).square().sum((1, 2)), (a - c).square().sum((1, 2)))
        for a, b, c in zip(new, x, older, strict=True)
    ]
    return float(torch.stack(pairs).sum(0).mean())


def _flops(group: NeuronGroup, m: int, steps: int) -> int:
    """Operations of one iteration: kernels (three matrix products), mixing, the sum over models, Sinkhorn."""
    n = group.size
    features = sum(p.outer * p.inner for p in group.rows + group.columns)
    mixing = 2 * m * n * n * features
    return 6 * (m * n) ** 2 * features + mixing + 2 * (m * n) ** 2 * n + 3 * steps * m * n * n


def check_graduated(tau: float, tau_decay: float, tau_min: float, sinkhorn_steps: int, max_iterations: int) -> None:
    """Raises ValueError, beginning with the field's name, for a value out of range."""
    finite_above(0, tau=tau, tau_min=tau_min)
    within("(0, 1)", tau_decay=tau_decay)
    at_least(1, sinkhorn_steps=sinkhorn_steps, max_iterations=max_iterations)
