"""The code that computes a run's numbers: its modules, and a digest of each module's statements."""

import ast
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from hydra.utils import get_class

from fedlab_runner.config.targets import config_dirs
from fedlab_runner.utils import checksummed_json
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import user_cache, write_text_atomically
from fedlab_runner.utils.own_modules import PACKAGE, is_edited, is_installed, is_reloaded

Code = dict[str, str]  # digests by module
MAX_MODULES_SHOWN = 4  # that a message names
MAX_KEPT_MODULES = 2000  # whose digests and imports the user's cache folder keeps
_RESTART = "or begin a new process"  # the other way out where a process holds what a module was


class _Source(NamedTuple):
    digest: str
    imports: frozenset[tuple[str, tuple[str, ...]]]  # modules, and the names that it imports from them


def code_of(config: Mapping[str, Any], bases: bool = True) -> Code:
    """The modules of all classes that a resolved config names, and of their bases, with digests. Without `bases` it
    imports none of them, and misses the module of a base that no module imports by its name.

    Modules that these import count too if they belong to the same package or to the user's own files. A digest covers a
    module's statements: comments, docstrings and layout do not matter.

    Raises UserError for a module that this process holds as it was before an edit.
    """
    targets = set(targets_of(config))
    packages = {target.partition(".")[0] for target in targets}
    homes = [path for package in packages - {PACKAGE} for path in _home(package)]
    ahead = {target.rpartition(".")[0] for target in targets}
    if bases:
        ahead |= {base.__module__ for target in targets for base in get_class(target).__mro__}
    _find.cache_clear()
    found: Code = {}
    while ahead:
        name = ahead.pop()
        path = _find(name)[0]
        if name in found or path is None:
            continue
        beside = any(path.is_relative_to(home) for home in homes) and not is_installed(path)
        if not (beside or name.partition(".")[0] in packages):
            continue
        source = _source(name, path)
        found[name] = source.digest
        for module, names in source.imports:
            if not homes and module.partition(".")[0] not in packages:
                continue  # modules of other packages do not count
            modules = {each for own in names if _find(each := f"{module}.{own}")[0]}
            used = modules if names and len(modules) == len(names) else {*modules, module}
            if again := next((each for each in sorted(used) if is_reloaded(each, name)), None):
                raise UserError(f"{name} was imported before {again} was reloaded: reload {name} too, {_RESTART}")
            ahead |= used
    _keep()
    return dict(sorted(found.items()))


def digest_of_code(code: Code) -> str:
    """One digest of all modules."""
    return hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()[:16]


def own_folders(code: Code) -> list[Path]:
    """The folders of the user's own modules, which are neither installed nor part of this package."""
    return sorted(
        {home for package in {name.partition(".")[0] for name in code} - {PACKAGE} for home in _home(package)}
    )


def changed(theirs: Code, ours: Code) -> str:
    """The modules that differ, in words."""
    names = sorted(name for name in theirs | ours if theirs.get(name) != ours.get(name))
    more = f" and {len(names) - MAX_MODULES_SHOWN} more" if len(names) > MAX_MODULES_SHOWN else ""
    return ", ".join(names[:MAX_MODULES_SHOWN]) + more


