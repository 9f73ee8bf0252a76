"""Configs composed as the command line composes them, shrunk to fractions of a second."""

from copy import deepcopy
from functools import lru_cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from fedlab_runner.config import conf_dir, register_resolvers

SMALL = (
    "model=logistic",
    "num_clients=12",
    "participation.cohort_size=3",
    "local.epochs=1",
    "logger=none",
    "device=cpu",
)


def composed(*overrides: str, small: bool = True) -> DictConfig:
    return deepcopy(_composed(*(SMALL if small else ()), *overrides))


@lru_cache(maxsize=64)  # a test asks for the same again and again, and a config takes a tenth of a second
def _composed(*overrides: str) -> DictConfig:
    register_resolvers()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", list(overrides))


def files(folder: Path) -> dict[str, bytes]:
    """What two runs of one config must have in common, to the byte."""
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "summary.json", "partition.csv")}
