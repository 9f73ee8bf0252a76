"""Installed packages that extend this one, and their folders `conf`.

A package registers itself by an entry point of the group `fedlab_runner.plugins`, whose value is its import name. This
module finds registered packages without importing them.
"""

import importlib.metadata
import importlib.util
import re
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path

GROUP = "fedlab_runner.plugins"  # of entry points
CONF = "conf"  # the folder of a registered package that holds config groups


def modules() -> list[str]:
    """The registered import names, sorted. A name stands for all modules inside it."""
    values = {entry.value.partition(":")[0].strip() for entry in importlib.metadata.entry_points(group=GROUP)}
    return sorted(value for value in values if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", value))


def conf_dirs() -> list[Path]:
    """The folders of choices in the registered packages."""
    folders = [Path(place) / CONF for module in modules() for place in _places(module)]
    return [folder for folder in folders if folder.is_dir()]


def _places(module: str) -> list[Path]:
    """The folders of a package; none for a module that is not a package."""
    top, *inner = module.split(".")
    spec: ModuleSpec | None = None
    with suppress(ImportError, ValueError):  # ValueError: a module without a spec has this name
        spec = importlib.util.find_spec(top)  # for an inner package find_spec would import the outer one
    return [Path(place, *inner) for place in (spec.submodule_search_locations or () if spec else ())]
