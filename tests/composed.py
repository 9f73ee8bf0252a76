"""Configs composed as the command line composes them, shrunk to fractions of a second."""

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
    register_resolvers()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose("train", [*(SMALL if small else ()), *overrides])


def files(folder: Path) -> dict[str, bytes]:
    """What two runs of one config must have in common, to the byte."""
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "summary.json", "partition.csv")}
