"""What partitions share: checks, Dirichlet draws that never break down, and index lists from one owner a sample."""

import numpy as np


def check_alpha(alpha: float) -> None:
    """Raises ValueError unless alpha is a concentration that float64 can draw with."""
    if not 1e-9 <= alpha <= 1e9:
        raise ValueError(f"alpha must be between 1e-9 and 1e9, got {alpha}")


def check_at_least(name: str, value: int, least: int) -> None:
    """Raises ValueError, which starts with the field's name, if value < least."""
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_num_clients(num_clients: int, num_examples: int) -> None:
    """Raises ValueError unless there is at least one client and at least one sample for each."""
    check_at_least("num_clients", num_clients, 1)
    if num_clients > num_examples:
        raise ValueError(f"num_clients must be at most {num_examples}, the number of samples, got {num_clients}")


def classes(strata: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class of every sample among the C classes that occur, 0..C-1 [n], and the size of each [C]."""
    _, labels, sizes = np.unique(strata, return_inverse=True, return_counts=True)
    return labels, sizes


def shuffled_by_class(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """All samples, class after class, each class in random order [n]."""
    shuffled = rng.permutation(len(labels))
    return shuffled[np.argsort(labels[shuffled], kind="stable")]


def equal_sizes(total: int, parts: int) -> np.ndarray:
    """The sizes of numpy's array_split: equal, but the first total % parts are one larger [parts]."""
    return total // parts + (np.arange(parts) < total % parts)


def deal(order: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The owner of every sample [n], where the samples in `order` [n] go to clients by counts [rows, N]: row after
    row, and within a row client after client."""
    rows, num_clients = counts.shape
    owner = np.empty(len(order), np.int64)
    owner[order] = np.repeat(np.tile(np.arange(num_clients), rows), counts.ravel())
    return owner


def index_lists(owner: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """The samples of every client, ascending, from the owner of every sample [n]."""
    order = np.argsort(owner, kind="stable")
    ends = np.bincount(owner, minlength=num_clients).cumsum().tolist()
    return [order[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def log_gamma(rng: np.random.Generator, alpha: np.ndarray) -> np.ndarray:
    """Logarithms of standard gamma draws of shapes alpha. Normalised by `shares` they are Dirichlet(alpha).

    In logarithms (log G(a) = log G(a + 1) + log(U) / a) because gamma draws of small shapes underflow to 0.
    """
    draws: np.ndarray = np.log(rng.standard_gamma(alpha + 1)) - rng.standard_exponential(alpha.shape) / alpha
    return draws


def shares(logs: np.ndarray, open: np.ndarray) -> np.ndarray:
    """exp(logs) over the open entries, normalised to sum 1 along the last axis; closed entries get exactly 0.

    Of a Dirichlet vector, the renormalised open entries are Dirichlet again; at least one must be open.
    """
    logs = np.where(open, logs, -np.inf)
    weights = np.exp(logs - logs.max(-1, keepdims=True))
    normalised: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return normalised


def dirichlet(rng: np.random.Generator, alpha: float, open: np.ndarray) -> np.ndarray:
    """Symmetric Dirichlet(alpha) vectors over the open entries of the last axis, 0 elsewhere; the shape of `open`."""
    return shares(log_gamma(rng, np.full(open.shape, alpha)), open)


def cut(weights: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Counts [..., N] that sum to totals [...], cut at floor(cumsum(weights) * total); the rest goes to the last
    entry with weight > 0."""
    ends = np.floor(weights.cumsum(-1) * totals[..., None]).astype(np.int64)
    last = weights.shape[-1] - 1 - np.argmax(weights[..., ::-1] > 0, axis=-1)
    ends = np.where(np.arange(weights.shape[-1]) >= last[..., None], totals[..., None], ends)
    return np.diff(ends, axis=-1, prepend=0)
