"""The registry of methods: each has a name, a line of its own and a reference, and can be told from its rivals."""

import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedlab_runner.methods import registry
from fedlab_runner.methods.registry import Line, Method, method_style, tell_apart
from fedlab_runner.utils.errors import UserError
from tests.helpers.paths import ROOT

# Machado, Oliveira and Fernandes (2009), severity 1: what is left of linear RGB.
SEEN = {
    "all cones": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
}
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
AXES = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
# Distances in OKLab. Okabe and Ito's own green and purple are 0.076 apart under deuteranopia, the least of all pairs.
APART = {"all cones": 0.11, "deuteranopia": 0.07, "protanopia": 0.07}
GREY_APART = 10  # of 100, in CIE lightness: from here on two solid lines can be told apart in grey
# Methods that are compared beside the tables in conf/paper.
RIVALS = (
    ("fedavg", "fedprox", "scaffold", "fednova", "feddyn"),
    ("fedavg", "ditto", "pfedme", "apfl", "perfedavg", "fedrep", "fedbabu", "fedala"),
    (
        "fedavg",
        "dec_fedavg",
        "dec_fedprox",
        "def_kt",
        "dfml",
        "heterofl",
        "fedrolex",
        "federated_dropout",
        "fml",
        "dpsgd",
    ),
    ("fedavg", "fedprox", "hyfem", "standalone"),
)


@pytest.fixture(autouse=True)
def own_entries_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Folders that a test adds are gone after it."""
    monkeypatch.setattr(registry, "_folders", added := [])
    yield
    if added:
        registry._entries.cache_clear()
        registry._references.cache_clear()


def methods() -> list[Method]:
    """Each algorithm with an entry, and its variants."""
    entries = registry._entries().items()
    return [
        method_style(name, each["when"]) for name, own in entries for each in ({"when": {}}, *own.get("variants", ()))
    ]


@cache
def tables() -> dict[str, list[Method]]:
    """The methods of each published table, and of the groups of rivals."""
    found = {}
    for path in sorted((ROOT / "conf" / "paper").rglob("*.yaml")):
        choices = [row["choice"] for row in yaml.safe_load(path.read_text())["rows"]]
        rows = [method_style(each["algorithm"], {"server_data": "none", **each}) for each in choices]
        found[path.relative_to(ROOT / "conf" / "paper").as_posix()] = list({each.key: each for each in rows}.values())
    return found | {" ".join(group): [method_style(each) for each in group] for group in RIVALS}


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """OKLab (Ottosson, 2020) of linear RGB."""
    return AXES @ np.cbrt(CONES @ rgb)


def lightness(colour: str) -> float:
    """CIE L*, from 0 to 100: what is left of a colour in grey."""
    y = float(linear(colour) @ np.array([0.2126, 0.7152, 0.0722]))
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def contrast(colour: str, page: str) -> float:
    """The contrast of WCAG 2, from 1 to 21."""
    low, high = sorted(float(linear(each) @ np.array([0.2126, 0.7152, 0.0722])) + 0.05 for each in (colour, page))
    return high / low


def test_every_algorithm_has_an_entry_and_no_entry_is_without_one() -> None:
    algorithms = {path.stem for path in (ROOT / "conf" / "algorithm").glob("*.yaml")}
    assert set(registry._entries()) == algorithms


def test_names_and_lines_are_each_one_methods() -> None:
    found = methods()
    assert len({each.key for each in found}) == len({each.name for each in found}) == len(found)
    for field in ("colour", "dark"):
        assert len({(getattr(each.line, field), each.line.dash, each.line.marker) for each in found}) == len(found)


@pytest.mark.parametrize("name", tables())
@pytest.mark.parametrize("field", ["colour", "dark"])
def test_methods_that_are_compared_can_be_told_apart(name: str, field: str) -> None:
    for a, b in itertools.combinations(tables()[name], 2):
        pair = (a.name, b.name)
        assert a.line.marker != b.line.marker, pair
        seen = [linear(getattr(each.line, field)) for each in (a, b)]
        for eyes, matrix in SEEN.items():
            left, right = (oklab(np.clip(matrix @ each, 0, 1)) for each in seen)
            assert np.linalg.norm(left - right) > APART[eyes], (*pair, eyes)
        if field == "colour" and abs(lightness(a.line.colour) - lightness(b.line.colour)) < GREY_APART:
            assert a.line.dash != b.line.dash, (*pair, "in grey")  # on paper, where pictures are printed in grey


def test_lines_are_seen_on_their_page() -> None:
    """Okabe and Ito's orange has the least contrast on white: 2.2, where WCAG asks for 3."""
    assert all(contrast(each.line.colour, "#FFFFFF") > 2.2 for each in methods())
    assert all(contrast(each.line.dark, "#16181D") > 2.8 for each in methods())


