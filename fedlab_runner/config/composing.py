"""Composes this package's config by Hydra, in programs too that use Hydra themselves."""

import threading
from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from fedlab_runner.config import hydra_loader
from fedlab_runner.config.build import conf_dir

_TURN = threading.RLock()  # of the thread that composes: Hydra has one state for the process


def composed(overrides: Sequence[str], with_hydra: bool = False) -> DictConfig:
    """The config of these overrides, with Hydra's part if asked for. The program's own Hydra is afterwards as it was.

    Raises Hydra's errors, and UserError for what `fedlab` refuses in a config.
    """
    with _TURN:
        theirs = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with hydra_loader.checked(), initialize_config_dir(str(conf_dir()), version_base="1.3"):
                return compose("train", list(overrides), return_hydra_config=with_hydra)
        finally:
            GlobalHydra.instance().hydra = theirs  # Hydra has made another instance
