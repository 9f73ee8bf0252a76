"""Lets configs name the modules of a folder that the person who verifies gives, as `fedlab --config-dir` does."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from fedlab_runner.config.build import register_resolvers
from fedlab_runner.config.composing import composed
from fedlab_runner.utils.errors import UserError


@contextmanager
def allowed(folder: Path) -> Iterator[None]:
    """Within the block `config.targets` accepts modules of this folder. Raises UserError unless it is a folder."""
    if not folder.is_dir():
        raise UserError(f"--config-dir must be a folder, got {folder}")
    register_resolvers()
    cfg: Any = composed([f"hydra.searchpath=['file://{folder.absolute()}']"], with_hydra=True)
    OmegaConf.set_readonly(cfg.hydra, False)
    cfg.hydra.runtime.cwd = os.getcwd()
    HydraConfig.instance().set_config(cfg)
    try:
        yield
    finally:
        HydraConfig.instance().cfg = None
