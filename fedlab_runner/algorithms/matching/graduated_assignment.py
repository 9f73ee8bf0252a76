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
from fedlab_runner.core.products import add_product
from fedlab_runner.utils.validate import above, at_least, within

MAX_ITERATIONS_PER_TEMPERATURE = 50  # the authors' code
MAX_EXPONENT = 600.0  # of factors that bring back values that were lost below exp(-745)
MIN_CHANGE = 2e-3  # squared, of a model's assignments: below it the temperature falls (the authors' code)


class Assignment(NamedTuple):
    """The neurons' places in the first model's order, and the cost of finding them."""

    orders: list[list[np.ndarray]]  # by group and model: its neurons [n] in the first model's order
    iterations: int
    flops: int


@dataclass(frozen=True)
class Graduated:
    """Sinkhorn assignments that grow sharper, then permutations by the Hungarian method.

    The temperature starts at `tau`. Whenever the assignments have converged, `tau_decay` multiplies it, down to
    `tau_min`. With `pairwise` the matching compares each model with the first alone, instead of with all others.
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
        K_in compares the neurons of i and j by their incoming weights, K_out by their outgoing weights. The assignments
        of the layers before and behind bring both into the common order.
        """
        m = len(models)
        x, iterations = [_start(models, group.size, rng) for group in groups], 0
        fixed = [self._fixed(models, groups, group) for group in groups] if m > 1 else []
        flops = sum(self._kernel_flops(*each, m, once=True) for each in zip(groups, fixed, strict=False))
        older, tau, rested, sharp = x, self.tau, 0, False
        while m > 1 and iterations < self.max_iterations:
            affinities = self._affinities(models, groups, x, fixed)
            new = [self._solve(a, tau, sharp) for a in affinities]
            flops += sum(self._flops(*each, m, sharp) for each in zip(groups, fixed, strict=True))
            iterations, rested = iterations + 1, rested + 1
            change, (older, x) = _change(new, x, older), (x, new)
            if change < MIN_CHANGE or rested > MAX_ITERATIONS_PER_TEMPERATURE:
                if sharp:
                    break
                sharp, tau, rested = tau <= self.tau_min, tau * self.tau_decay, 0
        return Assignment([[_order(one) for one in of_group] for of_group in x], iterations, flops)

    def _fixed(self, models: Tensor, groups: Sequence[NeuronGroup], group: NeuronGroup) -> "Fixed":
        """The part of a group that no assignment changes: whether its rows and columns belong to no other group, and
        the sum of their kernels.
        """
        of_columns, of_rows = (torch.zeros_like(models[:1]) for _ in range(2))
        for each in groups:
            for touched, pieces in ((of_columns, each.columns), (of_rows, each.rows)):
                for piece in pieces:
                    piece.view(touched).fill_(1)
        rows, columns = (not bool(t.any()) for t in (group.incoming(of_columns), group.outgoing(of_rows)))
        features = [group.incoming(models)] * rows + [group.outgoing(models)] * columns
        compared = [_Compared(each, self.pairwise) for each in features]
        width = [1 if self.pairwise else i for i in range(len(models))]
        kernels = [models.new_zeros(group.size, width[i] * group.size) for i in range(1, len(models))]
        for side in compared:
            for i, kernel in enumerate(kernels, 1):
                kernel += side.kernel(i)
        return Fixed(rows, columns, kernels)

    def _affinities(
        self, models: Tensor, groups: Sequence[NeuronGroup], x: Sequence[Tensor], fixed: "Sequence[Fixed]"
    ) -> list[Tensor]:
        """A_i of each group, for all models but the first [m - 1, n, n]."""
        columns_moved, rows_moved = models.clone(), models.clone()
        for group, of_group in zip(groups, x, strict=True):
            for moved, pieces in ((columns_moved, group.columns), (rows_moved, group.rows)):
                for piece in pieces:
                    _mix(moved, models, piece, of_group)
        affinities = []
        for group, of_group, still in zip(groups, x, fixed, strict=True):
            features = [] if still.rows else [group.incoming(columns_moved)]
            features += [] if still.columns else [group.outgoing(rows_moved)]
            compared = [_Compared(each, self.pairwise) for each in features]
            n = group.size
            affinity = models.new_zeros(len(models), n, n)
            for i, known in enumerate(still.kernels, 1):  # one model at a time: small arrays stay in the cache
                both = known
                for each in compared:
                    both = each.kernel(i).add_(both)
                before = both.shape[1] // n
                add_product(affinity[i], both, of_group[:before].reshape(-1, n))
                if not self.pairwise:  # for the models before it the transposed kernels
                    add_product(affinity[:before].view(-1, n), both.T, of_group[i])
            affinities.append(affinity[1:])
        return affinities

    def _kernel_flops(self, group: NeuronGroup, fixed: "Fixed", m: int, once: bool) -> int:
        """Operations of a group's kernels for m models, three products for each pair that is compared: of the kernels
        that are made `once`, or of those of an iteration.
        """
        pairs = m - 1 if self.pairwise else m * (m - 1) // 2
        sides = (group.rows, fixed.rows), (group.columns, fixed.columns)
        features = sum(p.outer * p.inner for pieces, still in sides if still == once for p in pieces)
        return 6 * pairs * group.size**2 * features

    def _flops(self, group: NeuronGroup, fixed: "Fixed", m: int, sharp: bool) -> int:
        """Operations of an iteration: kernels, mixing, the sums over models, and Sinkhorn or the Hungarian method."""
        n, features = group.size, sum(p.outer * p.inner for p in group.rows + group.columns)
        mixing, sums = 2 * m * n**2 * features, 2 * n**3 * (m - 1) * (1 if self.pairwise else m)
        solving = (m - 1) * (n**3 if sharp else 2 * self.sinkhorn_steps * n**2)
        return self._kernel_flops(group, fixed, m, once=False) + mixing + sums + solving

    def _solve(self, affinity: Tensor, tau: float, sharp: bool) -> Tensor:
        """The assignments [m, n, n] with the most affinity [m - 1, n, n]: soft or, if `sharp`, permutations. That of
        the first model is I.
        """
        n = affinity.shape[-1]
        if sharp:
            solved = torch.zeros_like(affinity)
            for one, of_model in zip(solved, affinity, strict=True):
                one[torch.arange(n), torch.from_numpy(hungarian(of_model))] = 1
        else:
            solved = sinkhorn(affinity / tau, self.sinkhorn_steps)
        return torch.cat([torch.eye(n, dtype=solved.dtype, device=solved.device).unsqueeze(0), solved])