def test_every_reference_is_there_and_is_used() -> None:
    cited = {key for each in methods() for key in each.cite}
    text = registry.bibliography(cited)
    assert set(re.findall(r"^@\w+\{(\S+),$", text, re.MULTILINE)) == cited == set(registry._references())
    assert {each.name for each in methods() if not each.cite} == {"Stand-alone"}
    for entry in text.split("\n@"):
        assert {"title", "author", "year"} <= set(re.findall(r"^  (\w+) = \{", entry, re.MULTILINE)), entry
        assert entry.count("{") == entry.count("}"), entry


def test_references_say_what_the_modules_say() -> None:
    """The arXiv number or the address in a module's first lines is that of one of the method's references."""
    for algorithm in registry._entries():
        text = (ROOT / "fedlab_runner" / "algorithms" / f"{algorithm}.py").read_text().split('"""')[1]
        given = registry.bibliography(method_style(algorithm).cite)
        for place in re.findall(r"https://\S+", text):
            assert place.removeprefix("https://arxiv.org/abs/") in given, (algorithm, place)


@pytest.mark.parametrize(
    ("algorithm", "choices", "name"),
    [
        ("fedavg", {"home": "none", "server_optimizer": "none"}, "FedAvg"),
        ("fedavg", {"home": "head"}, "FedPer"),
        ("fedavg", {"server_optimizer": "yogi"}, "FedYogi"),
        ("fedavg", {"aggregator": "mean"}, "FedAvg"),
        ("fedavg", {"aggregator": "geometric_median"}, "RFA"),
        ("feddle", {"server_data": "none"}, "Feddle"),
        ("feddle", {"server_data": "in_domain"}, "Feddle-ID"),
        ("feddle", {"server_data": "tiny_imagenet"}, "Feddle-OOD"),
        ("fedft", {"server_data": "in_domain"}, "Fed+FT"),
        ("fedwalk", {"algorithm.base": "fedavg"}, "FedWalk"),
        ("fedwalk", {"algorithm@algorithm.base": "scaffold"}, "SCAFFOLD + FedWalk"),
        ("fedwalk", {"algorithm.base": "feddyn"}, "FedDyn + FedWalk"),
        ("fedwalk", {"algorithm.base": "fedavg", "server_optimizer": "adam"}, "FedAdam + FedWalk"),
        ("fedmedian", {}, "FedMedian"),
        ("my_method", {}, "my method"),
    ],
)
def test_names(algorithm: str, choices: dict[str, str], name: str) -> None:
    assert method_style(algorithm, choices).name == name


def test_a_name_tells_the_choices_that_make_it() -> None:
    assert method_style("feddle", {"server_data": "in_domain"}).told == {"server_data"}
    assert method_style("feddle", {"server_data": "tiny_imagenet"}).told == set()  # there are other domains
    others = {"server_optimizer": "adam", "aggregator": "krum"}
    assert method_style("fedavg", {"home": "head"} | others).told == {"home"}
    assert "aggregator" in method_style("fedavg", {"aggregator": "mean"}).told
    assert "algorithm.base" in method_style("fedwalk", {"algorithm.base": "scaffold"}).told


def test_a_method_around_another_one_has_its_colour_and_a_dash_of_its_own() -> None:
    base, both = method_style("feddyn"), method_style("fedwalk", {"algorithm.base": "feddyn"})
    assert (both.line.colour, both.line.marker) == (base.line.colour, base.line.marker)
    assert both.line.dash not in {each.line.dash for each in methods()}
    assert both.cite == (*base.cite, *method_style("fedwalk").cite)


