"""The contract of executors, which carry out the local work of a cohort."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work

OfOne = Callable[..., tuple[Tensor, ...]]  # (row of each tensor) -> its results, for `Executor.map_models`


class Parallel(NamedTuple):
    """What local training has in memory at once on one machine."""

    clients: int  # that train
    activations: int  # how many times those of one minibatch
    apart: int  # of the clients, whose models train outside of the cohort's tensor

    def times(self, processes: int, clients: int) -> "Parallel":
        """What so many processes have at once, which share `clients` clients."""
        shared = min(clients, processes * self.clients)
        activations, apart = (-(-n * shared // max(1, self.clients)) for n in (self.activations, self.apart))
        return Parallel(shared, activations, apart)


class Executor(Protocol):
    """An executor trains the cohort: one client after another, vmapped, in worker processes, or as CUDA graphs.

    Its result is a function of its arguments. How it groups and orders clients changes a result by rounding at most,
    and two calls with the same arguments give the same bits. It leaves the global generators as they were
    (`Work.kept_globals`).
    """

    def bind_run(self, folder: Path, rounds: int) -> "Executor":
        """The executor of a run of `rounds` rounds, which may write its own files into the run folder.

        The run calls this once, before the first round, and trains with the returned executor.
        """
        ...

    def check(self, family: ModelFamily) -> None:
        """Raises UserError, before a run, if models of this family cannot be trained on the family's device."""
        ...

    def parallel(self, clients: int) -> Parallel:
        """How many of `clients` clients train at the same time on this machine, for the estimate of memory."""
        ...

    def num_processes(self) -> int:
        """How many processes may share work other than local training, such as mutual learning; 1: only this one."""
        ...

    def compiles(self, family: ModelFamily, kind: str, steps: int, operations: float, round: int) -> bool:
        """Whether the server's steps of this `kind` are compiled: so many steps a round, from this round on, of so many
        floating-point operations together. The answer for a kind stays for the whole run.
        """
        ...

    def empty(self, rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised tensor [rows, columns], for `start` or `per_client`: memory that `train` need not copy."""
        ...

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        """The models after local training [K, D], and each client's mean minibatch loss over its last epoch [K].

        K may be 0. A client without steps keeps its start, and its loss is 0. Both tensors are on the family's device.
        The caller may write into the models; the executor reuses their memory when nobody holds them any more. Models
        that are not finite come back as they are. Raises UserError if the device or the platform cannot carry out this
        kind of work, and whatever `loss`, `perturb`, `correct` and `per_step` raise.
        """
        ...

    def map_models(self, family: ModelFamily, function: OfOne, *rows: Tensor, fill: bool = False) -> list[Tensor]:
        """Applies `function`, written for one model of the family, to each row of tensors [n, ...], and stacks the
        results [n, ...].

        With `fill=True` the executor may pad calls to one size. The caller promises that a row's bits do not depend on
        the number of rows in a call.
        """
        ...
