"""The registry of names, styles and references of methods, for reports, pictures, sweeps, trackers and docs.

The entries are in `methods.yaml` and `references.bib` beside this module. An installed plugin has files of the same
names in its folder `conf`. `add_folder` adds those of a folder such as that of `--config-dir`. An algorithm without an
entry gets a name and a style from its choice, the same everywhere.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedlab_runner.utils import plugin_folders, untrusted
from fedlab_runner.utils.errors import UserError

METHODS, REFERENCES = "methods.yaml", "references.bib"
# Keys of an entry in methods.yaml.
ENTRY_KEYS = ("name", "colour", "dash", "marker", "cite", "around", "variants", "when")
MARKERS = "os^DvPX*<>ph"  # filled markers of matplotlib
BLACK, WHITE = 0, 255  # the grey of a dark and of a light page, and of their opposites
NEAR = 60  # of 255: a grey as near to the opposite of the page has no room for shades on that side
PLAIN = ("none", "null", "", "mean")  # choices that a name need not mention
_OWN = Path(__file__).parent  # the folder of this package's own entries
_folders: list[Path] = []


@dataclass(frozen=True)
class Line:
    """The style of a line.

    `colour` and `dark`: `#RRGGBB` on a white and on a dark page. `dash`: alternating lengths of ink and gap, in line
    widths; empty for a solid line. `marker`: matplotlib's character.
    """

    colour: str
    dark: str
    dash: tuple[float, ...]
    marker: str

    @property
    def linestyle(self) -> Any:
        """The dash in matplotlib's form."""
        return (0, self.dash) if self.dash else "-"


@dataclass(frozen=True)
class Method:
    """A method: its name in papers, its line, the keys of its references, and the places whose choices the name covers.

    `key` is the name in small letters without spaces, such as `feddle-id`. Two settings with one key are one method.
    """

    key: str
    name: str
    line: Line
    cite: tuple[str, ...]
    told: frozenset[str]


def method_style(algorithm: str, choices: Mapping[str, Any] | None = None) -> Method:
    """The method that an algorithm and these choices make.

    `algorithm`: the choice of the config group. `choices`: by place, e.g. `server_data`, `home`, `algorithm.base` (or
    `algorithm@algorithm.base`). Other places do not matter.
    """
    places = {key.rpartition("@")[2]: str(value) for key, value in (choices or {}).items()}
    entry = _entries().get(algorithm)
    return _unknown(algorithm) if entry is None else _known(algorithm, entry, places)


def choices_of(config: Mapping[str, Any], path: str = "") -> dict[str, str]:
    """The choice at each place of a composed config, by the module of its class: `algorithm.base`: `scaffold`."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            place = f"{path}.{key}" if path else str(key)
            if "_target_" in value:
                found[place] = str(value["_target_"]).split(".")[-2:][0]
            found |= choices_of(value, place)
    return found


def method_of(config: Mapping[str, Any]) -> Method:
    """The method of a composed config."""
    choices = choices_of(config)
    return method_style(choices.get("algorithm", ""), choices)


def tell_apart(methods: Sequence[Method]) -> list[Line]:
    """The lines of one picture: each method's own; a repeated method has other shades, dashes and markers, and a method
    alone in the picture the colours of the palette.
    """
    seen: dict[str, list[int]] = {}
    for i, method in enumerate(methods):
        seen.setdefault(method.key, []).append(i)
    lines = [method.line for method in methods]
    dashes = list(_styles()[1].values())
    for places in seen.values():
        own = lines[places[0]]
        colours = [(own.colour, own.dark)]
        colours += [each for each in _styles()[0].values() if len(seen) == 1 and each != colours[0]]
        for n, i in enumerate(places[1:], 1):
            light, dark = colours[n % len(colours)]
            share = (n - n % len(colours)) / len(places)
            dash = dashes[(dashes.index(own.dash) + n) % 4] if own.dash in dashes[:4] else dashes[n % 4]
            marker = MARKERS[(MARKERS.find(own.marker) + n) % len(MARKERS)]
            lines[i] = Line(_shade(light, share, WHITE), _shade(dark, share, BLACK), dash, marker)
    return lines


def bibliography(keys: Iterable[str]) -> str:
    """The BibTeX entries of these keys, each once, in the order of keys, without keys that have no entry."""
    known = _references()
    return "\n".join(known[key] for key in sorted(set(keys)) if key in known)


def add_folder(folder: Path) -> None:
    """Adds `methods.yaml` and `references.bib` of a folder, if it has them. Raises UserError for a faulty file."""
    if (folder := folder.absolute()) not in _folders:
        _folders.append(folder)
        _entries.cache_clear()
        _references.cache_clear()
        _entries()


def _known(algorithm: str, entry: Mapping[str, Any], places: Mapping[str, str]) -> Method:
    variant: Mapping[str, Any] = next((each for each in entry.get("variants", ()) if _fits(each["when"], places)), {})
    when = variant.get("when", {})
    asked = {place for each in entry.get("variants", ()) for place in each["when"]}
    told = {place for place in asked if places.get(place, "none") in (*PLAIN, when.get(place))}
    own = {**entry, **variant}
    found = _made(own, frozenset(told))
    inner = places.get(str(entry.get("around")))
    if inner in (None, *PLAIN, algorithm):
        return found
    base = method_style(str(inner), places)
    told |= base.told | {entry["around"]}
    if variant or base.key == "fedavg":  # around plain averaging a method has its own name
        return replace(found, told=frozenset(told))
    name = f"{base.name} + {found.name}"
    line = replace(base.line, dash=_styles()[1]["wrapped"])
    return Method(_key(name), name, line, (*base.cite, *found.cite), frozenset(told))


def _fits(when: Mapping[str, str], places: Mapping[str, str]) -> bool:
    for place, wanted in when.items():
        have = places.get(place, "none")
        if have != wanted and not (wanted == "out_of_domain" and have not in (*PLAIN, "in_domain")):
            return False
    return True


def _made(entry: Mapping[str, Any], told: frozenset[str] = frozenset()) -> Method:
    light, dark = _styles()[0].get(entry["colour"], (entry["colour"],) * 2)
    line = Line(light, dark, _styles()[1][entry["dash"]], entry["marker"])
    return Method(_key(entry["name"]), entry["name"], line, tuple(entry.get("cite", ())), told)


def _unknown(algorithm: str) -> Method:
    """The method of an algorithm without an entry, made of its choice alone, so that every page shows the same."""
    last = algorithm.rpartition("/")[2]
    name = re.sub(r"^fed(?=[a-z])", "Fed", last).replace("_", " ")
    name = name[:3] + name[3:4].upper() + name[4:] if name.startswith("Fed") else name
    number = zlib.crc32(last.encode())
    colours = sorted(_styles()[0])
    colour, marker = colours[number % len(colours)], MARKERS[number // len(colours) % len(MARKERS)]
    return _made({"name": name or algorithm, "colour": colour, "dash": "other", "marker": marker})


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _shade(colour: str, share: float, page: int) -> str:
    """A colour mixed with up to half of the page's opposite; near it, with up to 70 % of the page."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    opposite = WHITE - page
    grey = 0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2]
    towards, most = (opposite, 0.5) if abs(grey - opposite) > NEAR else (page, 0.7)
    return "#" + "".join(f"{round(part + most * share * (towards - part)):02X}" for part in parts)


