"""Which values of Hydra's own part of a config, `hydra.*`, are refused: those that name a stranger's code, and some on
which Hydra or a plugin would end with a traceback.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedlab_runner.config import secrets

# Classes that Hydra may build: its own, those of installed plugins, Optuna's samplers, and this package's callback. A
# class is named for its use and stands in a module of a plugin, not in what that has imported, such as `logging`.
_BUILT = re.compile(
    r"(hydra\._internal\.core_plugins\.[a-z]\w*|hydra_plugins(\.[a-z]\w*){1,2})\.[A-Z]\w*(Launcher|Sweeper|Callback)"
    r"|hydra\.experimental\.callbacks\.[A-Z]\w*Callback|optuna\.samplers\.[A-Z]\w*Sampler"
    r"|fedlab_runner\.sweep\.callback\.SweepCallback"
)
# Parts of a config from which Hydra builds objects. They may hold only these interpolations, which give texts.
_BUILT_FROM = re.compile(r"hydra\.(callbacks|launcher|sweeper|job_logging|hydra_logging)(\..*)?")
_TEXTS = re.compile(
    r"\$\{(hydra\.(job\.(name|num|id|override_dirname)|run\.dir|sweep\.(dir|subdir)|runtime\.(cwd|output_dir))"
    r"|oc\.env:[\w,]+|now:[^${}]*|direction_of:\$\{evaluation\.metric\})\}"
)
_LOGGED = {  # classes that Python's logging may build
    *("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler", "logging.handlers.RotatingFileHandler"),
    *("fedlab_runner.tracking.log_lines.LineHandler", "fedlab_runner.tracking.log_lines.LogFile"),
    *("rich.logging.RichHandler", "colorlog.ColoredFormatter", "ext://sys.stdout", "ext://sys.stderr"),
}
# Logging imports what the scheme of a value names, as ext://sys.stdout. An interpolation must not stand for a scheme.
_SCHEME = re.compile(r"[a-z]+://")
_NO_SCHEME = re.compile(r"\$\{hydra\.runtime\.(output_dir|cwd)\}/|[a-z]*[^a-z:$]")
_COUNT = re.compile(r"[1-9]\d*|.*\$\{.*")  # a whole number, or one that an interpolation gives


def faults(cfg: DictConfig) -> list[str]:
    """One line for each refused value; nothing is resolved or imported."""
    values: Any = OmegaConf.to_container(cfg, resolve=False)
    if held := secrets.faults(secrets.leaves(values, "")):
        return held  # no other faults: their lines show values, maybe the key
    hydra = values.get("hydra")
    if not isinstance(hydra, Mapping):
        return [] if hydra is None else ["hydra must be a mapping"]
    return [line for name, value in secrets.leaves(hydra, "hydra") for line in _of(name, str(value))]


def _of(name: str, value: str) -> Iterator[str]:
    """The faults of a value of `hydra.*`."""
    last = name.rpartition(".")[2]
    if last == "_target_" and not _BUILT.fullmatch(value):
        yield f"{name} must be a class of Hydra or of an installed plugin of Hydra, got {value!r}"
    if _BUILT_FROM.fullmatch(name) and ("${" in _TEXTS.sub("", value) or "\\$" in value):
        yield f"{name} must hold no interpolation but of folders, names and the environment, got {value!r}"
    if name.startswith("hydra.job.env_set.") and name.count(".") == 3:
        yield f"{name} cannot be set: export the variable before the command instead"
    if name == "hydra.runtime.output_dir" and value != "???":
        yield f"{name} cannot be set: it is hydra.run.dir or hydra.sweep.dir and subdir, got {value!r}"
    if name == "hydra.sweeper.custom_search_space" and value != "None":
        yield f"{name} must be null, as it names a function that is called, got {value!r}"
    if name in ("hydra.sweeper.n_trials", "hydra.sweeper.n_jobs") and not _COUNT.fullmatch(value):
        yield f"{name} must be a whole number >= 1, got {value}"
    if name == "hydra.launcher.n_jobs" and value == "0":  # joblib's
        yield f"{name} must be a number of jobs at a time, or -1 for one on each core, got 0"
    if name in ("hydra.launcher", "hydra.sweeper"):  # no mapping
        yield f"{name} is a group: write {name.replace('.', '/')}={value}"
    if name == "hydra.sweeper.direction.0":  # Optuna's several objectives
        yield "hydra.sweeper.direction must be minimize or maximize, as a run has one objective, got a list"
    if name.startswith(("hydra.job_logging.", "hydra.hydra_logging.")):
        if (last in ("()", "class") or _SCHEME.match(value)) and value not in _LOGGED:
            yield f"{name} must be a handler of Python's logging, got {value!r}"
        if "${" in value and not _NO_SCHEME.match(value):
            yield f"{name} must not begin with an interpolation but ${{hydra.runtime.output_dir}}/, got {value!r}"
        if ".." in name:  # the key "." sets attributes of what was built
            yield f"{name} is not a key"
        if last == "filename" and not value.endswith(".log"):
            yield f"{name} must end in .log, got {value!r}"
