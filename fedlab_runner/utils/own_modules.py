"""The user's own modules, which a config names. They lie in folders that other machines may lack."""

import os
import sys
from pathlib import Path
from types import ModuleType

_PACKAGE = __name__.partition(".")[0]  # import name of this package
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
    if not file or name != getattr(module, "__name__", None) or name.partition(".")[0] in (_PACKAGE, "__main__"):
        return False
    path = os.path.abspath(file)
    return path.startswith(below) and not is_installed(path)


def is_installed(path: str | Path) -> bool:
    """Whether a file is of a package that pip installed."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)
