"""Names a run for people, from its config, the choices of its config groups and the command that started it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from fedlab_runner.config.hydra_record import overrides_of
from fedlab_runner.config.run_id import VOLATILE
from fedlab_runner.methods.registry import Method, add_folder, choices_of, method_style
from fedlab_runner.sweep.records import varying
from fedlab_runner.tracking.label import Label
from fedlab_runner.utils.digest import digest
from fedlab_runner.utils.escaping import short
from fedlab_runner.utils.sweep_job import sweep_folder, sweeps_of

# Groups whose choices become tags, except the choices in `PLAIN`. The first four are part of a setting's name too.
TAGGED = (
    *("dataset", "model", "partition", "delay", "server_data", "topology", "home", "server_optimizer", "aggregator"),
    *("client_split", "augment", "experiment"),
)
NAMED = TAGGED[:4]  # groups whose choices are in a setting's name
PLAIN = ("none", "mean", "mesh", "natural")  # choices that do not become tags
MAX_NAME_CHARACTERS, MAX_TAG_CHARACTERS = 100, 64  # of a name, before its seed or hash; of a tag, W&B's limit


def label_of(folder: Path, config: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Label:
    """The label of the run in a folder. `fingerprint` holds the keys that decide its numbers."""
    commanded = _is_commanded(folder)
    if commanded:
        for source in HydraConfig.get().runtime.config_sources:
            if "command-line" in source.provider and source.schema == "file":
                add_folder(Path(source.path))  # names and references of the user's own methods
    choices = _choices(config, commanded)
    method = method_style(choices.get("algorithm", ""), choices)
    sweeps = sweeps_of(folder)
    chosen = {place: choice for place in TAGGED if (choice := choices.get(place)) not in (None, *PLAIN)}
    tags = [f"{place}={choice}" for place, choice in chosen.items()] + [f"sweep={each}" for each in sweeps]
    setting = _setting(method, choices, config, fingerprint)
    name = short(" ".join([method.name, *(_differing(method) if commanded else ())]), MAX_NAME_CHARACTERS)
    return Label(
        name=f"{name} seed={config.get('seed')}",
        method=method.name,
        tags=tuple(dict.fromkeys(tag[:MAX_TAG_CHARACTERS] for tag in (method.name, *tags))),
        group=setting,
        config={"choices": choices, "method": method.name, "setting": setting, "sweeps": list(sweeps)},
    )


def _is_commanded(folder: Path) -> bool:
    """Whether this process's command runs in the folder."""
    if not HydraConfig.initialized():
        return False
    runtime = HydraConfig.get().runtime
    return not OmegaConf.is_missing(runtime, "output_dir") and Path(runtime.output_dir) == folder


def _choices(config: Mapping[str, Any], commanded: bool) -> dict[str, str]:
    """The chosen file of each config group; if no command composed the config, the modules of its classes."""
    if not commanded:
        return choices_of(config)
    chosen = {key.rpartition("@")[2]: value for key, value in HydraConfig.get().runtime.choices.items()}
    return {str(place): str(value) for place, value in chosen.items() if value and not place.startswith("hydra")}


def _differing(method: Method) -> Sequence[str]:
    """The overrides of the command that the method's name does not express; for a sweep's job, those that differ."""
    folder = sweep_folder()
    keys = varying(folder) if folder is not None else None
    found = []
    for override in overrides_of(HydraConfig.get()):
        shown = override.lstrip("+~").rpartition("@")[2]
        key = shown.partition("=")[0]
        told = key in ("seed", "algorithm", *method.told)
        told = told or any(f"{key}.".startswith(f"{each}.") for each in VOLATILE)
        if not told and (not keys or key in keys):
            found.append(shown)
    return found


def _setting(
    method: Method, choices: Mapping[str, str], config: Mapping[str, Any], fingerprint: Mapping[str, Any]
) -> str:
    """A name, with a hash, for all keys that decide a run's numbers except the seed, and for the number of rounds."""
    words = [method.name]
    for place in NAMED:
        if (choice := choices.get(place, "none")) not in PLAIN:
            node: Mapping[str, Any] = config.get(place) or {}
            numbers = [value for value in node.values() if type(value) in (int, float)] if place in NAMED[2:] else []
            words.append(choice + (f"({numbers[0]:g})" if numbers else ""))
    rest = {key: value for key, value in fingerprint.items() if key != "seed"}
    return short(" ".join(words), MAX_NAME_CHARACTERS) + f" {digest({**rest, 'rounds': config.get('rounds')})}"
