"""Work of a round besides local training that processes of other machines can share, such as mutual learning."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedlab_runner.core.executor import Executor
from fedlab_runner.core.model_family import ModelFamily

# (places of some rows among all, these rows) -> all rows [M, ...], of which other processes compute the others
Complete = Callable[[Tensor, Tensor], Tensor]


class JointPart(NamedTuple):
    """A part of the work."""

    places: Tensor  # [m] int64, of its models among all M
    models: Sequence[Any]  # Tensor [k, D_a] each; on the way to another process ndarray

    def as_arrays(self) -> "JointPart":
        """This part with arrays, for the way to another process."""
        return self._replace(models=[models.cpu().numpy() for models in self.models])

    def on(self, device: torch.device) -> "JointPart":
        """This part, whose models are arrays, with tensors on a device."""
        return self._replace(models=[torch.tensor(models, device=device) for models in self.models])


class JointSize(NamedTuple):
    """How much there is to do."""

    operations: float  # floating-point operations
    steps: int  # in each of which a part needs the rows of all others; 0: no part needs another
    values: int  # that processes of other machines get and send
    parts: int  # into which it can be divided at most


class JointJob(Protocol):
    """What all parts share. It can be pickled."""

    @property
    def family(self) -> ModelFamily:
        """A family of the models, on the run's device."""
        ...

    @property
    def what(self) -> str:
        """The name of the work, in messages."""
        ...

    @property
    def lasting(self) -> Sequence[object]:
        """Clients' data, model families and tensors of the job that stay for the whole run."""
        ...

    def carry_out(self, executor: Executor, part: JointPart, complete: Complete) -> Sequence[Tensor]:
        """The results of a part. Its bits do not depend on how the work is divided."""
        ...


@runtime_checkable
class JointWorkers(Protocol):
    """An executor with processes on other machines, which can share such work."""

    def share(
        self, job: JointJob, divide: Callable[[int], Sequence[JointPart]], size: JointSize
    ) -> list[tuple[Tensor, Sequence[Tensor]]] | None:
        """The places of each part, into so many of which `divide` divides the work, and its results; None if this
        machine is as fast alone.
        """
        ...


def alone(places: Tensor, rows: Tensor) -> Tensor:
    """`Complete` for a process that has all rows."""
    return rows
