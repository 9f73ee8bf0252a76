"""The classes that a config may name. This module resolves `_target_` and refuses modules that are not the user's.

Importing a module runs its code, so the origin of a module is checked before. A config may name

- the modules of this package,
- modules of an installed package that registers itself by an entry point of the group `fedlab_runner.plugins`,
- modules that lie in a folder which the command gives by `--config-dir` or `hydra.searchpath`,
- modules that the calling program has imported itself, unless they are installed.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import types
import typing
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Union

from hydra.core.hydra_config import HydraConfig

from fedlab_runner.utils import own_modules, plugin_folders

NO_MODULE = "no module named"  # words of each line about a module that does not exist
# Hydra's names of those who may give a folder of modules: the command line alone, no file.
_COMMAND_LINE = ("command-line", "hydra.searchpath in command-line")
_STRANGER = (
    "may name a class of fedlab_runner, of a module in the folder given by --config-dir, of a module that the program "
    f"has imported, or of an installed plugin (entry point group {plugin_folders.GROUP})"
)


def find_class(target: Any) -> type:
    """The dataclass with this import path. Raises ValueError where none has it, or where its module may not be named.

    Faults inside the module are raised as they are.
    """
    parts = target.split(".") if isinstance(target, str) else []
    module_name, class_name = ".".join(parts[:-1]), parts[-1] if parts else ""
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"cannot be imported, got {target!r}: expected <module>.<class>")
    if module_name == "__main__":  # no other process has it, and no run can note its code
        raise ValueError(f"cannot be a class of a script or notebook itself, got {target!r}: import it from a module")
    if not may_be_named(module_name):
        raise ValueError(f"{_hidden(parts[0]) or _STRANGER}, got {target!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but a module that it imports does not
        raise ValueError(f"cannot be imported, got {target!r}: {NO_MODULE} {error.name!r}") from error
    if not _is_packaged(module_name):
        own_modules.remember(module)
    cls = vars(module).get(class_name)
    if cls is None:
        raise ValueError(f"cannot be imported, got {target!r}: {module_name!r} has no {class_name!r}")
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ValueError(f"must name a dataclass, got {target!r}")
    frozen = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]  # typeshed has no such name
    if not frozen:  # a run that continues knows nothing of an attribute set in a round
        raise ValueError(f"must name a frozen dataclass, got {target!r}: write @dataclass(frozen=True) above the class")
    return cls


def may_be_named(module: str) -> bool:
    """Whether a config may name this module. Raises ValueError where no such module exists. Imports nothing."""
    top, *inner = module.split(".")
    if any(part.startswith("__") for part in inner):  # `__main__` is a command
        return False
    if _is_packaged(module):
        return True
    if top in sys.stdlib_module_names:
        return False
    if module in sys.modules:
        return not _is_installed(getattr(sys.modules[module], "__spec__", None))
    for folder in config_dirs():
        if spec := PathFinder.find_spec(top, [str(folder)]):
            if str(folder) not in sys.path:
                sys.path.append(str(folder))  # at the end, so that its modules hide no others
            found = importlib.util.find_spec(top)
            return found is not None and _places(found) == _places(spec)
    if importlib.util.find_spec(top) is None:
        raise ValueError(f"cannot be imported, got {module!r}: {NO_MODULE} {top!r}")
    return False


def _hidden(top: str) -> str | None:
    """The words on a file of the user's that a module of Python or of an installed package hides; None without one."""
    found = (PathFinder.find_spec(top, [str(folder)]) for folder in config_dirs())
    place = next((spec.origin for spec in found if spec is not None and spec.origin is not None), None)
    what = "has the name of a module of Python or of an installed package, which is found first: rename it"
    return None if place is None else f"cannot be found, because {place} {what}"


def fits(cls: type, hint: Any) -> bool:
    """Whether a type hint allows an object of the class. A protocol allows every class with its members."""
    if len(several := kinds(hint)) > 1:
        return any(fits(cls, each) for each in several)
    base = typing.get_origin(hint) or hint
    if not isinstance(base, type):
        return False
    if not getattr(base, "_is_protocol", False):
        return issubclass(cls, base)
    names = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    return all(name in names or hasattr(cls, name) for name in _members(base))


def name_of(hint: Any) -> str:
    """The classes that a type hint takes, in words."""
    found = [typing.get_origin(each) or each for each in kinds(hint) if takes_objects(each)]
    return " or ".join(f"{kind.__name__} ({kind.__module__})" for kind in found)


def takes_objects(hint: Any) -> bool:
    """Whether a type hint takes objects, which a config gives by a `_target_`."""
    if len(several := kinds(hint)) > 1:
        return any(takes_objects(each) for each in several)
    base = typing.get_origin(hint) or hint
    plain = (int, float, bool, str, list, dict, tuple, types.NoneType)
    return isinstance(base, type) and base is not Any and base not in plain


def kinds(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a type hint."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _members(protocol: type) -> set[str]:
    """The public methods and attributes that a protocol asks for."""
    bases = [base for base in protocol.__mro__ if getattr(base, "_is_protocol", False)]
    names = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
    return {name for name in names if not name.startswith("_")}


def _is_packaged(module: str) -> bool:
    """Whether a module belongs to this package or to an installed plugin of it."""
    if f"{module}.".startswith(f"{own_modules.PACKAGE}."):
        return True  # no need to look through all installed packages
    return any(f"{module}.".startswith(f"{package}.") for package in plugin_folders.modules())


def config_dirs() -> list[Path]:
    """The folders that the command gives. A launcher's process finds them in its config."""
    sources = HydraConfig.get().runtime.config_sources if HydraConfig.initialized() else []
    return [Path(each.path).absolute() for each in sources if each.provider in _COMMAND_LINE and each.schema == "file"]


def _places(spec: ModuleSpec) -> list[str]:
    return sorted(spec.submodule_search_locations or [spec.origin or ""])


def _is_installed(spec: ModuleSpec | None) -> bool:
    """Whether a module came with Python or by pip, and not with a user's program."""
    if spec is None:  # the program itself, such as a notebook
        return False
    folders = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places = [Path(place).resolve() for place in _places(spec)]
    return any({"site-packages", "dist-packages", *folders} & {*place.parts, *place.parents} for place in places)