@cache
def _styles() -> tuple[dict[str, tuple[str, str]], dict[str, tuple[float, ...]]]:
    """The palette (each colour on a white and on a dark page) and the dashes, by name."""
    content = untrusted.read_yaml(_OWN / METHODS)
    palette = {name: (each["light"], each["dark"]) for name, each in content["palette"].items()}
    return palette, {name: tuple(map(float, each)) for name, each in content["dashes"].items()}


@cache
def _entries() -> dict[str, dict[str, Any]]:
    """The entries of the package, of installed plugins and of added folders, by algorithm."""
    found: dict[str, dict[str, Any]] = {}
    for folder in (_OWN, *plugin_folders.conf_dirs(), *_folders):
        path = folder / METHODS
        try:
            content = untrusted.read_yaml(path)
        except FileNotFoundError:
            continue
        except untrusted.Unreadable as fault:
            raise UserError(f"{path} {fault}: it says how methods are called and drawn") from None
        methods = content.get("methods") if isinstance(content, Mapping) else None
        if not isinstance(methods, Mapping):
            raise UserError(f"{path}: methods must map algorithms to entries")
        for algorithm, entry in methods.items():
            if algorithm in found:
                raise UserError(f"{path}: methods.{algorithm} has an entry already; leave one of the two out")
            _check(entry, f"{path}: methods.{algorithm}")
            found[algorithm] = entry
    return found


# For each key a test of its value, and the words for what it must be.
_WANTED: dict[str, tuple[Callable[[Any], bool], Callable[[], str]]] = {
    "colour": (
        lambda each: isinstance(each, str) and (each in _styles()[0] or bool(re.fullmatch("#[0-9A-Fa-f]{6}", each))),
        lambda: f"one of {', '.join(_styles()[0])}, or #RRGGBB",
    ),
    "dash": (lambda each: isinstance(each, str) and each in _styles()[1], lambda: f"one of {', '.join(_styles()[1])}"),
    "marker": (lambda each: isinstance(each, str) and each in [*MARKERS], lambda: f"one of {' '.join(MARKERS)}"),
    "cite": (untrusted.are_texts, lambda: f"a list of keys of {REFERENCES}"),
    "when": (
        lambda each: isinstance(each, Mapping) and bool(each) and untrusted.are_texts([*each.values()]),
        lambda: "a mapping of places to choices",
    ),
    "variants": (lambda each: isinstance(each, list), lambda: "a list"),
}


def _check(entry: Any, where: str, whole: bool = True) -> None:
    """Raises UserError for a faulty entry, or a faulty variant (not `whole`)."""
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} must be a mapping with the keys {', '.join(ENTRY_KEYS[:-1])}")
    for key, value in entry.items():
        if key not in ENTRY_KEYS:
            raise UserError(f"{where}.{key} is not a key; known: {', '.join(ENTRY_KEYS)}")
        fits, wanted = _WANTED.get(key, (lambda each: isinstance(each, str) and bool(each), lambda: "a text"))
        if not fits(value):
            raise UserError(f"{where}.{key} must be {wanted()}, got {value!r}")
    for key in ("name", "colour", "dash", "marker") if whole else ("when", "name"):
        if key not in entry:
            raise UserError(f"{where}.{key} is missing")
    for i, variant in enumerate(entry.get("variants", ())):
        _check(variant, f"{where}.variants[{i}]", whole=False)


@cache
def _references() -> dict[str, str]:
    """The BibTeX entries by key; if two files have a key, the first file counts."""
    found: dict[str, str] = {}
    for folder in (_OWN, *plugin_folders.conf_dirs(), *_folders):
        try:
            text = untrusted.read_bytes(folder / REFERENCES).decode()
        except FileNotFoundError:
            continue
        except (untrusted.Unreadable, UnicodeDecodeError):
            raise UserError(f"{folder / REFERENCES} is no text in UTF-8") from None
        for each in re.finditer(r"^@\w+\{\s*([^,\s]+),.*?^\}\n?", text, re.MULTILINE | re.DOTALL):
            found.setdefault(each[1], each[0].rstrip() + "\n")
    return found
