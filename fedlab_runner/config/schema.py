"""Checks a config's types against the dataclass fields of its targets, before anything is built."""

import dataclasses
import math
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, Union

from fedlab_runner.config import targets
from fedlab_runner.utils.nearest import nearest

MISSING = "???"  # OmegaConf's mark of a value that the user must give
MAX_SHOWN_CHARACTERS = 200  # of a value in a message
# What to do about a field that has a default. One that a run could fill would outlive no checkpoint.
DEFAULTED = "write its default into the YAML file and not into the class; no field keeps what a run changes"
INT_LIMIT = 2**48  # whole numbers must be smaller in size: 64 bits then hold what libraries multiply them with


@dataclasses.dataclass(frozen=True)
class Node:
    """A checked component that is not built yet: it is `cls(**fields)` once the nodes in its fields are built."""

    target: str
    cls: type
    fields: dict[str, Any]


def convert_fields(
    values: Mapping[str, Any], hints: Mapping[str, Any], path: str, errors: list[str], defaulted: Collection[str] = ()
) -> dict[str, Any]:
    """The values converted to their type hints; one line for each fault is appended to `errors`. For keys that are
    `defaulted` their class has a default, which counts for nothing.
    """
    errors += [unknown_key(join(path, key), [join(path, name) for name in hints]) for key in values if key not in hints]
    converted = {}
    for key, hint in hints.items():
        name = join(path, key)
        if key in values and values[key] != MISSING:
            converted[key] = _convert_at(values[key], hint, name, errors)
        else:
            errors.append(f"{name} is missing: {DEFAULTED if key in defaulted else f'expected {describe(hint)}'}")
    return converted


def convert_node(node: Mapping[str, Any], hint: Any, path: str, errors: list[str]) -> "Node | dict[str, Any]":
    """A node with `_target_`, its values converted to the types of the target's fields.

    The node is returned unchanged, with a fault, where this type hint does not take the target.
    """
    try:
        cls = targets.find_class(node["_target_"])
    except ValueError as error:
        errors.append(f"{path}._target_ {error}")
        return dict(node)
    if not targets.fits(cls, hint):
        errors.append(f"{path}._target_ must be of the kind {targets.name_of(hint)}, got {node['_target_']!r}")
        return dict(node)
    if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
        names, must = ", ".join(lacking), "the class must define each method of its base class"
        errors.append(f"{path}._target_ {node['_target_']!r} lacks {names}: {must}")
        return dict(node)
    if taken := [field.name for field in dataclasses.fields(cls) if _is_of_base(field.default)]:
        names = f"{', '.join(taken)}, which its base class has for itself: give the field another name"
        errors.append(f"{path}._target_ {node['_target_']!r} has a field {names}")
        return dict(node)
    hints = typing.get_type_hints(cls)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}
    defaulted = [
        field.name
        for field in dataclasses.fields(cls)
        if not (field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING)
    ]
    values = {key: value for key, value in node.items() if key != "_target_"}
    return Node(node["_target_"], cls, convert_fields(values, fields, path, errors, defaulted))


def plain(value: Any) -> Any:
    """A converted value in the form of a config: nodes are mappings with a `_target_`."""
    if isinstance(value, Node):
        return {"_target_": value.target, **plain(value.fields)}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def unknown_key(
    key: str, known: Collection[str], chosen: Mapping[str, str] | None = None, droppable: bool = True
) -> str:
    """A line that reports an unknown key and names the known ones; `chosen` has the choices of the places. Unless
    `droppable`, no config has the key.
    """
    parent, _, last = key.rpartition(".")
    siblings = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == parent]
    siblings = [name for name in siblings if name != "_target_"]
    if guess := nearest(last, siblings):
        guess = join(parent, guess)
    elif parent and parent not in known and not siblings:
        guess = nearest(key, known)  # the fault is in the first part
    elif not parent:
        guess = " or ".join(name for name in known if name.rpartition(".")[2] == last)  # in its right places
    if guess:
        return f"{key} is not a key: did you mean {guess}?"
    choice = f"={chosen[parent]}" if chosen and parent in chosen else ""
    has = f"{parent or 'the config'}{choice} has {', '.join(siblings) or 'no keys'}"
    return f"{key} is not a key: {has}" + (f"; to drop it from an experiment: ~{key}" if droppable else "")


