"""From a composed config to built components: check everything, then build; the only module that instantiates."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import hydra.errors
import hydra.utils
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedlab_runner import keys, schema
from fedlab_runner import run_id as run_ids
from fedlab_runner.errors import UserError

PRECISIONS = ("float32", "bfloat16", "float64")
NONFINITE = ("stop", "drop", "zero", "clip")  # what `guard.Guard` can do about an update that is not finite


@dataclass(frozen=True)
class Components:
    """What an experiment is made of: the top-level keys of a config, the groups (`Any`) as built objects."""

    rounds: int
    seed: int
    device: str
    num_clients: int
    precision: str
    threads: int | None
    train_fraction: float
    label_noise: float
    drop_empty: bool
    validation: float
    nonfinite: str
    algorithm: Any
    dataset: Any
    server_data: Any
    leash_data: Any
    probe_data: Any
    partition: Any
    delay: Any
    topology: Any
    model: Any
    supervision: Any
    augment: Any
    participation: Any
    local: Any
    lr_schedule: Any
    executor: Any
    evaluation: Any
    analysis: Any
    logger: Any
    checkpoint: Any
    pruning: Any


def conf_dir() -> Path:
    """The config folder: inside the package when installed, else beside it in the repository."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise UserError(f"no conf/train.yaml in {package} or {package.parent}: install the package again")


def register_resolvers() -> None:
    """Make `${run_id:}` known to OmegaConf. Needed in each process that composes, so importing `train` does it."""
    OmegaConf.register_new_resolver("run_id", _resolve_run_id, replace=True)


def run_id(cfg: DictConfig) -> str:
    """The name of the run's folder, `<algorithm>-<8 hex>`."""
    return run_ids.name(fingerprint(cfg))


def fingerprint(cfg: DictConfig) -> dict[str, Any]:
    """The resolved and converted config without the volatile keys: two configs with one fingerprint are one run."""
    values, errors = _converted(cfg)
    if errors:
        raise UserError("\n".join(errors))
    return run_ids.without_volatile(values)


def build(cfg: DictConfig) -> Components:
    """The built components; UserError with one line for each fault of the config, before any data is touched."""
    values, errors = _converted(cfg)
    errors += _setting_faults(values, errors) + _key_faults(cfg, values)
    built: dict[str, Any] = {}
    for path, node in _nodes(values, ""):
        if _has_fault(path, errors):
            continue
        try:
            built[path] = hydra.utils.instantiate(node, _convert_="all")
        except hydra.errors.InstantiationException as error:
            cause = error.__cause__ or error
            if not isinstance(cause, ValueError):
                raise cause from None  # a bug in a constructor: Hydra's wrapper would look like a fault of the config
            errors.append(f"{path}.{cause}")
    errors += _cross_faults(values, built, errors)
    if errors:
        raise UserError("\n".join(errors))
    return Components(**{key: built.get(key, value) for key, value in values.items()})


def _converted(cfg: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """The config as plain values of the right types, and its faults."""
    try:
        values: Any = OmegaConf.to_container(_without_hydra(cfg), resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        lines = str(error).splitlines()
        raise UserError(f"{error.full_key or 'the config'}: {lines[0]}") from error
    errors: list[str] = []
    converted = schema.convert_fields(values, get_type_hints(Components), "", errors)
    for key, hint in get_type_hints(Components).items():
        if hint is Any and key in values and not _is_node(values[key]):
            errors.append(f"{key} must be a choice: {key}=<one of the files in conf/{key}>, got {values[key]!r}")
    return converted, errors


def _key_faults(cfg: DictConfig, values: Mapping[str, Any]) -> list[str]:
    """Places of the config, of Hydra's part too, that hold a W&B key."""
    hydra = OmegaConf.select(cfg, "hydra.job.env_set")
    settings = {} if hydra is None else OmegaConf.to_container(hydra, resolve=False)
    return keys.faults([*keys.leaves(values, ""), *keys.leaves(settings, "hydra.job.env_set")])


def _without_hydra(cfg: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])


def _nodes(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All nodes with a `_target_`, inner ones first, so that the innermost fault is the one that is named."""
    if isinstance(value, list):
        for i, child in enumerate(value):
            yield from _nodes(child, f"{path}[{i}]")
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _nodes(child, schema.join(path, key))
    if _is_node(value):
        yield path, value


def _is_node(value: Any) -> bool:
    return isinstance(value, dict) and "_target_" in value


def _setting_faults(values: Mapping[str, Any], errors: list[str]) -> list[str]:
    """Ranges of the top-level values, of those that have the right type."""
    wanted: dict[str, tuple[Callable[[Any], object], str]] = {
        "rounds": (lambda x: x >= 0, ">= 0"),
        "seed": (lambda x: x >= 0, ">= 0"),
        "num_clients": (lambda x: x >= 1, ">= 1"),
        "threads": (lambda x: x is None or x >= 1, ">= 1 or null"),
        "train_fraction": (lambda x: 0 < x <= 1, "in (0, 1]"),
        "label_noise": (lambda x: 0 <= x <= 1, "between 0 and 1"),
        "validation": (lambda x: 0 <= x < 1, "in [0, 1)"),
        "nonfinite": (lambda x: x in NONFINITE, "one of " + ", ".join(NONFINITE)),
        "precision": (lambda x: x in PRECISIONS, "one of " + ", ".join(PRECISIONS)),
        "device": (lambda x: re.fullmatch(r"auto|cpu|cuda(:\d+)?", x), "one of auto, cpu, cuda, cuda:<index>"),
    }
    return [
        f"{key} must be {words}, got {values[key]}"
        for key, (is_right, words) in wanted.items()
        if not _has_fault(key, errors) and not is_right(values[key])
    ]


def _cross_faults(values: Mapping[str, Any], built: Mapping[str, Any], errors: list[str]) -> list[str]:
    """Faults of one value in the light of another or of the machine; none needs data."""
    faults = []
    if "participation" in built and not _has_fault("num_clients", errors):
        try:
            built["participation"].check(values["num_clients"])
        except ValueError as error:
            faults.append(f"participation.{error}")
    if values["nonfinite"] == "clip" and "local" in built and built["local"].update_norm is None:
        faults.append(
            "nonfinite must be stop, drop or zero where local.update_norm is null, got clip: what is left of an update "
            "that is not finite needs a bound"
        )
    if not _has_fault("device", errors) and values["device"].startswith("cuda"):
        faults += _cuda_faults(values["device"])
    return faults


def _has_fault(path: str, errors: list[str]) -> bool:
    """Whether one of the errors is about this value or something inside it."""
    return any(error.startswith((f"{path} ", f"{path}.", f"{path}[")) for error in errors)


def _cuda_faults(device: str) -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return [f"device must be cpu or auto, got {device}: torch finds no CUDA GPU on this machine"]
    index, count = int(device.partition(":")[2] or 0), torch.cuda.device_count()
    return [] if index < count else [f"device must be one of cuda:0 to cuda:{count - 1}, got {device}"]


def _resolve_run_id(*, _root_: DictConfig) -> str:
    """`${run_id:}`. A faulty config raises, so no folder is made for it; except in a sweep, whose other jobs go on."""
    try:
        build(_root_)
        return run_id(_root_)
    except UserError:
        if OmegaConf.select(_root_, "hydra.mode") != RunMode.MULTIRUN:
            raise
        return f"invalid-{run_ids.digest(OmegaConf.to_container(_without_hydra(_root_)))}"
