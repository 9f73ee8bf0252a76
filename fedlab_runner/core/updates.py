"""Updates that arrive at the server, on time or late."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fedlab_runner.core.aggregation import Aggregation
from fedlab_runner.core.metric_names import COUNT_PREFIX
from fedlab_runner.utils.contract import is_named, require

Upload = TypeVar("Upload", bound=tuple[Tensor, ...])


class Updates(Generic[Upload]):
    """The A updates that arrive at the server in this round, the oldest first, then in the order of sampling."""

    def __init__(
        self,
        upload: Upload,
        ids: Tensor,
        num_examples: Tensor,
        staleness: Tensor,
        aggregation: Aggregation | None = None,
        known: Collection[str] = (),
        clients: Tensor | None = None,
        averaged: list[bool] | None = None,
    ) -> None:
        """`aggregation` acts in the place of means (None: they are means). It compares the fields of the upload that
        are not in `known`. `clients` [A]: how many clients a row stands for (None: each for one), as `RunningSums`
        has them; then nothing but means, sums and the number of the updates has a meaning. `averaged` gets an entry
        for each mean that is taken.
        """
        self.upload = upload  # each tensor [A, ...]
        self.ids = ids  # [A] clients
        self.num_examples = num_examples  # [A]
        self.staleness = staleness  # [A], rounds from dispatch to arrival
        self._aggregation, self._known, self._clients = aggregation, known, clients
        self._weights: dict[bool, Tensor] = {}  # of the aggregation, by `uniform`
        self._averaged = [] if averaged is None else averaged

    def __len__(self) -> int:
        return len(self.ids) if self._clients is None else int(self._clients.sum())

    @property
    def ages(self) -> Tensor:
        """The staleness of each client's update."""
        return self.staleness if self._clients is None else self.staleness.repeat_interleave(self._clients)

    def select(self, rows: Tensor) -> "Updates[Upload]":
        """Some of the updates, by a mask [A] or indices."""
        upload = like(self.upload, (t[rows] for t in self.upload))
        ids, num_examples, staleness = self.ids[rows], self.num_examples[rows], self.staleness[rows]
        clients = None if self._clients is None else self._clients[rows]
        return Updates(upload, ids, num_examples, staleness, self._aggregation, self._known, clients, self._averaged)

    def mean(self, rows: Tensor, *, uniform: bool = False) -> Tensor:
        """The mean of rows [A, ...], weighted by numbers of examples or `uniform`; zero if A is 0. The mean of rows in
        fewer than 32 bits, or of whole numbers, is in float32.

        The run's aggregator may take something else for the mean. It decides once for all rows of these updates.
        """
        self._averaged.append(True)
        rows = in_full(rows)
        if not len(self):
            return rows.new_zeros(rows.shape[1:])
        ones = torch.ones_like(self.num_examples) if self._clients is None else self._clients
        weights = ones if uniform else self.num_examples
        if self._aggregation is not None:
            if uniform not in self._weights:
                self._weights[uniform] = self._aggregation.weights(weights.double() / weights.sum(), self._compared())
            return self._aggregation.combine(rows, self._weights[uniform])
        mean: Tensor = torch.tensordot(weights.to(rows.dtype) / weights.sum(), rows, 1)
        return mean

    def sum(self, rows: Tensor) -> Tensor:
        """The sum of rows [A, ...]: A times their `uniform` mean, which the run's aggregator may replace."""
        plain = self._aggregation is None and self._clients is None
        return rows.sum(0) if plain else len(self) * self.mean(rows, uniform=True)

    def _compared(self) -> list[Tensor]:
        """The vectors that clients have sent, each [A, n]; numbers that they have sent are left out."""
        fields = zip(names(self.upload), self.upload, strict=True)
        return [rows for name, rows in fields if name not in self._known and rows.dim() == 2]


class PendingUpdate(NamedTuple):
    """One late update on its way."""

    client: int
    dispatched: int  # round
    num_examples: int
    upload: tuple[Tensor, ...]
    loss: float | None  # of the trained model on the client's examples, where clients report it


def in_full(rows: Tensor) -> Tensor:
    """The rows, or in float32 what is sent in fewer bits or as whole numbers, whose sums would not be right in it."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def like(upload: Upload, tensors: Iterable[Tensor]) -> Upload:
    """An upload of the same class with other tensors."""
    return cast(Upload, cast(Any, type(upload))(*tensors))


def gathered(first: Sequence[Tensor], rows: Tensor, index: Tensor) -> Tensor:
    """Tensors [...] and behind them the rows [K, ...] of an index [k], in one copy."""
    found = rows.new_empty(len(first) + len(index), *rows.shape[1:])
    if first:
        torch.stack([row.to(rows.dtype) for row in first], out=found[: len(first)])
    torch.index_select(rows, 0, index, out=found[len(first) :])
    return found


def names(upload: tuple[Tensor, ...]) -> tuple[str, ...]:
    """The names of an upload's fields."""
    return cast(tuple[str, ...], cast(Any, upload)._fields)


def staleness_metrics(staleness: Tensor) -> dict[str, float]:
    """Mean, maximum and counts of the staleness of updates [A], at least one."""
    counts = enumerate(torch.bincount(staleness).tolist())
    return {
        "late/staleness_mean": float(staleness.double().mean()),
        "late/staleness_max": int(staleness.max()),
        **{f"{COUNT_PREFIX}{age}": count for age, count in counts if count},
    }


def sent(algorithm: Any, upload: Any, clients: int) -> Any:
    """What clients send. Raises UserError where it breaks the contract of `ServerAlgorithm.client_update`."""
    right = is_named(upload) and all(isinstance(t, Tensor) and t.shape[:1] == (clients,) for t in upload)
    require(right, algorithm, "client_update", f"a NamedTuple of tensors [{clients}, ...]", upload)
    known = list(algorithm.known)
    require({*known} <= {*names(upload)}, algorithm, "known", f"fields of {type(upload).__name__}", known)
    real = not any(t.is_complex() for t in upload)  # a mean, and the bytes, would be those of the real parts
    require(real, algorithm, "client_update", "tensors of real numbers (torch.view_as_real(x))", upload)
    free = not any(t.requires_grad for t in upload)
    require(free, algorithm, "client_update", "tensors without a gradient's history (x.detach())", upload)
    return upload


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in a value, and in its tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)