class Fixed(NamedTuple):
    """The part of a group's kernels that is the same in all iterations."""

    rows: bool  # whether it has the kernel of incoming weights
    columns: bool  # whether it has the kernel of outgoing weights
    kernels: Sequence[Tensor]  # of each model i except the first with the models before it [n, i n]


class _Compared:
    """Features of the neurons of models [m, n, d]. The matching compares each model with the models before it, or with
    the first alone.
    """

    def __init__(self, features: Tensor, first_alone: bool) -> None:
        self._n, self._first_alone, self._flat = features.shape[1], first_alone, features.flatten(0, 1)
        self._square = self._flat**2
        self._cube, self._fourth = self._square * self._flat, self._square.square().sum(1)

    def kernel(self, i: int) -> Tensor:
        """exp(-||a - b||_4 / 2) for neurons a of model i and b of l models before it [n, l n], over its mean in each
        pair of models.
        """
        n, before = self._n, 1 if self._first_alone else i
        mine, theirs = slice(i * n, (i + 1) * n), slice(before * n)
        power = self._fourth[mine].unsqueeze(1) + self._fourth[theirs]
        # (a - b)^4 = a^4 + b^4 + 6 a^2 b^2 - 4 a^3 b - 4 a b^3: the last three are matrix products
        add_product(power, self._square[mine], self._square[theirs].T, 6)
        add_product(power, self._cube[mine], self._flat[theirs].T, -4)
        add_product(power, self._flat[mine], self._cube[theirs].T, -4).clamp_min_(0)
        kernel = power.sqrt_().sqrt_().mul_(-0.5).exp_().view(n, before, n)
        return kernel.div_(kernel.mean((0, 2)).unsqueeze(1)).view(n, before * n)


def sinkhorn(scores: Tensor, steps: int) -> Tensor:
    """Doubly stochastic matrices [..., n, n]: exp(scores) with rows and columns normalised in turn, `steps` times.

    Products of the matrix and a vector give the factors of rows and columns. If the factors' range is larger than that
    of the number type, the computation uses logarithms.
    """
    shifted = scores.double()
    shifted = shifted - shifted.amax(-1, keepdim=True)
    most = shifted.amax(-2, keepdim=True)
    values = shifted.sub_(most).exp_()  # at most 1, the largest value of each column
    columns, rows = most.exp().transpose(-1, -2), torch.ones_like(values[..., :1])
    for step in range(steps):
        if step % 2:
            columns = (values.transpose(-1, -2) @ rows).reciprocal_()
        else:
            rows = (values @ columns).reciprocal_()
    largest = rows.log().amax() + columns.log().amax()
    if bool(largest < MAX_EXPONENT):  # false if one is infinite
        return (values * rows * columns.transpose(-1, -2)).to(scores.dtype)
    for step in range(steps):
        scores = scores - scores.logsumexp(-1 - step % 2, keepdim=True)
    return scores.exp()


def _order(assignment: Tensor) -> np.ndarray:
    """A model's neurons in the order of the first model: the inverse of its assignment."""
    return np.argsort(hungarian(assignment))


def _start(models: Tensor, n: int, rng: np.random.Generator) -> Tensor:
    """Nearly uniform assignments [m, n, n]; that of the first model is the identity."""
    x = torch.from_numpy(rng.uniform(-0.05, 0.05, (len(models), n, n)) + 1 / n).to(models.device, models.dtype)
    x[:1] = torch.eye(n, dtype=models.dtype, device=models.device)
    return x


def _mix(moved: Tensor, models: Tensor, piece: NeuronSlice, x: Tensor) -> None:
    """Writes a slice of models [m, D] into `moved` with its neurons in the order of the assignments x [m, n, n]."""
    piece.view(moved).copy_(torch.einsum("monr,mnp->mopr", piece.view(models), x))


def _change(new: Sequence[Tensor], x: Sequence[Tensor], older: Sequence[Tensor]) -> float:
    """The mean over models of the squared change of their assignments since the last iteration, or since the one
    before.

    The smaller change counts, because assignments may alternate.
    """
    pairs = [
        torch.minimum((a - b).square().sum((1, 2)), (a - c).square().sum((1, 2)))
        for a, b, c in zip(new, x, older, strict=True)
    ]
    return float(torch.stack(pairs).sum(0).mean())


def check_graduated(tau: float, tau_decay: float, tau_min: float, sinkhorn_steps: int, max_iterations: int) -> None:
    """Raises ValueError, beginning with the field's name, for a value out of range."""
    above(0, tau=tau, tau_min=tau_min)
    within("(0, 1)", tau_decay=tau_decay)
    at_least(1, sinkhorn_steps=sinkhorn_steps, max_iterations=max_iterations)
