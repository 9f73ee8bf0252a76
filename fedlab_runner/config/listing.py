"""`fedlab --list` names the groups, `fedlab --list experiments` the choices of a group, with a line on each.

Choices are those of the package, of installed plugins and of `--config-dir`. Nothing is imported or composed: the line
is a choice's first comment, else the docstring of its class.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import shorten

from fedlab_runner.config import schema
from fedlab_runner.config.build import conf_dir
from fedlab_runner.utils import plugin_folders, untrusted
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.escaping import visible

LINE_CHARACTERS = 80  # of the list of groups
NO_GROUPS = ("paper",)  # folders of conf that are not groups
# Endings of English nouns, and of their plurals; the first that a noun has decides.
PLURALS = {r"sis$": "ses", r"(?<=[^aeiou])y$": "ies", r"(?<=ss|ch)$": "es", r"$": "s"}


def show(group: str | None, config_dir: Path | None = None) -> None:
    """Prints the choices of a group, in the singular or plural, or all groups; UserError for an unknown group."""
    names = groups()
    if config_dir is not None and not config_dir.is_dir():
        raise UserError(f"--config-dir={config_dir} is no folder")
    folders = [*places(), *([config_dir] if config_dir else [])]
    if group is None:
        room = LINE_CHARACTERS - max(map(len, names)) - 2
        rows = [(name, shorten(", ".join(dict(choices(name, folders))), room, placeholder=" ...")) for name in names]
    elif found := next((name for name in names if group.rstrip("/") in (name, plural(name))), None):
        rows = list(choices(found, folders))
    else:
        raise UserError(f"{group} is not a group: {schema.way_out(group.removesuffix('s'), names, 'groups')}")
    width = max(len(name) for name, _ in rows)
    print("\n".join(visible(f"{name:<{width}}  {text}".rstrip()) for name, text in rows))


def plural(noun: str) -> str:
    """The plural of a group's name: analyses of analysis, server_datas of server_data."""
    return next(re.sub(end, ends, noun) for end, ends in PLURALS.items() if re.search(end, noun))


def groups() -> list[str]:
    """The groups in conf, Hydra's groups included."""
    parts = [path.relative_to(conf_dir()).parts for path in conf_dir().rglob("*.yaml")]
    tops = {"/".join(each[: 2 if each[0] == "hydra" else 1]) for each in parts if len(each) > 1}
    return sorted(tops - {*NO_GROUPS})


def places() -> list[Path]:
    """The folders of choices that every command has: the package's own, then those of installed plugins."""
    return [conf_dir(), *plugin_folders.conf_dirs()]


def choices(group: str, folders: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """The names of a group's choices, nested ones as folder/name, each with its line; folder after folder."""
    for folder in (each / group for each in folders):
        for path in sorted(folder.rglob("*.yaml"), key=lambda path: (len(path.relative_to(folder).parts), path)):
            yield path.relative_to(folder).with_suffix("").as_posix(), _about(path)


def _about(path: Path) -> str:
    try:
        text = untrusted.read_bytes(path).decode(errors="replace")
    except (OSError, untrusted.Unreadable) as fault:
        return str(fault)
    if comment := re.match(r"(?:# @.*\n)?((?:# \S.*\n)+)", text):
        return first_sentence(re.sub(r"^# ", "", comment[1], flags=re.MULTILINE))
    target = re.search(r"^_target_: (\S+)", text, re.MULTILINE)
    module, _, name = (target[1] if target else "").rpartition(".")
    for node in ast.walk(_source(module, path)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return first_sentence(ast.get_docstring(node) or "")
    return ""


def _source(module: str, choice: Path) -> ast.Module:
    """The statements of a module of this package or of a folder above a choice; none if neither has it, or if it is
    none of Python.
    """
    name = module.replace(".", "/")
    for folder in (Path(__file__).parents[2], *choice.parents):
        for path in (folder / f"{name}.py", folder / name / "__init__.py"):
            if name and path.is_file():
                with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                    return ast.parse(untrusted.read_bytes(path))
    return ast.Module([], [])


def first_sentence(text: str) -> str:
    """The text up to the first full stop that no initial has, as in T. Dinh."""
    return re.split(r"(?<=\.)(?<!\b[A-Z]\.)\s+(?=[A-Z`])", " ".join(text.split()))[0]
