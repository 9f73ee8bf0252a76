"""The tables of README.md, made from the code and the configs: `make readme` writes them, a test keeps them true.

A table stands between `<!-- generated: <name> -->` and `<!-- end -->`; everything else in the file is left as it is.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedlab_runner.config import schema, targets
from fedlab_runner.config.build import conf_dir

README = Path(__file__).resolve().parents[2] / "README.md"
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_FIELD = re.compile(r"(\w+):[^#]*(?:#\s*(.*))?")  # a top-level line of a YAML file: key and comment


def algorithms() -> str:
    """One row a file in conf/algorithm: name, class, source, hyperparameters."""
    rows = []
    for path in files("algorithm"):
        cls = target(path)
        rows.append([_name(path), f"`{cls.__name__}`", source(about(cls)), _first_sentence(cls), _defaults(path)])
    return table(["`algorithm=`", "class", "source", "what it is", "hyperparameters"], rows)


def choices(group: str, *, origin: bool = False) -> str:
    """One row a file in a config group: name, where it comes from if that is asked for, what it is, keys."""
    rows = []
    for path in files(group):
        cls = target(path)
        rows.append([_name(path), *([linked(about(cls))] if origin else []), _first_sentence(cls), _defaults(path)])
    return table([f"`{group}=`", *(["origin"] if origin else []), "what it is", "keys"], rows)


def settings() -> str:
    """One row a key of the groups that nearly every command touches: default and the comment of the YAML file."""
    groups = ("local", "evaluation", "checkpoint", "logger")
    paths = [conf_dir() / "train.yaml", *(_default(group) for group in groups)]
    return table(["key", "default", "meaning"], [row for path in paths for row in keys(path)])


TABLES: dict[str, Callable[[], str]] = {
    "algorithms": algorithms,
    "datasets": lambda: choices("dataset", origin=True),
    "server_data": lambda: choices("server_data"),
    "partitions": lambda: choices("partition", origin=True),
    "delays": lambda: choices("delay"),
    "models": lambda: choices("model", origin=True),
    "participation": lambda: choices("participation"),
    "lr_schedules": lambda: choices("lr_schedule"),
    "topologies": lambda: choices("topology"),
    "losses": lambda: choices("loss"),
    "augmentations": lambda: choices("augment", origin=True),
    "executors": lambda: choices("executor"),
    "analyses": lambda: choices("analysis", origin=True),
    "prunings": lambda: choices("pruning"),
    "settings": settings,
}


def regenerate(text: str) -> str:
    """The text with every table made anew. Raises ValueError where a table is missing, double or unknown."""
    found = [match[2] for match in _BLOCK.finditer(text)]
    if sorted(found) != sorted(TABLES):
        raise ValueError(f"the tables between markers must be {', '.join(TABLES)}, got {', '.join(found)}")
    return _BLOCK.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}", text)


def main() -> int:
    """Write README.md anew."""
    README.write_text(regenerate(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def files(group: str) -> list[Path]:
    return sorted((conf_dir() / group).glob("*.yaml"))


def _default(group: str) -> Path:
    """The file that the default experiment takes from a group."""
    return conf_dir() / group / f"{_chosen()[group]}.yaml"


def _chosen() -> dict[str, str]:
    """The choice of each group in the default experiment."""
    entries = _content(conf_dir() / "train.yaml")["defaults"]
    return {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}


def _name(path: Path) -> str:
    """What is typed, marked where it is the default."""
    return f"`{path.stem}`" + (" (default)" if _chosen()[path.parent.name] == path.stem else "")


def _content(path: Path) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return {str(key): value for key, value in content.items()}


def _node(path: Path) -> dict[str, Any]:
    """The keys of a file that users set, with their defaults."""
    return {key: value for key, value in _content(path).items() if key not in ("_target_", "defaults", "hydra")}


def target(path: Path) -> type:
    return targets.find_class(_content(path)["_target_"])


def _first_sentence(cls: type) -> str:
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", paragraphs(cls.__doc__)[0])[0]


def about(cls: type) -> str:
    """How the module's docstring starts, with the address that may stand alone below."""
    module = inspect.getmodule(cls)
    first, *others = paragraphs(module.__doc__ if module else None)
    return " ".join([first, *(each for each in others[:1] if each.startswith("http"))])


def paragraphs(docstring: str | None) -> list[str]:
    return [" ".join(text.split()) for text in inspect.cleandoc(docstring or "").split("\n\n")]


def source(about: str) -> str:
    """Of `Name (authors, venue year), place. address` all but the name, as a link."""
    return linked(re.sub(r"^[^()]*\(([^()]*)\)", r"\1", about))


def linked(text: str) -> str:
    """The text without the address in it, as a link to it."""
    address = re.search(r"https?://\S+", text)
    words = re.sub(r"\s*https?://\S+", "", text).rstrip(".")
    return f"[{words}]({address[0]})" if address else words


def _defaults(path: Path) -> str:
    return ", ".join(f"`{key}={_value(value)}`" for key, value in _node(path).items()) or "none"


def keys(path: Path) -> Iterator[list[str]]:
    comments = {match[1]: match[2] or "" for line in path.read_text().splitlines() if (match := _FIELD.match(line))}
    group = "" if path.parent == conf_dir() else path.parent.name
    for key, value in _node(path).items():
        yield [f"`{schema.join(group, key)}`", f"`{_value(value)}`", comments[key]]


def _value(value: Any) -> str:
    """A value as it is typed on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_value(each)}' for key, each in value.items())}}}"
    return str(value)


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *([_cell(text) for text in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _cell(text: str) -> str:
    """A text in a table: bars would end the cell, and outside of code `<` would start a tag and `*` emphasis."""
    parts = text.replace("|", "\\|").split("`")
    return "`".join(part if i % 2 else part.replace("<", "&lt;").replace("*", "\\*") for i, part in enumerate(parts))


if __name__ == "__main__":
    sys.exit(main())
