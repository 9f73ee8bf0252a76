"""Chooses the device of a run's models: the CPU, or a GPU of the machine."""

from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode


def device_of(asked: str) -> torch.device:
    """The device for the key `device`: auto is a GPU if there is one.

    On a machine with several GPUs the jobs of a sweep take the GPUs in turn, by their numbers, unless the key names
    one.
    """
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda" and (job := _job_number()) is not None and (count := torch.cuda.device_count()) > 1:
        return torch.device("cuda", job % count)
    return torch.device(asked)


def _job_number() -> int | None:
    """The number of this job in its sweep, from 0; None outside of a sweep."""
    hydra: Any = HydraConfig.instance().cfg
    if hydra is None or hydra.hydra.mode != RunMode.MULTIRUN:
        return None
    return int(hydra.hydra.job.num)
