"""Helpers of partitions: checks, Dirichlet draws without underflow, index lists. n examples, N clients, C classes."""

import numpy as np

from fedlab_runner.utils.validate import at_least, within


def check_alpha(alpha: float) -> None:
    """Raises ValueError unless float64 can draw with the concentration `alpha`."""
    within("[1e-9, 1e9]", alpha=alpha)


def check_num_clients(num_clients: int, num_examples: int) -> None:
    """Raises ValueError unless there is at least one client, and an example for each client."""
    at_least(1, num_clients=num_clients)
    if num_clients > num_examples:
        raise ValueError(f"num_clients must be at most {num_examples}, the number of examples, got {num_clients}")


def classes(strata: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class 0..C-1 of each example [n], among the C classes that occur, and the size of each class [C]."""
    _, labels, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    return labels, sizes


def shuffled_by_class(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The examples [n], class after class, each class in random order."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def equal_sizes(total: int, parts: int) -> np.ndarray:
    """Sizes [parts] that sum to `total`: equal, except that the first total % parts sizes are larger by one."""
    return total // parts + (np.arange(parts) < total % parts)


def deal(order: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The owner of each example [n] after dealing the examples in `order` [n] by counts [rows, N].

    The deal goes row after row and, within a row, client after client.
    """
    rows, num_clients = counts.shape
    owner = np.empty(len(order), np.int64)
    owner[order] = np.repeat(np.tile(np.arange(num_clients), rows), counts.ravel())
    return owner


def index_lists(owner: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """The ascending examples of each client, from the owner of each example [n]."""
    order = np.argsort(owner, kind="stable")
    ends = np.bincount(owner, minlength=num_clients).cumsum().tolist()
    return [order[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def log_gamma(rng: np.random.Generator, alpha: np.ndarray) -> np.ndarray:
    """Logarithms of standard gamma draws with shape parameters `alpha`. `shares` makes them Dirichlet(alpha).

    The draw uses logarithms, log G(a) = log G(a + 1) + log(U) / a, because G(a) underflows for small a.
    """
    draws: np.ndarray = np.log(rng.standard_gamma(alpha + 1)) - rng.standard_exponential(alpha.shape) / alpha
    return draws


def shares(logs: np.ndarray, open: np.ndarray) -> np.ndarray:
    """exp(logs) of the open entries, normalised to the sum 1 along the last axis; closed entries are exactly 0.

    The renormalised open entries of a Dirichlet vector have a Dirichlet distribution too. At least one entry must be
    open.
    """
    logs = np.where(open, logs, -np.inf)
    weights = np.exp(logs - logs.max(-1, keepdims=True))
    normalised: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return normalised


def dirichlet(rng: np.random.Generator, alpha: float, open: np.ndarray) -> np.ndarray:
    """Symmetric Dirichlet(alpha) vectors, in the shape of `open`, over the open entries of the last axis; 0
    elsewhere.
    """
    return shares(log_gamma(rng, np.full(open.shape, alpha)), open)


def cut(weights: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Counts [..., N] that sum to totals [...], cut at floor(cumsum(weights) * total).

    The last entry with weight > 0 gets the remainder.
    """
    ends = np.floor(weights.cumsum(-1) * totals[..., None]).astype(np.int64)
    last = weights.shape[-1] - 1 - np.argmax(weights[..., ::-1] > 0, axis=-1)
    ends = np.where(np.arange(weights.shape[-1]) >= last[..., None], totals[..., None], ends)
    return np.diff(ends, axis=-1, prepend=0)
