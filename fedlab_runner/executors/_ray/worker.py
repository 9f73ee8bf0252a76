"""A worker of a Ray cluster: it trains a share of a round's clients, sums a part's updates, or does joint work."""

import importlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.joint_work import Complete, JointPart, alone
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.parts import PartClients, Told
from fedlab_runner.core.round_metrics import RoundMetrics
from fedlab_runner.executors import _lasting
from fedlab_runner.executors._blocks import Block
from fedlab_runner.executors._ray.exchange import Host, Rendezvous, exchange
from fedlab_runner.executors._sending import loaded
from fedlab_runner.executors._shares import ClientShare, trained
from fedlab_runner.utils.system import keep_freed_memory
from fedlab_runner.utils.torch_settings import take_usual_settings

Ref = Any  # a reference to an object in the cluster's object store


class Round(NamedTuple):
    """What all clients of a round share, in the object store."""

    job: Ref  # the inner executor and the Work of no clients, a PartsJob or a JointJob, which refers to `lasting`
    lasting: list[Ref]  # the clients' data and the model family, or what else stays for the run
    in_use: Collection[str]  # the references, in hexadecimal, to all that later rounds may need
    block: Block | None  # the cohort's models in the memory of the run's machine


class ClusterWorker:
    """Trains for one run, in a process of its own."""

    def __init__(self) -> None:
        self._metrics: WeakKeyDictionary[ModelFamily, RoundMetrics] = WeakKeyDictionary()  # which know a step's cost
        self._kept: dict[str, Any] = {}  # lasting objects by reference, for later rounds
        self._job: tuple[str, Any] = "", None  # the last job and its reference
        self._host: Host | None = None  # where the other workers of joint work come

    def node(self) -> str:
        """The node that it is on."""
        return str(importlib.import_module("ray").get_runtime_context().get_node_id())

    def train_share(self, round: Round, share: ClientShare, device: str) -> tuple[np.ndarray | None, np.ndarray]:
        """The models of a share's clients [k, D], or None if the block has them, and their mean losses [k]."""
        inner, whole = self._received(round, torch.device(device))
        y, losses = trained(whole, inner, share)
        if round.block is None or (models := round.block.models()) is None:
            return y.cpu().numpy(), losses.cpu().numpy()
        models[share.rows] = y.cpu()
        return None, losses.cpu().numpy()

    def sum_part(self, round: Round, clients: PartClients, device: str) -> tuple[Told, None]:
        """Carries out a part of the cohort: its sums."""
        inner, job = self._received(round, torch.device(device))
        metrics = self._metrics.setdefault(job.family, RoundMetrics())
        return job.carry_out(inner, metrics, clients).on(torch.device("cpu")), None

    def joint_part(self, round: Round, part: JointPart, device: str) -> tuple[list[np.ndarray], None]:
        """The results of a part of joint work that needs no other part."""
        return self._jointly(round, part, device, alone), None

    def meet(self, host: str, workers: int) -> Rendezvous:
        """Where the other workers come, for joint work of which this worker will be the first."""
        self._host = Host(host, workers)
        return self._host.rendezvous

    def in_step(
        self, round: Round, part: JointPart, number: int, places: Sequence[Tensor], rendezvous: Rendezvous, device: str
    ) -> tuple[list[np.ndarray], None]:
        """The results of part `number` of joint work, whose parts have the rows at `places`. Raises PartnerLost."""
        host, self._host = self._host, None
        with exchange(number, places, host, rendezvous) as complete:
            return self._jointly(round, part, device, complete), None

    def _jointly(self, round: Round, part: JointPart, device: str, complete: Complete) -> list[np.ndarray]:
        inner, job = self._received(round, at := torch.device(device))
        part = part.on(at)
        return [found.detach().cpu().numpy() for found in job.carry_out(inner, part, complete)]

    def _received(self, round: Round, at: torch.device) -> Any:
        """The round's job on a device: the inner executor, and the work of no clients or the job for parts."""
        torch.set_num_threads(1)
        take_usual_settings()
        keep_freed_memory()
        self._kept = {name: thing for name, thing in self._kept.items() if name in round.in_use}
        lasting = [self._thing(ref, at) for ref in round.lasting]
        if self._job[0] != round.job.hex():
            self._job = round.job.hex(), loaded(_got(round.job), at, lasting)
        return self._job[1]

    def _thing(self, ref: Ref, at: torch.device) -> Any:
        if ref.hex() not in self._kept:
            self._kept[ref.hex()] = _lasting.unpacked(_got(ref), at)
        return self._kept[ref.hex()]


def _got(ref: Ref) -> Any:
    return importlib.import_module("ray").get(ref)