def key_names(value: Any, path: str = "") -> Iterator[str]:
    """The keys of a config or of its part at a path, those of its parts included."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            name = join(path, str(key))
            yield name
            yield from key_names(child, name)


def open_mapping(config: Any, key: str) -> str | None:
    """The part of a key that is a mapping of any keys: one in a component, without a `_target_` of its own."""
    node, path, in_component = config, "", False
    for name in key.split("."):
        in_component |= "_target_" in node
        node, path = node.get(name), join(path, name)
        if not isinstance(node, Mapping):
            return None
        if in_component and "_target_" not in node:
            return path
    return None


def way_out(word: str, words: Collection[str], what: str) -> str:
    """The end of a line about a word that is none of these `choices`, `groups` or the like."""
    guess = nearest(word, words)
    return f"did you mean {guess}? {what}: {', '.join(words)}" if guess else f"choose one of {', '.join(words)}"


def describe(hint: Any) -> str:
    """A type in words for people who do not write Python."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(each) for each in arguments)
    if origin is Literal:
        return "one of " + ", ".join(str(each) for each in arguments)
    if origin is list:
        return f"a list (each {describe(arguments[0])})"
    if origin is dict:
        return "a mapping"
    if origin is tuple:
        inner = getattr(arguments[0], "__name__", arguments[0])
        return f"declared as list[{inner}] in its class, as a config holds no tuple"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "null"}
    return words.get(hint, "a choice with a _target_" if targets.takes_objects(hint) else "a plain value")


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _is_of_base(default: Any) -> bool:
    """Whether a dataclass took this default of a field from its base class: a property or method of the same name."""
    return isinstance(default, property | types.FunctionType)


def _convert_at(value: Any, hint: Any, path: str, errors: list[str]) -> Any:
    """`_convert` that goes into containers and reports faults with their path."""
    origin = typing.get_origin(hint)
    if isinstance(value, Mapping) and "_target_" in value:
        if targets.takes_objects(hint):
            return convert_node(value, hint, path, errors)
        errors.append(f"{path} takes no _target_: it must be {describe(hint)}")
        return value
    if isinstance(value, Mapping) and (hint is Any or origin is dict):
        inner = typing.get_args(hint)[1] if origin is dict else Any
        return {key: _convert_at(each, inner, f"{path}.{key}", errors) for key, each in value.items()}
    if isinstance(value, list) and (hint is Any or origin is list):
        inner = typing.get_args(hint)[0] if origin is list else Any
        return [_convert_at(each, inner, f"{path}[{i}]", errors) for i, each in enumerate(value)]
    try:
        return _convert(value, hint)
    except (TypeError, ValueError):
        wanted = describe(hint)
        if hint is not Any and targets.takes_objects(hint):
            how = f"<group>@{path}=<name>" if "." in path else f"{path}=<one of the files in conf/{path}>"
            wanted = f"a choice: {how}"
        if isinstance(value, int) and abs(value) >= INT_LIMIT and float not in targets.kinds(hint):
            wanted = "less than 2^48 in size"
        errors.append(f"{path} must be {wanted}, got {_shown(value)}")
        return value


def _shown(value: Any) -> str:
    """A value as a message shows it, in one short line."""
    text = "null" if value is None else repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "more"
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."


def _convert(value: Any, hint: Any) -> Any:
    """The value as the type, if that loses nothing: 1 is a number, 1e2 a whole number, "0.1" (environment) a number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, arguments)
    if origin is list and isinstance(value, list):
        return [_convert(each, arguments[0]) for each in value]
    if origin is Literal and value in arguments:
        return value
    if hint is types.NoneType and value is None:
        return None
    if hint is bool and isinstance(value, bool):
        return value
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        if hint is str:
            return str(value)
        if hint is int and (not isinstance(value, float) or value.is_integer()) and abs(int(value)) < INT_LIMIT:
            return int(value)
        if hint is float and not math.isnan(float(value)):
            return float(value) + 0.0  # no -0.0, which numpy takes for a negative number
    raise TypeError


def _convert_union(value: Any, hints: tuple[Any, ...]) -> Any:
    """The value unchanged if its type is among the hints, else as the first type that takes it."""
    if type(value) in hints:
        return _convert(value, type(value))
    for hint in hints:
        try:
            return _convert(value, hint)
        except (TypeError, ValueError):
            continue
    raise TypeError
