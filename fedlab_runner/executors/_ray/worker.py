"""What a worker process of a Ray cluster does: it trains a share of a round's clients, or sums a part's updates."""

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
MAX_KEPT_OBJECTS = 8  # that a worker process keeps for later rounds


class Round(NamedTuple):
    """What all clients of a round share, in the object store."""

    job: Ref  # the inner executor and the Work of no clients, or a PartsJob, with references to the lasting objects
    lasting: list[Ref]  # the clients' data, the model family
    block: Block | None  # the cohort's models in the memory of the run's machine


def train_share(round: Round, share: ClientShare, device: str = "cpu") -> tuple[np.ndarray | None, np.ndarray]:
    """Trains a share in a worker process: models [k, D], or None if the block has them, and mean losses [k]."""
    inner, whole = _job(round, torch.device(device))
    y, losses = trained(whole, inner, share)
    if round.block is None or (models := round.block.models()) is None:
        return y.cpu().numpy(), losses.cpu().numpy()
    models[share.rows] = y.cpu()
    return None, losses.cpu().numpy()


def sum_part(round: Round, clients: PartClients, device: str = "cpu") -> tuple[Told, None]:
    """Carries out a part of the cohort in a worker process, and sends its sums."""
    inner, job = _job(round, torch.device(device))
    metrics = _metrics.setdefault(job.family, RoundMetrics())
    return job.carry_out(inner, metrics, clients).on(torch.device("cpu")), None


_metrics: WeakKeyDictionary[ModelFamily, RoundMetrics] = WeakKeyDictionary()  # which know what a step costs


def _job(round: Round, at: torch.device) -> Any:
    """The round's job on a device: the inner executor, and the work of no clients or the job for parts."""
    torch.set_num_threads(1)
    keep_freed_memory()
    client_data = _received(round.lasting[0], lambda packed: packed.client_data(at))
    family = _received(round.lasting[1], lambda content: unpacked_family(content, at))
    return _received(round.job, lambda content: unpacked_work(content, client_data, family, at))


_kept: OrderedDict[str, Any] = OrderedDict()  # by reference: the objects that this worker process keeps


def _received(ref: Ref, unpack: Callable[[Any], Any]) -> Any:
    name = ref.hex()
    if name not in _kept:
        _kept[name] = unpack(importlib.import_module("ray").get(ref))
        if len(_kept) > MAX_KEPT_OBJECTS:
            _kept.popitem(last=False)
    _kept.move_to_end(name)
    return _kept[name]
