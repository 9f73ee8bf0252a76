"""What a worker process of a Ray cluster does: it trains a share of a round's clients."""

import importlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from fedlab_runner.executors._blocks import Block
from fedlab_runner.executors._shares import ClientShare, trained, unpacked_family, unpacked_work
from fedlab_runner.utils.system import keep_freed_memory

Ref = Any  # a reference to an object in the cluster's object store
MAX_KEPT_OBJECTS = 8  # that a worker process keeps for later rounds


class Round(NamedTuple):
    """What all clients of a round share, in the object store."""

    job: Ref  # the inner executor and the Work of no clients, pickled, with references to the lasting objects
    lasting: list[Ref]  # the clients' data, the model family
    block: Block | None  # the cohort's models in the memory of the run's machine


def train_share(round: Round, share: ClientShare, device: str = "cpu") -> tuple[np.ndarray | None, np.ndarray]:
    """Trains a share in a worker process: models [k, D], or None if the block has them, and mean losses [k]."""
    torch.set_num_threads(1)
    keep_freed_memory()
    at = torch.device(device)
    client_data, family = (
        _received(round.lasting[0], lambda packed: packed.client_data(at)),
        _received(round.lasting[1], lambda content: unpacked_family(content, at)),
    )
    inner, whole = _received(round.job, lambda content: unpacked_work(content, client_data, family, at))
    y, losses = trained(whole, inner, share)
    if round.block is None or (models := round.block.models()) is None:
        return y.cpu().numpy(), losses.cpu().numpy()
    models[share.rows] = y.cpu()
    return None, losses.cpu().numpy()


_kept: OrderedDict[str, Any] = OrderedDict()  # by reference: the objects that this worker process keeps


def _received(ref: Ref, unpack: Callable[[Any], Any]) -> Any:
    name = ref.hex()
    if name not in _kept:
        _kept[name] = unpack(importlib.import_module("ray").get(ref))
        if len(_kept) > MAX_KEPT_OBJECTS:
            _kept.popitem(last=False)
    _kept.move_to_end(name)
    return _kept[name]
