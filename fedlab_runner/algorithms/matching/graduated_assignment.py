"""Joint graduated assignment of the neurons of several networks (GAMF, Liu et al., ICML 2022).
https://proceedings.mlr.press/v162/liu22k.html
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.matching.assignment import hungarian
from fedlab_runner.algorithms.matching.neurons import NeuronGroup, NeuronSlice

PATIENCE = 50  # iterations at one temperature, at most (the authors' code)
STILL = 2e-3  # squared change of a model's assignments below which the temperature falls (the authors' code)


class Assignment(NamedTuple):
    """Which neuron of the first model each neuron is, and what finding it cost."""

    orders: list[list[np.ndarray]]  # of each group and model [n]: the neurons in the first model's order
    iterations: int
    flops: int


@dataclass(frozen=True)
class Graduated:
    """Sinkhorn assignments that grow sharper: temperature `tau`, times `tau_decay` whenever they have come to rest,
    until `tau_min`, then permutations by the Hungarian method.

    `pairwise` compares each model with the first one only; otherwise with all others at once.
    """

    tau: float
    tau_decay: float
    tau_min: float
    sinkhorn_steps: int
    max_iterations: int
    pairwise: bool

    def assign(self, models: Tensor, groups: Sequence[NeuronGroup], rng: np.random.Generator) -> Assignment:
        """Brings models [m, D] into the order of the first.

        X_i [n, n] of model i says which of its neurons (rows) is which of the first model's (columns); X_1 = I, and so
        are inputs and outputs. In each iteration A_i = sum over j != i of (K_in + K_out) X_j, where K compares the
        neurons of i and j by what makes them and by what reads them, brought into the common order by the assignments
        of the layers before and behind, and X_i becomes Sinkhorn(A_i / tau).
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
            if change < STILL or rested > PATIENCE:
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
        """Assignments [m, n, n] of the most affinity; that of the first model is the identity."""
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
    """Doubly stochastic matrices [..., n, n] from scores: exp, then rows and columns normalised in turn."""
    for step in range(steps):
        scores = scores - scores.logsumexp(-1 - step % 2, keepdim=True)
    return scores.exp()


def _order(assignment: Tensor) -> np.ndarray:
    """The neurons of a model in the order of the first: inverse of the assignment."""
    return np.argsort(hungarian(assignment))


def _start(models: Tensor, n: int, rng: np.random.Generator) -> Tensor:
    """Nearly uniform assignments [m, n, n], but the first model's, which is the identity."""
    x = torch.from_numpy(rng.uniform(-0.05, 0.05, (len(models), n, n)) + 1 / n).to(models.device, models.dtype)
    x[:1] = torch.eye(n, dtype=models.dtype, device=models.device)
    return x


def _mix(moved: Tensor, models: Tensor, piece: NeuronSlice, x: Tensor) -> None:
    """Writes a piece of models [m, D] into `moved` with its neurons in the order that x [m, n, n] gives."""
    piece.view(moved).copy_(torch.einsum("monr,mnp->mopr", piece.view(models), x))


def _kernel(features: Tensor) -> Tensor:
    """exp(-||a - b||_4 / 2) over its mean in each pair of models, of all neurons [m, n, d] with all: [m, n, m, n]."""
    m, n, d = features.shape
    flat = features.reshape(m * n, d)
    square, cube, fourth = flat**2, flat**3, (flat**4).sum(1)
    # (a - b)^4, multiplied out, is three products of matrices
    power = fourth.unsqueeze(1) + fourth + 6 * square @ square.T - 4 * (cube @ flat.T + flat @ cube.T)
    kernel = torch.exp(-0.5 * power.clamp_min(0) ** 0.25).view(m, n, m, n)
    return kernel / kernel.mean((1, 3), keepdim=True)


def _change(new: Sequence[Tensor], x: Sequence[Tensor], older: Sequence[Tensor]) -> float:
    """Mean over models of the squared change of their assignments, from the last ones or those before (which see them
    alternate).
    """
    pairs = [
        torch.minimum((a - b).square().sum((1, 2)), (a - c).square().sum((1, 2)))
        for a, b, c in zip(new, x, older, strict=True)
    ]
    return float(torch.stack(pairs).sum(0).mean())


def _flops(group: NeuronGroup, m: int, steps: int) -> int:
    """Of one iteration: kernels (three products of matrices), mixing, the sum over models, Sinkhorn."""
    n = group.size
    features = sum(p.outer * p.inner for p in group.rows + group.columns)
    mixing = 2 * m * n * n * features
    return 6 * (m * n) ** 2 * features + mixing + 2 * (m * n) ** 2 * n + 3 * steps * m * n * n


def check_graduated(tau: float, tau_decay: float, tau_min: float, sinkhorn_steps: int, max_iterations: int) -> None:
    """Raises ValueError, named after the field, for an iteration that cannot be."""
    for name, value in (("tau", tau), ("tau_min", tau_min)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be > 0, got {value}")
    if not 0 < tau_decay < 1:
        raise ValueError(f"tau_decay must be between 0 and 1, got {tau_decay}")
    if sinkhorn_steps < 1:
        raise ValueError(f"sinkhorn_steps must be >= 1, got {sinkhorn_steps}")
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be >= 1, got {max_iterations}")