def targets_of(value: Any) -> Iterator[str]:
    """The classes that a config, or its part, names; some of them several times."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            yield value["_target_"]
        for child in value.values():
            yield from targets_of(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from targets_of(child)


def _home(package: str) -> list[Path]:
    """The folder that holds a package or top-level module; empty for an installed one."""
    spec = _spec(package)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    homes = [Path(place).parent for place in places[:1] if place and Path(place).exists()]
    return [home for home in homes if not is_installed(home)]


@cache
def _find(name: str) -> tuple[Path | None, list[str]]:
    """The file of a module, found without importing it, and the folders with the modules in it; None if it has no file,
    as a built-in module. `code_of` looks anew in each call.
    """
    above, _, last = name.rpartition(".")
    if "." not in name:
        spec = _spec(last)
        origin = spec.origin if spec is not None else None
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        return (Path(origin) if origin is not None and os.path.isfile(origin) else None), places
    around = _find(above)[1]
    folders = [folder for place in around if os.path.isdir(folder := os.path.join(place, last))]
    files = [os.path.join(folder, "__init__.py") for folder in folders]
    files += [os.path.join(place, f"{last}.py") for place in around]
    path = next(filter(os.path.isfile, files), None)
    return (None if path is None else Path(path)), folders


def _spec(top: str) -> ModuleSpec | None:
    """Where a top-level module is: on Python's path, or in a folder that the command gives, which joins the path when
    one of its classes is imported.
    """
    if top in sys.stdlib_module_names:
        return None
    try:
        return importlib.util.find_spec(top) or PathFinder.find_spec(top, [*map(str, config_dirs())])
    except (ImportError, ValueError):  # ValueError: of `__main__`
        return None


_read: dict[str, tuple[ModuleSpec, _Source]] = {}  # by module: its source when it was imported


def _source(name: str, path: Path) -> _Source:
    """The source of a module. It reads an imported module once: a user may edit the file while this process uses it.

    Raises UserError where the user has edited it since this process imported it.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if name in _read and _read[name][0] is spec:
        return _read[name][1]
    if module is not None and is_edited(name, path):
        raise UserError(f"{path} was edited after its import: importlib.reload the module, {_RESTART}")
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    source = _parsed(path.read_bytes(), package, path.suffix)
    if spec is not None:  # a module that is imported again has another spec
        _read[name] = spec, source
    return source


def _parsed(content: bytes, package: str, suffix: str) -> _Source:
    if suffix != ".py":
        return _Source(hashlib.sha256(content).hexdigest()[:12], frozenset())
    known = _known()
    key = hashlib.sha256(content + package.encode()).hexdigest()
    try:
        kept, imports = known[key]
        return _Source(str(kept), frozenset((str(module), tuple(map(str, names))) for module, names in imports))
    except (KeyError, TypeError, ValueError):
        pass
    tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):  # without docstrings and other lone constants
            body[:] = [
                each for each in body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    source = _Source(hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:12], frozenset(_imported(tree, package)))
    known[key] = [source.digest, sorted(source.imports)]
    return source


def _keep() -> None:
    """Writes the results of parsing for later processes: parsing a run's modules takes as long as a small run.

    Of several writers the last one counts; the results of the others are lost, and a later process parses again.
    """
    if len(_known()) == _kept[0]:
        return
    used = dict(list(_known().items())[-MAX_KEPT_MODULES:])
    with suppress(OSError):
        write_text_atomically(_place(), checksummed_json.text(used))
    _kept[0] = len(_known())


_kept = [0]  # the number of known sources in the file


@cache
def _known() -> dict[str, Any]:
    """The results of other processes: digest and imports of a module, by the digest of its file."""
    try:
        known = checksummed_json.read(_place())
    except (OSError, ValueError, UserError):
        known = {}
    _kept[0] = len(known)
    return known


def _place() -> Path:
    """The file of results. Other versions of Python or of this module have other files."""
    version = hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode()).hexdigest()[:12]
    return user_cache() / f"modules-{version}.json"


def _imported(tree: ast.AST, package: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each module that the code imports, with the imported names, which may be modules too.

    Imports under TYPE_CHECKING do not count.
    """
    if isinstance(tree, ast.Import):
        yield from ((alias.name, ()) for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        folders = package.split(".")
        above = folders[: len(folders) - tree.level + 1] if tree.level else []
        yield ".".join([*above, *([tree.module] if tree.module else [])]), tuple(alias.name for alias in tree.names)
    elif isinstance(tree, ast.stmt | ast.Module | ast.ExceptHandler | ast.match_case):  # expressions import nothing
        hidden = isinstance(tree, ast.If) and ast.unparse(tree.test).endswith("TYPE_CHECKING")
        for part in tree.orelse if isinstance(tree, ast.If) and hidden else ast.iter_child_nodes(tree):
            yield from _imported(part, package)
