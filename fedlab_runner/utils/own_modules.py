"""The user's own modules, which a config names. They lie in folders that other machines may lack."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]  # import name of this package
_folders: set[Path] = set()  # the folders of these modules
_BEGAN = time.time()  # before this process imported most modules, which its configs name


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


def is_stale(module: ModuleType, path: Path) -> bool:
    """Whether the file of an imported module has another text of one of the module's functions by now.

    A function that the file lacks does not count: `importlib.reload` leaves those of the last text in the module.
    """
    if path.suffix != ".py" or path.stat().st_mtime < _BEGAN:
        return False
    try:
        now = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # in the middle of an edit
        return True
    there: dict[str, list[Any]] = {}
    for code in _codes(now):
        there.setdefault(code.co_qualname, []).append(_content(code))
    return any(
        code.co_qualname in there and _content(code) not in there[code.co_qualname]
        for code in _functions(module, module.__name__, "")
        if os.path.realpath(code.co_filename) == os.path.realpath(path)
    )


def _functions(holder: ModuleType | type, module: str, prefix: str) -> Iterator[CodeType]:
    """The code of the functions and methods of a module, or of a class whose names begin with the prefix there."""
    for value in vars(holder).values():
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, FunctionType):
            yield value.__code__
        elif isinstance(value, type) and value.__module__ == module and value.__qualname__ == prefix + value.__name__:
            yield from _functions(value, module, f"{value.__qualname__}.")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _content(code: CodeType) -> tuple[Any, ...]:
    """What a function does, wherever it stands in its file."""
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, [_constant(each) for each in code.co_consts]


def _constant(value: Any) -> Any:
    if isinstance(value, frozenset):  # in no order of its own
        return sorted(map(repr, value))
    return _content(value) if isinstance(value, CodeType) else repr(value)