def test_a_method_without_an_entry_looks_the_same_everywhere_and_like_no_other() -> None:
    assert method_style("mine/fedmedian") == method_style("mine/fedmedian", {"home": "head"})
    assert method_style("fedmedian").line.dash not in {each.line.dash for each in methods()}
    assert len({method_style(f"method{i}").line for i in range(40)}) > 30


def test_settings_of_one_method_in_a_picture_have_different_lines() -> None:
    some = [method_style("fedavg")] * 5 + [method_style("fedprox")] * 3 + [method_style("scaffold")]
    lines = tell_apart(some)
    assert len(set(lines)) == len(lines)
    assert [lines[0], lines[5], lines[8]] == [each.line for each in (some[0], some[5], some[8])]
    assert len({(line.dash, line.marker) for line in lines[:5]}) == 5
    assert tell_apart(some[5:6]) == [some[5].line]
    alone = tell_apart(some[:5] * 20)
    assert len({line.colour for line in alone[:11]}) == 11 and alone[0] == some[0].line, "all of the palette"
    assert len(set(alone)) == 100


@pytest.mark.parametrize("colour", registry._styles()[0])
def test_no_shade_of_a_method_is_lost_on_the_page(colour: str) -> None:
    own = registry._made({"name": "x", "colour": colour, "dash": "solid", "marker": "o"})
    for line in tell_apart([own] * 10 + [method_style("fedavg")])[:10]:
        assert contrast(line.colour, "#FFFFFF") > 1.9 and contrast(line.dark, "#16181D") > 1.9


def add(folder: Path, text: str | None) -> None:
    if text is not None:
        (folder / registry.METHODS).write_text(text)
    registry.add_folder(folder)


def test_a_folder_brings_entries_and_references(tmp_path: Path) -> None:
    (tmp_path / registry.REFERENCES).write_text("@misc{yin2018,\n  title = {T},\n}\n")
    add(tmp_path, "methods: {fedmedian: {name: Median, colour: '#123456', dash: solid, marker: o, cite: [yin2018]}}")
    found = method_style("fedmedian")
    assert (found.name, found.line) == ("Median", Line("#123456", "#123456", (), "o"))
    assert registry.bibliography(found.cite) == "@misc{yin2018,\n  title = {T},\n}\n"
    assert method_style("fedavg").name == "FedAvg"


def test_an_installed_plugin_brings_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / registry.METHODS).write_text(
        "methods: {fedmedian: {name: Median, colour: wine, dash: dotted, marker: D}}"
    )
    monkeypatch.setattr(registry.plugin_folders, "conf_dirs", lambda: [tmp_path])
    add(tmp_path / "nothing", None)
    assert method_style("fedmedian").name == "Median"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("methods: [1]", "methods must map algorithms to entries"),
        ("methods: {a: b}", "methods.a must be a mapping"),
        ("methods: {fedavg: {name: A, colour: black, dash: solid, marker: o}}", "methods.fedavg has an entry already"),
        ("methods: {a: {name: A, colour: pink, dash: solid, marker: o}}", "methods.a.colour must be one of black"),
        ("methods: {a: {name: A, colour: black, dash: wavy, marker: o}}", "methods.a.dash must be one of solid"),
        ("methods: {a: {name: A, colour: black, dash: solid, marker: dot}}", "methods.a.marker must be one of o s"),
        ("methods: {a: {name: A, colour: black, dash: solid}}", "methods.a.marker is missing"),
        ("methods: {a: {name: A, colours: black}}", "methods.a.colours is not a key"),
        ("methods: {a: {name: 3}}", "methods.a.name must be a text, got 3"),
        (
            "methods: {a: {name: A, colour: black, dash: solid, marker: o, variants: [{name: B}]}}",
            "variants[0].when is",
        ),
        ("methods: {", "is not YAML"),
    ],
)
def test_a_faulty_entry_is_one_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(words)) as fault:
        add(tmp_path, text)
    assert str(tmp_path / registry.METHODS) in str(fault.value)
    assert "\n" not in str(fault.value)
