"""What Hydra composed for a run, in the folder `.hydra` of its own: Hydra itself would follow links."""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedlab_runner.utils.files import write_text_atomically

FOLDER = ".hydra"


def write(cfg: DictConfig) -> None:
    """Writes the config as it was composed, Hydra's own part of it, and the overrides of the current job."""
    hydra: Any = HydraConfig.instance().cfg
    folder = Path(hydra.hydra.runtime.output_dir) / FOLDER
    for name, part in {"config": cfg, "hydra": hydra, "overrides": hydra.hydra.overrides.task}.items():
        write_text_atomically(folder / f"{name}.yaml", OmegaConf.to_yaml(part))
