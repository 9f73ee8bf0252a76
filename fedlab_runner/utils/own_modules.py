"""The user's own modules, which a config names. They lie in folders that other machines may lack."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

PACKAGE = __name__.partition(".")[0]  # import name of this package
_folders: set[Path] = set()  # the folders of these modules


def remember(module: ModuleType) -> None:
    """Notes that this module and each module of its folder are the user's own."""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    places = [*getattr(top, "__path__", ())] or [getattr(top, "__file__", None)]
    _folders.update(Path(place).absolute().parent for place in places if place)


def loaded() -> list[ModuleType]:
    """The user's own modules that are imported, by name."""
    if not _folders:  # as usual, and a run asks in every round
        return []
    below = tuple(os.path.join(folder, "") for folder in _folders)
    return [module for name, module in sorted(sys.modules.items()) if _is_own(name, module, below)]


def _is_own(name: str, module: ModuleType, below: tuple[str, ...]) -> bool:
    file = getattr(module, "__file__", None)
    if not file or name != getattr(module, "__name__", None) or name.partition(".")[0] in (PACKAGE, "__main__"):
        return False
    path = os.path.abspath(file)
    return path.startswith(below) and not is_installed(path)


def is_installed(path: str | Path) -> bool:
    """Whether a file is of a package that pip installed."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)


def is_edited(name: str, path: Path) -> bool:
    """Whether the file of an imported module has changed since the import. A module that was imported before this one
    counts as imported with this one.

    A date later than the import is none of an edit where the import has seen it too: a file server's clock may be ahead
    of the process's own.
    """
    changed = path.stat().st_ctime_ns
    return changed > _imported.get(name, _BEGAN) and changed != _found.get(name)


def is_reloaded(name: str, importer: str) -> bool:
    """Whether a module was reloaded after another one was imported that imports it, and so may hold what it was."""
    return name in _reloaded and _imported[name] > _imported.get(importer, _BEGAN)


class _Clock:
    """The first of the finders that Python asks for a module. It finds none, and notes when it is asked, and when the
    file last changed.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        _imported[name] = time.time_ns()
        _found.pop(name, None)
        if not any(map(is_installed, path or ())):
            spec = PathFinder.find_spec(name, path)
            with suppress(OSError):
                if spec is not None and spec.origin is not None:
                    _found[name] = os.stat(spec.origin).st_ctime_ns
        if target is not None:
            _reloaded.add(name)


_BEGAN = time.time_ns()  # about when the process imported this package
_imported: dict[str, int] = {}  # when each module was imported, or reloaded, since then
_found: dict[str, int] = {}  # when the file of each of these last changed, by the file system's clock
_reloaded: set[str] = set()
sys.meta_path.insert(0, _Clock)
