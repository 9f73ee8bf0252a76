"""What is wrong with the overrides of a command: a choice or a key that is not there, a group that is given twice."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedlab_runner.config import schema
from fedlab_runner.config.build import conf_dir
from fedlab_runner.config.composing import composed
from fedlab_runner.config.listing import choices, groups, places
from fedlab_runner.utils import untrusted

# Choices that come with an extra of this package.
EXTRAS = {
    "hydra/launcher/joblib": "joblib",
    "hydra/launcher/submitit_local": "slurm",
    "hydra/launcher/submitit_slurm": "slurm",
    "hydra/sweeper/optuna": "optuna",
}
ADD_M = "add -m to run each of them"  # what a command does about a key of several values, in a message
ADDS_NULL = re.compile(r"\+[\w/@.]+=null")  # an override that adds no choice


def missing_choice(error: MissingConfigException) -> str:
    """The line on a choice that is not there, or whose extra is not installed."""
    missing = error.missing_cfg_file or ""
    group, _, choice = missing.rpartition("/")
    if missing in EXTRAS:
        return f'{group}={choice} needs an extra: pip install "fedlab-runner[{EXTRAS[missing]}]"'
    if not group or not error.options:
        return one_line(str(error).split("Config search path")[0].split("Search path")[0])
    names = [name for name, _ in choices(group, places())]
    if inside := [name for name in names if name.startswith(f"{choice}/") or name.endswith(f"/{choice}")]:
        return f"{group}={choice} is not a choice: choose one of {', '.join(inside)}"
    options = [*error.options, *dict.fromkeys(re.sub("/.*", "/...", name) for name in names if "/" in name)]
    top, _, folder = group.partition("/")
    if folder and top != "hydra":  # the user typed experiment=feddle/table77
        names = [name for name, _ in choices(top, places())]
        group, choice = top, f"{folder}/{choice}"
        options = [name for name in names if name.startswith(f"{folder}/")]
        options = options or list(dict.fromkeys(re.sub("/.*", "/...", name) for name in names))
    return f"{group}={choice} is not a choice: {schema.way_out(choice, options, 'choices')}"


def null_choice(group: str) -> str:
    """The line on the choice null of a group that has no such choice."""
    names = [name for name, _ in choices(group.partition("@")[0], places()) if "/" not in name]
    return f"{group}=null is not a choice: {schema.way_out('none' if 'none' in names else 'null', names, 'choices')}"


def composition(error: HydraException, arguments: Sequence[str]) -> str:
    """The line on overrides that do not compose."""
    message = str(error)
    if found := re.search(r"Ambiguous value for argument '(.*)'", message):
        return f"{found[1]} has several values: {ADD_M}, or write a list as key=[a,b]"
    if found := re.search(r"Could not (?:override|delete from config\.|delete) '([^'=]+)", message):
        key = found[1]
        if guess := _nested_choice(key, arguments):
            return f"{key} is not a group: did you mean {guess}?"
        absent = next((each for each in arguments if each.startswith(f"{key}=")), None)
        config, chosen = _chosen_config([each for each in arguments if each != absent])
        keys = [name for name in schema.key_names(config) if name.startswith("hydra") == key.startswith("hydra")]
        if absent and (part := schema.open_mapping(config, key)):
            return f"{part} takes keys that are not in the config: write +{absent}"
        group, _, package = key.partition("@")
        if absent and group in groups() and package in ("", *keys):
            return f"{key} is not in the default config: add it, as +{absent}"
        if key not in keys:
            return schema.unknown_key(package or key, keys, chosen)
    found = re.match(r"Multiple values for (\S+)\. |force-add of config groups is not supported: '\++([^=]+)", message)
    group = found and (found[1] or found[2])
    if added := next((each for each in arguments if each[0] == "+" and each.strip("+").startswith(f"{group}=")), None):
        return f"cannot read {added!r}: the default config has the group: write {added.lstrip('+')}"
    cause = error.__cause__
    return one_line(": ".join(str(each).strip() for each in (error, cause) if each is not None and str(each).strip()))


def _nested_choice(key: str, arguments: Sequence[str]) -> str | None:
    """experiment=feddle/table7 for experiment/feddle=table7."""
    group, _, folder = key.partition("/")
    given = dict(each.lstrip("+").split("=", 1) for each in arguments if "=" in each)
    choice = f"{folder}/{given.get(key)}"
    there = folder and group in groups() and any((each / group / f"{choice}.yaml").is_file() for each in places())
    return f"{group}={choice}" if there else None


def _chosen_config(arguments: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The config that these arguments choose, or the default config where they do not compose; and the choice of each
    place.
    """
    given, _ = get_args_parser().parse_known_args(list(arguments))
    folders = [f"file://{Path(given.config_dir).absolute()}"] if given.config_dir else []
    for argument in given.overrides:
        if argument.startswith("hydra.searchpath="):
            named: Any = OverridesParser.create().parse_override(argument).value()
            folders += named
    searched = f"hydra.searchpath={json.dumps(folders, ensure_ascii=False)}"
    choices = [
        argument.partition(",")[0]  # the first of a sweep
        for argument in given.overrides
        if re.fullmatch(r"[a-z][\w@./]*=.*", argument) and "." not in argument.partition("=")[0].partition("@")[0]
    ]
    for overrides in (choices, [each for each in choices if is_group(each)], []):
        try:
            found: Any = OmegaConf.to_container(composed([searched, *overrides], with_hydra=True))
            chosen = found["hydra"]["runtime"]["choices"]
            return found, {key.rpartition("@")[2]: chosen[key] for key in chosen}
        except (HydraException, OmegaConfBaseException, ValueError):
            continue
    return {}, {}


def is_group(override: str) -> bool:
    """Whether an override chooses a file of a group."""
    return (conf_dir() / override.partition("=")[0].partition("@")[0]).is_dir()


def is_null_choice(argument: str) -> bool:
    """Whether an override gives the choice null, which it must not: a group that is null by default may be null."""
    group, _, given = argument.partition("=")
    defaults = untrusted.read_yaml(conf_dir() / "train.yaml")["defaults"]
    return is_group(argument) and "null" in given.split(",") and {group: None} not in defaults


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())
