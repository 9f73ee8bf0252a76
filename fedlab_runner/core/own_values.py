"""Values that are each client's own, at the same columns of all models.

This module copies them in runs of columns: picking columns one by one takes several times longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Columns:
    """Some columns of models [.., D], as runs of consecutive columns."""

    runs: tuple[slice, ...]

    @staticmethod
    def of(mask: Tensor) -> "Columns":
        """The columns where a mask [D] is true."""
        steps = np.diff(mask.cpu().numpy().astype(np.int8), prepend=0, append=0)
        ends = zip(np.flatnonzero(steps == 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True)
        return Columns(tuple(slice(begin, end) for begin, end in ends))

    @cached_property
    def _lengths(self) -> list[int]:
        return [run.stop - run.start for run in self.runs]

    @property
    def count(self) -> int:
        """h, the number of columns."""
        return sum(self._lengths)

    def get(self, model: Tensor) -> Tensor:
        """The values [h] of a model [D]; a view of the model if there is one run."""
        return (
            model[self.runs[0]] if len(self.runs) == 1 else torch.cat([model[:0], *(model[run] for run in self.runs)])
        )

    def put(self, model: Tensor, values: Tensor) -> None:
        """Writes values [h] into a model [D]."""
        for run, part in zip(self.runs, torch.split(values, self._lengths), strict=True):
            model[run] = part

    def copy(self, models: Tensor, source: Tensor) -> None:
        """Writes into models [K, D] the values of other models, `source` [D] or [K, D]."""
        for run in self.runs:
            models[:, run] = source[..., run]


class Own(NamedTuple):
    """The values that each of K clients has at the same columns."""

    columns: Columns
    rows: Sequence[Tensor]  # [K], each [h]; read only

    def select(self, rows: np.ndarray) -> "Own":
        """The values of some of the clients, by their rows [k]."""
        return Own(self.columns, [self.rows[row] for row in rows.tolist()])
