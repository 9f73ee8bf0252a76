"""Writes the composed config of a run into its folder `.hydra`.

`train` calls `write` at the start of each job. It replaces Hydra's own record, which would follow links.
"""

from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedlab_runner.utils.files import append_line, update_text

FOLDER = ".hydra"  # in the run's folder
EXPERIMENTS = f"{FOLDER}/experiments.txt"  # the experiments of the commands that asked for the run, one a line


def overrides_of(hydra: Any, part: str = "task") -> list[str]:
    """The overrides of a command or a job in Hydra's part of a config, as texts: their interpolations stay."""
    texts: Any = OmegaConf.to_container(hydra.overrides[part], resolve=False)
    return [*map(str, texts)]


def write(cfg: DictConfig) -> None:
    """Writes the composed config, Hydra's own part, and the overrides of the current job, and notes the experiment."""
    hydra: Any = HydraConfig.instance().cfg
    run_folder = Path(hydra.hydra.runtime.output_dir)
    folder = run_folder / FOLDER
    for name, part in {"config": cfg, "hydra": hydra, "overrides": hydra.hydra.overrides.task}.items():
        update_text(folder / f"{name}.yaml", OmegaConf.to_yaml(part))
    experiment, noted = hydra.hydra.runtime.choices.get("experiment"), run_folder / EXPERIMENTS
    if experiment and not (noted.is_file() and experiment in noted.read_text(errors="replace").splitlines()):
        append_line(noted, experiment)
