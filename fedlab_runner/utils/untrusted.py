"""Reading files that a stranger may have written: run folders and config folders travel.

Whatever such a file is, holds or claims, reading it takes bounded time, memory and stack and ends in the content or in
`Unreadable`. A path that is no plain file (a FIFO, a device, a folder) is never opened for its content.
"""

import json
import os
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import yaml

MOST_BYTES = 2**24  # of a file that is read as a whole
MOST_YAML = 2**20  # bytes; a run's config has some ten thousand
MOST_NODES = 100_000  # of a YAML document, each alias counted as what it stands for, a long text as several
_TEXT = 64  # characters of a text that count as a value
MOST_LINES = 2**28  # bytes of a file of lines
LONGEST_LINE = 2**22  # bytes
DEEPEST = 50  # levels of lists and mappings
MOST_DIGITS = 40  # of an integer: Python refuses to write down those of more than 4,300

NOT_YAML = "is not YAML"
_TOO_DEEP = f"is nested deeper than {DEEPEST} levels"


class Unreadable(ValueError):
    """What is wrong with a file, in words that follow its name."""


def open_file(path: Path) -> BinaryIO:
    """A plain file, opened for reading; symbolic links are followed.

    Raises Unreadable, and FileNotFoundError where there is nothing.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: that alone has effects on some devices
            raise Unreadable("is not a plain file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # exchanged in between: O_NONBLOCK has kept us from waiting
        os.close(descriptor)
        raise Unreadable("is not a plain file")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The whole content. Raises Unreadable, and FileNotFoundError where there is nothing."""
    with open_file(path) as file:
        content = _read(file, most + 1)
    if len(content) > most:
        raise Unreadable(f"is larger than {most // 2**20} MiB")
    return content


def lines(path: Path) -> Iterator[bytes]:
    """The lines with their ends; the last one may have none. Raises Unreadable, and FileNotFoundError."""
    with open_file(path) as file:
        left = MOST_LINES
        while line := file.readline(LONGEST_LINE + 1):
            left -= len(line)
            if len(line) > LONGEST_LINE:
                raise Unreadable(f"has a line longer than {LONGEST_LINE // 2**20} MiB")
            if left < 0:
                raise Unreadable(f"is larger than {MOST_LINES // 2**20} MiB")
            yield line


def parse_json(content: bytes) -> Any:
    """The value of a JSON text in UTF-8, or Unreadable. Of a key that is there twice the last value counts."""
    try:
        value = _JSON.decode(content.decode())
    except RecursionError:
        raise Unreadable(_TOO_DEEP) from None
    except Unreadable:
        raise
    except ValueError:
        raise Unreadable("is not JSON") from None
    if content.count(b"[") + content.count(b"{") > DEEPEST:
        _check_depth(value)
    return value


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises Unreadable, and FileNotFoundError where there is nothing."""
    return parse_json(read_bytes(path))


def check_yaml(content: bytes) -> None:
    """Raises Unreadable unless a YAML text is safe to be loaded: its size, depth and aliases are within the limits.

    A loader builds what it reads level by level on the stack (libyaml's dies of a segmentation fault there), and what
    follows it writes every alias out: nine lines may stand for a thousand million values. This reads one event after
    the other instead.
    """
    if len(content) > MOST_YAML:
        raise Unreadable(f"is larger than {MOST_YAML // 2**20} MiB")
    nodes, open_at, anchors = 0, list[tuple[str | None, int]](), dict[str, int]()
    try:
        for event in _events(content):
            if isinstance(event, yaml.AliasEvent):
                if any(anchor == event.anchor for anchor, _ in open_at):
                    raise Unreadable("has an alias within what it stands for")
                nodes += anchors.get(event.anchor, 1)
            elif isinstance(event, yaml.CollectionStartEvent):
                open_at.append((event.anchor, nodes))
                nodes += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_at.pop()
                if anchor is not None:
                    anchors[anchor] = nodes - before
            elif isinstance(event, yaml.ScalarEvent):
                size = 1 + len(event.value) // _TEXT
                nodes += size
                if event.anchor is not None:
                    anchors[event.anchor] = size
            if len(open_at) > DEEPEST:
                raise Unreadable(_TOO_DEEP)
            if nodes > MOST_NODES:
                raise Unreadable(f"stands for more than {MOST_NODES:,} values")
    except (yaml.YAMLError, UnicodeDecodeError):
        raise Unreadable(NOT_YAML) from None


def _events(content: bytes) -> Iterator[Any]:
    parser = _loader()(content)
    while parser.check_event():
        yield parser.get_event()


def parse_yaml(content: bytes) -> Any:
    """The value of a YAML text, of what JSON can hold too, with texts for keys; or Unreadable."""
    check_yaml(content)
    try:
        return _plain(_loader()(content).get_single_data())
    except Unreadable:
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):  # also of what a tag makes of its scalar
        raise Unreadable(NOT_YAML) from None


def read_yaml(path: Path) -> Any:
    """The value in a YAML file. Raises Unreadable, and FileNotFoundError where there is nothing."""
    return parse_yaml(read_bytes(path, MOST_YAML))


def _int(digits: str) -> int:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise Unreadable(f"holds a number of more than {MOST_DIGITS} digits")
    return int(digits)


_JSON = json.JSONDecoder(parse_int=_int)


def _read(file: BinaryIO, most: int) -> bytes:
    """Up to so many bytes: memory grows with what comes, not with what the file claims."""
    parts, left = [], most
    while left and (part := file.read(min(left, 2**20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        inside = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [child for children in inside for child in children]
    if any(isinstance(node, dict | list) for node in level):
        raise Unreadable(_TOO_DEEP)


def _plain(value: Any) -> Any:
    """As JSON has it; the depth is known to be bounded."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:  # bases other than ten have no limit of Python's
        raise Unreadable(f"holds a number of more than {MOST_DIGITS} digits")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise Unreadable(f"holds a {type(value).__name__}")


def are_texts(values: Any) -> TypeGuard[list[str]]:
    """Whether a value is a list of texts."""
    return isinstance(values, list) and all(isinstance(each, str) for each in values)


@cache
def _loader() -> Any:
    """libyaml's, where it is there: OmegaConf's takes a second for ten runs. A date is a text, as there."""
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    known = {
        first: [(tag, pattern) for tag, pattern in each if not tag.endswith(":timestamp")]
        for first, each in base.yaml_implicit_resolvers.items()
    }
    return type("Loader", (base,), {"yaml_implicit_resolvers": known})
