"""Reads files that a stranger may have written: people pass run folders and config folders on.

Whatever such a file holds, reading it takes bounded time, memory and stack, and ends in the content or in `Unreadable`.
A path that is no plain file (a pipe, a device, a folder) is never read: `utils.files.open_to_read` refuses it.
"""

import errno
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import yaml

from fedlab_runner.utils.files import NotPlainFile, open_to_read

MAX_FILE_BYTES = 2**24  # of a file that is read whole
MAX_YAML_BYTES = 2**20  # of a YAML file; a run's config has about ten thousand
MAX_YAML_NODES = 100_000  # of a YAML document: an alias counts as the nodes that it repeats, a long text as several
_CHARACTERS_A_NODE = 64  # characters of a text that count as one node
MAX_LINES_BYTES = 2**28  # of a file of lines
MAX_LINE_BYTES = 2**22  # of one line, with its end
MAX_DEPTH = 50  # levels of lists and mappings, one in another
MAX_INT_DIGITS = 40  # Python refuses to print integers of more than 4,300 digits

_SAFE_TAGS = (None, "!", "tag:yaml.org,2002:str")  # the tags of YAML that suit every text
_BASE_60 = re.compile(r"[-+]?[0-9_]+(:[0-9_]+)+(\.[0-9_]*)?")  # the form of a number of YAML, such as 1:59:00
NOT_YAML = "is not YAML"  # a fault, after the file's name in a message
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"  # a fault, after the file's name in a message
_TOO_MANY_DIGITS = f"holds a number of more than {MAX_INT_DIGITS} digits"  # a fault, after the file's name in a message


class Unreadable(ValueError):
    """What is wrong with a file. The message follows the file's name."""


def read_bytes(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """The whole content. Raises FileNotFoundError where there is no file, Unreadable for one above `limit` bytes
    too.
    """
    with _open(path) as file:
        content = _read(file, limit + 1)
    if len(content) > limit:
        raise Unreadable(f"is larger than {limit // 2**20} MiB")
    return content


def lines(path: Path) -> Iterator[bytes]:
    """The lines with their ends; the last line may have none. Raises Unreadable, and FileNotFoundError."""
    with _open(path) as file:
        left = MAX_LINES_BYTES
        while line := file.readline(MAX_LINE_BYTES + 1):
            left -= len(line)
            if len(line) > MAX_LINE_BYTES:
                raise Unreadable(f"has a line longer than {MAX_LINE_BYTES // 2**20} MiB")
            if left < 0:
                raise Unreadable(f"is larger than {MAX_LINES_BYTES // 2**20} MiB")
            yield line


def parse_json(content: bytes) -> Any:
    """The value of a JSON text in UTF-8; of a repeated key the last value counts. Raises Unreadable."""
    try:
        value = _JSON.decode(content.decode())
    except RecursionError:
        raise Unreadable(_TOO_DEEP) from None
    except Unreadable:
        raise
    except ValueError:
        raise Unreadable("is not JSON") from None
    if content.count(b"[") + content.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises Unreadable, and FileNotFoundError where there is nothing."""
    return parse_json(read_bytes(path))


def check_yaml(content: bytes) -> None:
    """Raises Unreadable unless a YAML text is safe to load: its size, depth and aliases are within the limits.

    A loader needs stack for each level (libyaml's ends in a segmentation fault), and a copy of the result repeats the
    value of every alias: nine lines may stand for a thousand million values. PyYAML raises errors of any type for a
    text that does not suit its tag, and takes quadratic time for a number in base 60. The check reads the parser's
    events one by one.
    """
    if len(content) > MAX_YAML_BYTES:
        raise Unreadable(f"is larger than {MAX_YAML_BYTES // 2**20} MiB")
    nodes, open_at, anchors = 0, list[tuple[str | None, int]](), dict[str, int]()
    try:
        for event in _events(content):
            if getattr(event, "tag", None) not in _SAFE_TAGS:
                raise Unreadable("has a tag before a value, such as !!float (remove it: only !!str is read)")
            if isinstance(event, yaml.AliasEvent):
                if any(anchor == event.anchor for anchor, _ in open_at):
                    raise Unreadable("has an alias within the value that it repeats")
                nodes += anchors.get(event.anchor, 1)
            elif isinstance(event, yaml.CollectionStartEvent):
                open_at.append((event.anchor, nodes))
                nodes += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                anchor, before = open_at.pop()
                if anchor is not None:
                    anchors[anchor] = nodes - before
            elif isinstance(event, yaml.ScalarEvent):
                if event.implicit[0] and event.value.count(":") >= MAX_INT_DIGITS and _BASE_60.fullmatch(event.value):
                    raise Unreadable(_TOO_MANY_DIGITS)
                size = 1 + len(event.value) // _CHARACTERS_A_NODE
                nodes += size
                if event.anchor is not None:
                    anchors[event.anchor] = size
            if len(open_at) > MAX_DEPTH:
                raise Unreadable(_TOO_DEEP)
            if nodes > MAX_YAML_NODES:
                raise Unreadable(f"stands for more than {MAX_YAML_NODES:,} values")
    except (yaml.YAMLError, UnicodeDecodeError):
        raise Unreadable(NOT_YAML) from None


def _events(content: bytes) -> Iterator[Any]:
    parser = _loader()(content)
    while parser.check_event():
        yield parser.get_event()


def parse_yaml(content: bytes) -> Any:
    """The value of a YAML text that JSON could hold too, its keys as texts. Raises Unreadable."""
    check_yaml(content)
    try:
        return _plain(_loader()(content).get_single_data())
    except Unreadable:
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        raise Unreadable(NOT_YAML) from None


def read_yaml(path: Path) -> Any:
    """The value in a YAML file. Raises Unreadable, and FileNotFoundError where there is nothing."""
    return parse_yaml(read_bytes(path, MAX_YAML_BYTES))


def _int(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_INT_DIGITS:
        raise Unreadable(_TOO_MANY_DIGITS)
    return int(digits)


_JSON = json.JSONDecoder(parse_int=_int)  # a decoder that limits the digits of integers


def _open(path: Path) -> BinaryIO:
    try:
        return open_to_read(path)
    except NotPlainFile:
        raise Unreadable("is not a plain file") from None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except ValueError as error:  # a path that no file can have, such as one with a zero byte
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror})") from error


def _read(file: BinaryIO, limit: int) -> bytes:
    """Up to `limit` bytes. Memory grows with the bytes that come, not with the size that the file claims."""
    parts, left = [], limit
    while left and (part := file.read(min(left, 2**20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        inside = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [child for children in inside for child in children]
    if any(isinstance(node, dict | list) for node in level):
        raise Unreadable(_TOO_DEEP)


def _plain(value: Any) -> Any:
    """The value as JSON has it. The caller has checked its depth."""
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, int) and abs(value) >= 10**MAX_INT_DIGITS:  # Python limits the digits in base ten only
        raise Unreadable(_TOO_MANY_DIGITS)
    return value


def are_texts(values: Any) -> TypeGuard[list[str]]:
    """Whether a value is a list of texts."""
    return isinstance(values, list) and all(isinstance(each, str) for each in values)


@cache
def _loader() -> Any:
    """A loader of libyaml where PyYAML has it: OmegaConf's takes a second for ten runs. Dates are texts in both."""
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    known = {
        first: [(tag, pattern) for tag, pattern in each if not tag.endswith(":timestamp")]
        for first, each in base.yaml_implicit_resolvers.items()
    }
    return type("Loader", (base,), {"yaml_implicit_resolvers": known})
