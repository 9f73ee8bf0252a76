"""Configs composed as the command line composes them, shrunk to fractions of a second."""

import pickle
from functools import cache
from pathlib import Path

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from fedlab_runner.config import composing
from fedlab_runner.config.build import conf_dir, register_resolvers

SMALL = (
    "model=logistic",
    "num_clients=12",
    "participation.cohort_size=3",
    "local.epochs=1",
    "logger=none",
    "device=cpu",
)


def composed(*overrides: str, small: bool = True, with_hydra: bool = False) -> DictConfig:
    """What `fedlab` would compose. Choices are composed once and kept, and values set in a copy: to compose takes as
    long as a small round. Hydra's part, if asked for, does not know of the values.
    """
    overrides = (*(SMALL if small else ()), *overrides)
    choices = tuple(override for override in overrides if _is_choice(override))
    return with_values(
        pickle.loads(_composed(*choices, with_hydra=with_hydra)), *(each for each in overrides if each not in choices)
    )


def with_values(cfg: DictConfig, *overrides: str) -> DictConfig:
    """A composed config in which these values are set, as Hydra does it once it has composed the choices."""
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(list(overrides)), cfg)
    return cfg


def _is_choice(override: str) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    return key.startswith("hydra") or (conf_dir() / key.partition("@")[0]).is_dir()


@cache
def _composed(*choices: str, with_hydra: bool) -> bytes:
    register_resolvers()
    return pickle.dumps(composing.composed(choices, with_hydra))


def files(folder: Path) -> dict[str, bytes]:
    """What two runs of one config must have in common, to the byte."""
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "summary.json", "partition.csv")}
