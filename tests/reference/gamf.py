"""GAMF (Liu et al., ICML 2022), Algorithm 1: graduated assignment of all models' neurons at once.

The paper's graph matching for several graphs, with the authors' affinities, temperatures and limits. Their code leaves
the order of all models free and averages in an order that belongs to none; here X_1 = I. It brings the neighbouring
layers of i into the order of j, by X_i X_j^T, and here both are brought into the common order, by X_i and X_j: the same
where the X are permutations. It knows no biases; here they and a norm's parameters belong to a neuron's row.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from tests.reference.chain import hidden_layers
from tests.reference.plain import Case, Fields, Model, Problem, Sent, arrived, mean, sgd, sizes


def gamf(
    p: Problem,
    *,
    tau: float,
    tau_decay: float,
    tau_min: float,
    sinkhorn_steps: int,
    max_iterations: int,
    pairwise: bool,
    late_policy: str,
    weighting: str,
) -> Iterator[Fields]:
    x, sent, layers = p.x0, list[Sent](), hidden_layers(p.net)

    def assignments(w: list[dict[str, Tensor]], rng: np.random.Generator) -> list[list[Tensor]]:
        """X_{l,i} [n, n] of each layer l and model i: neurons of the model (rows) to neurons of the first (columns)."""
        models, w = range(len(w)), [{name: v.double() for name, v in each.items()} for each in w]
        X = [first_assignments(layer.size, len(w), rng) for layer in layers]
        older, temperature, rested, sharp = X, tau, 0, False
        for _ in range(max_iterations if len(w) > 1 else 0):
            new = []
            for number, layer in enumerate(layers):
                # rows have their columns, and columns their rows, in the common order of the layers next to this one
                rows = [torch.cat([ordered_rows(w[i], layers, X, number, i, k) for k in layer.rows], 1) for i in models]
                columns = [ordered_columns(w[i], layers, X, number, i) for i in models]
                solved = [X[number][0]]
                for i in models[1:]:
                    A = torch.zeros(layer.size, layer.size, dtype=torch.float64)
                    for j in [0] if pairwise else [j for j in models if j != i]:
                        # A_i = sum over j != i of (K_prev + K_next) X_j
                        A = A + (kernel(rows[i], rows[j]) + kernel(columns[i], columns[j])) @ X[number][j]
                    solved.append(hungarian(A) if sharp else sinkhorn(A / temperature, sinkhorn_steps))
                new.append(solved)
            # at rest: unchanged since the last iteration or, as assignments may alternate, since the one before
            change = 0.0
            for now, last, before in zip(new, X, older, strict=True):
                for i in models:
                    change += min(float(((now[i] - each[i]) ** 2).sum()) for each in (last, before)) / len(w)
            X, older, rested = new, X, rested + 1
            if change < 2e-3 or rested > 50:
                if sharp:
                    break
                sharp, temperature, rested = temperature <= tau_min, temperature * tau_decay, 0
        return [[hungarian(each) for each in of_layer] for of_layer in X]

    for t in range(p.num_rounds):
        for k in p.cohort(t):
            sent.append(Sent(t, k.client, k.due, x, sgd(p, x, k.client, t)))
        here = arrived(sent, t, late_policy)
        if here:
            w = [{name: v.clone() for name, v in p.net.parts(u.y).items()} for u in here]
            for layer, of_layer in zip(layers, assignments(w, p.rng("ALGORITHM", t)), strict=True):
                for each, X in zip(w, of_layer, strict=True):
                    X = X.to(x.w.dtype)
                    for name in layer.rows + layer.statistics:
                        each[name] = torch.tensordot(X.T, each[name], 1)  # X^T W
                    each[layer.columns] = each[layer.columns] @ X  # W X
            y, n = [p.net.joined(each) for each in w], sizes(p, here, weighting)
            x = Model(mean([each.w for each in y], n), mean([each.s for each in y], n))
        yield {"params": x.vector}


def first_assignments(n: int, m: int, rng: np.random.Generator) -> list[Tensor]:
    """1/n with noise of up to 0.05; the first model's are I."""
    X = [torch.from_numpy(each + 1 / n) for each in rng.uniform(-0.05, 0.05, (m, n, n))]
    return [torch.eye(n, dtype=torch.float64), *X[1:]]


def ordered_rows(w: dict[str, Tensor], layers: list, X: list[list[Tensor]], number: int, i: int, name: str) -> Tensor:
    """A tensor of a layer's rows, W X_{l-1}: with its columns in the common order; inputs are in it."""
    values = w[name].reshape(layers[number].size, -1)
    return values @ X[number - 1][i] if number and name == layers[number - 1].columns else values


def ordered_columns(w: dict[str, Tensor], layers: list, X: list[list[Tensor]], number: int, i: int) -> Tensor:
    """The weights that read a layer's neurons, (X_{l+1}^T W)^T: with their rows in the common order; logits are."""
    values = w[layers[number].columns]
    return (values if number + 1 == len(layers) else X[number + 1][i].T @ values).T


def kernel(a: Tensor, b: Tensor) -> Tensor:
    """K = exp(-1/2 ||a - b||_4) for all pairs of neurons of two models, over its mean."""
    K = torch.exp(-0.5 * ((a.unsqueeze(1) - b) ** 4).sum(2) ** 0.25)
    return K / K.mean()


def sinkhorn(scores: Tensor, steps: int) -> Tensor:
    """exp(scores) with its rows and its columns divided by their sums in turn, in logarithms."""
    for step in range(steps):
        scores = scores - torch.logsumexp(scores, 1 - step % 2, keepdim=True)
    return torch.exp(scores)


def hungarian(A: Tensor) -> Tensor:
    """The permutation matrix of the largest sum of affinities."""
    X = torch.zeros_like(A)
    X[linear_sum_assignment(A.numpy(), maximize=True)] = 1
    return X


QUICK = {"tau_decay": 0.5, "sinkhorn_steps": 10, "max_iterations": 30}
FAR = {"lr": 2.0}  # of clients: neurons leave their places
LATE = {"weighting": "size", "tau_min": 0.02}
CASES = [
    Case("gamf", gamf, QUICK, FAR, models=(("mlp",), ("deep",)), equations="Algorithm 1"),
    Case("gamf late", gamf, QUICK | LATE, FAR, std=1.5, models=(("batch_norm",),), equations="Algorithm 1"),
    Case("gamf pairwise, late", gamf, {"pairwise": True, "late_policy": "discard"}, FAR, std=1.5, models=(("mlp",),)),
]
