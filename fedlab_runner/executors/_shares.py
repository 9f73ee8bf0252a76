"""A cohort's work as processes that are no forks get it: the shared work once a round, and a client's own tensors with
the client.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.additions_trial import draws, try_additions
from fedlab_runner.core.own_values import Columns, Own
from fedlab_runner.core.work import Work
from fedlab_runner.executors._chunks import Chunk, ChunkedExecutor
from fedlab_runner.executors._sending import dumped


class ClientShare(NamedTuple):
    """Some of the clients, with the tensors of their own."""

    rows: np.ndarray  # [k] of the cohort
    ids: np.ndarray  # [k]
    num_steps: np.ndarray  # [k]
    start: np.ndarray | Tensor | None  # [k, D]; None: they start from the round's model
    own_start: tuple[Columns, list[np.ndarray | Tensor]] | None  # an `Own`
    per_client: tuple[np.ndarray | Tensor, ...]  # each [k, ...]
    chunks: list[Chunk]  # rows of the share


def packed_work(work: Work, inner: ChunkedExecutor) -> bytes:
    """The inner executor and the work of no clients, with references in the place of its data and its family."""
    return packed_job(work.select(np.empty(0, np.int64)), inner, (work.client_data, work.family))


def packed_job(job: Any, inner: ChunkedExecutor, lasting: Sequence[object]) -> bytes:
    """The inner executor and a job, with references in the place of what is `lasting`."""
    return dumped((inner, job), lasting)


def shares_of(work: Work, chunks: list[Chunk], count: int) -> list[ClientShare]:
    """The chunks (longest first) divided into `count` shares of nearly equal numbers of local steps."""
    loads, dealt = np.zeros(count), [list[Chunk]() for _ in range(count)]
    for chunk in chunks:
        least = int(loads.argmin())
        loads[least] += work.num_steps[chunk.rows].sum()
        dealt[least].append(chunk)
    return [_share(work, dealt[i]) for i in np.argsort(-loads, kind="stable").tolist() if dealt[i]]


def divided(inner: ChunkedExecutor, work: Work, count: int) -> list[ClientShare]:
    """The cohort in up to `count` shares of nearly equal work; clients that would train in one call are divided too.

    Where their steps draw random numbers, as with dropout, they are not: these are those of a call.
    """
    chunks = inner.chunks(work)
    if len(chunks) < count and not draws(work):
        parts = (Chunk(each.rows[part::count], each.frozen_norm) for each in chunks for part in range(count))
        chunks = sorted((part for part in parts if len(part.rows)), key=lambda part: -work.num_steps[part.rows].sum())
    return shares_of(work, chunks, min(count, len(chunks)))


def _share(work: Work, chunks: list[Chunk]) -> ClientShare:
    rows = np.concatenate([chunk.rows for chunk in chunks])
    part, ends = work.select(rows), np.cumsum([len(chunk.rows) for chunk in chunks]).tolist()
    own = [Chunk(np.arange(end - len(p.rows), end), p.frozen_norm) for p, end in zip(chunks, ends, strict=True)]
    start = _sent(part.start) if part.start.dim() == 2 else None
    home = part.own_start
    at_home = None if home is None else (home.columns, [_sent(row) for row in home.rows])
    per_client = tuple(_sent(t) for t in part.per_client)
    return ClientShare(rows, part.ids, part.num_steps, start, at_home, per_client, own)


def _sent(tensor: Tensor) -> np.ndarray | Tensor:
    """An array, which needs no copy on the way, unless NumPy lacks the type."""
    return tensor.cpu() if tensor.dtype == torch.bfloat16 else tensor.cpu().numpy()


def _copied(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    return values.to(device, copy=True) if isinstance(values, Tensor) else torch.tensor(values, device=device)


def trained(whole: Work, inner: ChunkedExecutor, share: ClientShare) -> tuple[Tensor, Tensor]:
    """The models [k, D] and mean losses [k] of a share's clients, on the device of the work."""
    family, at_home = whole.family, share.own_start
    device = family.device
    work = replace(
        whole,
        ids=share.ids,
        num_steps=share.num_steps,
        start=whole.start if share.start is None else _copied(share.start, device),
        own_start=at_home and Own(at_home[0], [_copied(row, device) for row in at_home[1]]),
        per_client=tuple(_copied(t, device) for t in share.per_client),
    )
    y = torch.empty(len(share.ids), family.size, dtype=family.dtype, device=device)
    losses = y.new_zeros(len(share.ids))
    try_additions(work)  # which tells this process what is known where the run is
    with work.kept_globals():
        for chunk in share.chunks:
            inner.train_chunk(work, chunk, y, losses)
    return y, losses
