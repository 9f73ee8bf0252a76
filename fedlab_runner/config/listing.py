"""`fedlab --list` names the groups, `fedlab --list experiments` the choices of a group, with a line on each.

Nothing is imported or composed: the line is a choice's first comment, else the docstring of its class.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from fedlab_runner.config import schema
from fedlab_runner.config.build import conf_dir
from fedlab_runner.utils.errors import UserError

MAX_CHOICES_CHARACTERS = 80  # of the choices that are shown beside a group
_NO_GROUPS = ("paper",)  # folders of conf that are no groups


def show(group: str | None) -> None:
    """Prints the choices of a group, in the singular or plural, or all groups; UserError for an unknown group."""
    names = groups()
    if group is None:
        rows = [(name, ", ".join(each for each, _ in choices(name))[:MAX_CHOICES_CHARACTERS]) for name in names]
    elif found := next((name for name in names if group.rstrip("/") in (name, f"{name}s")), None):
        rows = list(choices(found))
    else:
        guess = schema.nearest(group.removesuffix("s"), names)
        hint = f"did you mean {guess}? " if guess else ""
        raise UserError(f"{group} is not a group: {hint}groups: {', '.join(names)}")
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in rows))


def groups() -> list[str]:
    """The groups in conf, Hydra's groups included."""
    parts = [path.relative_to(conf_dir()).parts for path in conf_dir().rglob("*.yaml")]
    tops = {"/".join(each[: 2 if each[0] == "hydra" else 1]) for each in parts if len(each) > 1}
    return sorted(tops - {*_NO_GROUPS})


def choices(group: str) -> Iterator[tuple[str, str]]:
    """The names of a group's choices, nested ones as folder/name, each with its line."""
    folder = conf_dir() / group
    for path in sorted(folder.rglob("*.yaml"), key=lambda path: (len(path.relative_to(folder).parts), path)):
        yield path.relative_to(folder).with_suffix("").as_posix(), _about(path)


def _about(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if comment := re.match(r"(?:# @.*\n)?((?:# .*\n)+)", text):
        return _first_sentence(re.sub(r"^# ", "", comment[1], flags=re.MULTILINE))
    target = re.search(r"^_target_: (\S+)", text, re.MULTILINE)
    module, _, name = (target[1] if target else "").rpartition(".")
    source = Path(__file__).parents[2] / f"{module.replace('.', '/')}.py"
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")) if source.is_file() else ast.Module([], [])):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _first_sentence(ast.get_docstring(node) or "")
    return ""


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join(text.split()))[0]
