"""Updates that arrive at the server, on time or late."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from fedlab_runner.core.metric_names import COUNT_PREFIX

Upload = TypeVar("Upload", bound=tuple[Tensor, ...])


class Updates(Generic[Upload]):
    """The A updates that arrive at the server in this round, the oldest first, then in the order of sampling."""

    def __init__(self, upload: Upload, ids: Tensor, num_examples: Tensor, staleness: Tensor) -> None:
        self.upload = upload  # each tensor [A, ...]
        self.ids = ids  # [A] clients
        self.num_examples = num_examples  # [A]
        self.staleness = staleness  # [A], server steps between dispatch and arrival

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Tensor) -> "Updates[Upload]":
        """Some of the updates, by a mask [A] or indices."""
        upload = like(self.upload, (t[rows] for t in self.upload))
        return Updates(upload, self.ids[rows], self.num_examples[rows], self.staleness[rows])

    def mean(self, rows: Tensor, *, uniform: bool = False) -> Tensor:
        """The mean of rows [A, ...], weighted by numbers of examples or `uniform`; zero if A is 0."""
        if not len(self):
            return rows.new_zeros(rows.shape[1:])
        weights = torch.ones_like(self.num_examples) if uniform else self.num_examples
        mean: Tensor = torch.tensordot(weights.to(rows.dtype) / weights.sum(), rows, 1)
        return mean


class PendingUpdate(NamedTuple):
    """One late update on its way."""

    client: int
    dispatched: int  # round
    num_examples: int
    upload: tuple[Tensor, ...]
    loss: float | None  # of the trained model on the client's examples, where clients report it


def like(upload: Upload, tensors: Iterable[Tensor]) -> Upload:
    """An upload of the same class with other tensors."""
    return cast(Upload, cast(Any, type(upload))(*tensors))


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


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in a value, and in its tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)
