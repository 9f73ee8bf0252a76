"""A worker of a Ray cluster: it trains a share of a round's clients, or sums a part's updates."""

import importlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.parts import PartClients, Told
from fedlab_runner.core.round_metrics import RoundMetrics
from fedlab_runner.executors._blocks import Block
from fedlab_runner.executors._shares import ClientShare, trained, unpacked_family, unpacked_work
from fedlab_runner.utils.system import keep_freed_memory

Ref = Any  # a reference to an object in the cluster's object store
MAX_KEPT_OBJECTS = 8  # that a worker keeps for later rounds


class Round(NamedTuple):
    """What all clients of a round share, in the object store."""

    job: Ref  # the inner executor and the Work of no clients, or a PartsJob, with references to the lasting objects
    lasting: list[Ref]  # the clients' data, the model family
    block: Block | None  # the cohort's models in the memory of the run's machine


class ClusterWorker:
    """Trains for one run, in a process of its own."""

    def __init__(self) -> None:
        self._metrics: WeakKeyDictionary[ModelFamily, RoundMetrics] = WeakKeyDictionary()  # which know a step's cost
        self._kept: OrderedDict[str, Any] = OrderedDict()  # objects of the store by reference, for later rounds

    def node(self) -> str:
        """The node that it is on."""
        return str(importlib.import_module("ray").get_runtime_context().get_node_id())

    def train_share(
        self, round: Round, share: ClientShare, device: str = "cpu"
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """The models of a share's clients [k, D], or None if the block has them, and their mean losses [k]."""
        inner, whole = self._job(round, torch.device(device))
        y, losses = trained(whole, inner, share)
        if round.block is None or (models := round.block.models()) is None:
            return y.cpu().numpy(), losses.cpu().numpy()
        models[share.rows] = y.cpu()
        return None, losses.cpu().numpy()

    def sum_part(self, round: Round, clients: PartClients, device: str = "cpu") -> tuple[Told, None]:
        """Carries out a part of the cohort: its sums."""
        inner, job = self._job(round, torch.device(device))
        metrics = self._metrics.setdefault(job.family, RoundMetrics())
        return job.carry_out(inner, metrics, clients).on(torch.device("cpu")), None

    def _job(self, round: Round, at: torch.device) -> Any:
        """The round's job on a device: the inner executor, and the work of no clients or the job for parts."""
        torch.set_num_threads(1)
        keep_freed_memory()
        client_data = self._received(round.lasting[0], lambda packed: packed.client_data(at))
        family = self._received(round.lasting[1], lambda content: unpacked_family(content, at))
        return self._received(round.job, lambda content: unpacked_work(content, client_data, family, at))

    def _received(self, ref: Ref, unpack: Callable[[Any], Any]) -> Any:
        name = ref.hex()
        if name not in self._kept:
            self._kept[name] = unpack(importlib.import_module("ray").get(ref))
            if len(self._kept) > MAX_KEPT_OBJECTS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]
