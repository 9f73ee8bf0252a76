"""Charts as SVG with real text, as parts of the page and as files beside the markdown.

Each point is a pair of numbers in a path, in pixels of the panel. The page's script reads them there for its hover
values and its zoom; values far beyond the axes, which are drawn nearer, stand beside the path. A library makes the
elements, so that no text of a run becomes an element.
"""

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement

from fedlab_runner.methods.registry import Line
from fedlab_runner.report.content import Chart, Dots, Entry, Panel, Series
from fedlab_runner.report.scales import log_tick_labels, log_ticks, tick_labels, ticks
from fedlab_runner.utils.escaping import short, visible

WIDTH, HEIGHT = 440, 286  # of a panel
LEFT, TOP, RIGHT, BOTTOM = 60, 42, 12, 40  # margins around its axes; on the left are ticks such as 0.00095
ACROSS, DOWN = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM  # its axes
EDGE = 5  # pixels beyond the axes, for the markers at their ends
TEXT = 12.5  # size of text in pixels
MAX_MARKERS = 6  # on a line
MAX_LABEL_CHARACTERS = 52  # of a text in a picture
MAX_NAME_CHARACTERS = 120  # of a name in the legend of a file, which is as wide as its longest name
LETTER = 7.5  # the width of a letter of a name
LEGEND_ROW = 20  # the height of a row of the legend in a file
BEYOND = 20  # heights of the axes within which a point is drawn
DOT = 16  # the distance between clients, and between classes
SHAPES = {  # paths of markers around their middle, about nine pixels across
    "o": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "s": "m-3.6-3.6h7.2v7.2h-7.2z",
    "^": "m0-4.6l4.4 8.2h-8.8z",
    "v": "m0 4.6l4.4-8.2h-8.8z",
    "<": "m-4.6 0l8.2-4.4v8.8z",
    ">": "m4.6 0l-8.2-4.4v8.8z",
    "D": "m-4.9 0l4.9-4.9l4.9 4.9l-4.9 4.9z",
    "P": "m-1.6-4.5h3.2v2.9h2.9v3.2h-2.9v2.9h-3.2v-2.9h-2.9v-3.2h2.9z",
    "X": "m0-2.2l2.2-2.2l2.2 2.2l-2.2 2.2l2.2 2.2l-2.2 2.2l-2.2-2.2l-2.2 2.2l-2.2-2.2l2.2-2.2l-2.2-2.2l2.2-2.2z",
    "*": "m0-5l1.3 3.4l3.5 .1l-2.8 2.2l1 3.4l-3-2l-3 2l1-3.4l-2.8-2.2l3.5-.1z",
    "p": "m0-4.6l4.4 3.2l-1.7 5.1h-5.4l-1.7-5.1z",
    "h": "m0-4.6l4 2.3v4.6l-4 2.3l-4-2.3v-4.6z",
}


def css_class(line: Line) -> str:
    """The class of elements with this line, for which the page's style has a colour on a dark page."""
    return "k" + "".join(each for each in f"{line.colour}{line.dark}".lower() if each.isalnum())


def panel(panel: Panel, legend: Sequence[Entry]) -> Element:
    """A panel as an element."""
    root = _root(WIDTH, HEIGHT, f"{panel.title}. {panel.finding}".strip())
    root.set("class", "panel")
    root.set("overflow", "visible")  # of a label with more digits than the margin has room for
    for name, number in zip("xXyY", (*panel.x_range, *panel.y_range), strict=True):
        root.set(f"data-{'hi' if name.isupper() else 'lo'}-{name.lower()}", f"{number:.8g}")
    if panel.x_log:
        root.set("data-log", "1")
    if panel.x_whole:
        root.set("data-whole", "1")
    _text(root, 0, 14, panel.title, weight="600")
    if panel.y_label != panel.title:
        _text(root, 0, 31, panel.y_label, size=11, opacity="0.75")
    _text(root, LEFT + ACROSS, HEIGHT - 4, panel.x_label, "end", size=11, opacity="0.75")
    _axes(SubElement(root, "g", {"class": "axes"}), panel)
    plot = SubElement(
        root,
        "svg",
        {
            "class": "plot",
            "x": str(LEFT - EDGE),
            "y": str(TOP - EDGE),
            "width": str(ACROSS + 2 * EDGE),
            "height": str(DOWN + 2 * EDGE),
            "viewBox": f"{-EDGE} {-EDGE} {ACROSS + 2 * EDGE} {DOWN + 2 * EDGE}",
        },
    )
    SubElement(plot, "rect", {"width": str(ACROSS), "height": str(DOWN), "fill": "none", "pointer-events": "all"})
    if panel.diagonal:
        drawn = {"d": f"M0 {DOWN}L{ACROSS} 0", "stroke": "currentColor", "stroke-opacity": "0.4"}
        SubElement(plot, "path", {"class": "band", **drawn})
    if banded := [series for series in panel.series if len(series.low)]:  # lines lie over all bands
        clipped = SubElement(
            plot, "svg", {"width": str(ACROSS), "height": str(DOWN)}
        )  # no band reaches beyond the axes
        for series in banded:
            _band(clipped, panel, series, legend[series.entry].line)
    for series in panel.series:
        _series(plot, panel, series, legend[series.entry].line)
    return root


def dots(picture: Dots) -> Element:
    """Dots as an element, with clients across and classes down."""
    left = 8 + 7 * max((len(each) for each in picture.classes), default=1)
    left = min(left, 150)
    width = left + DOT * len(picture.clients) + 8
    height = 40 + DOT * len(picture.classes) + 8
    root = _root(max(width, 120), height, picture.finding)
    root.attrib |= {"class": "dots", "width": f"{max(width, 120):g}", "height": f"{height:g}"}
    largest = max((count for row in picture.counts for count in row), default=0) or 1
    for j, name in enumerate(picture.classes):
        _text(root, left - 6, 40 + DOT * j + 12, short(visible(name), 20), "end", size=11)
    every = 1 if len(picture.clients) <= 12 else 5 if len(picture.clients) <= 60 else 20
    for i, name in enumerate(picture.clients):
        if i % every == 0:
            _text(root, left + DOT * (i + 0.5), 32, short(visible(name), 12), "middle", size=10, opacity="0.75")
    _text(root, left, 14, "client", size=11, opacity="0.75")
    for i, row in enumerate(picture.counts):
        for j, count in enumerate(row):
            if count > 0:
                place = {"cx": f"{left + DOT * (i + 0.5):g}", "cy": f"{40 + DOT * (j + 0.5):g}"}
                radius = f"{max(0.8, 0.48 * DOT * math.sqrt(count / largest)):.1f}"
                dot = SubElement(root, "circle", {**place, "r": radius, "class": "dot", "fill": "#0072B2"})
                SubElement(dot, "title").text = visible(
                    f"client {picture.clients[i]}, {picture.classes[j]}: {count:,.0f}"
                )
    return root


def swatch(line: Line) -> Element:
    """A line's sample in a legend."""
    root = Element("svg", {"viewBox": "0 0 34 12", "class": "swatch", "aria-hidden": "true"})
    _swatch(root, line, 0, 6)
    return root


def text(element: Element) -> str:
    """The element as text of an HTML page."""
    return ElementTree.tostring(element, encoding="unicode")


def file(picture: Chart | Dots) -> bytes:
    """The whole chart as a file, with its panels side by side and its legend below."""
    if isinstance(picture, Dots):
        parts, legend, across = [dots(picture)], [], 1
        width, height = (float(each) for each in parts[0].get("viewBox", "0 0 1 1").split()[2:])
    else:
        parts, legend = [panel(each, picture.legend) for each in picture.panels], list(picture.legend)
        across, width, height = min(2, len(parts)), float(WIDTH), float(HEIGHT)
    rows = -(-len(parts) // across)
    below = rows * (height + 12)
    names = [short(visible(entry.name), MAX_NAME_CHARACTERS) for entry in legend]
    whole = max([across * (width + 16), *(44 + LETTER * len(name) for name in names)])
    root = _root(whole, below + LEGEND_ROW * len(legend) + 6, picture.caption)
    root.set("font-family", "system-ui, 'DejaVu Sans', sans-serif")
    root.set("color", "#111827")
    for i, part in enumerate(parts):
        part.attrib |= {"x": f"{(i % across) * (width + 16):g}", "y": f"{(i // across) * (height + 12):g}"}
        part.attrib |= {"width": f"{width:g}", "height": f"{height:g}"}
        root.append(part)
    for i, (entry, name) in enumerate(zip(legend, names, strict=True)):
        y = below + LEGEND_ROW * i + 10
        _swatch(root, entry.line, 2, y)
        _text(root, 44, y + 4, name, most=MAX_NAME_CHARACTERS)
    root.set("xmlns", "http://www.w3.org/2000/svg")
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def _root(width: float, height: float, words: str) -> Element:
    named = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": visible(words)}
    return Element("svg", {**named, "font-size": f"{TEXT}", "fill": "currentColor"})


def _axes(parent: Element, panel: Panel) -> None:
    found = log_ticks(*panel.x_range) if panel.x_log else ticks(*panel.x_range, whole=panel.x_whole)
    labels = log_tick_labels(found) if panel.x_log else tick_labels(found)
    for tick, label in zip(found, labels, strict=True):
        x = LEFT + _x(panel, tick)
        _line(parent, x, TOP, x, TOP + DOWN)
        _text(parent, x, TOP + DOWN + 16, label, "middle", size=11)
    found = ticks(*panel.y_range, most=5)
    for tick, label in zip(found, tick_labels(found), strict=True):
        y = TOP + _y(panel, tick)
        _line(parent, LEFT, y, LEFT + ACROSS, y)
        _text(parent, LEFT - 8, y + 4, label, "end", size=11)


def _group(plot: Element, series: Series, line: Line) -> Element:
    kinds = {"class": f"s {css_class(line)}", "data-s": str(series.entry), "stroke": line.colour, "fill": line.colour}
    return SubElement(plot, "g", kinds)


def _band(plot: Element, panel: Panel, series: Series, line: Line) -> None:
    edge = [*zip(series.x, series.low, strict=True), *reversed([*zip(series.x, series.high, strict=True)])]
    shape = _path([(_x(panel, x), _y(panel, y)) for x, y in edge], digits=1)
    drawn = {"class": "band", "d": shape, "stroke": "none", "fill-opacity": f"{panel.band_opacity:.3g}"}
    SubElement(_group(plot, series, line), "path", drawn)


def _series(plot: Element, panel: Panel, series: Series, line: Line) -> None:
    group = _group(plot, series, line)
    x = [_x(panel, each) for each in series.x]
    known = [(each, _y(panel, y), y) for each, y in zip(x, series.y, strict=True)]
    known = [each for each in known if all(map(math.isfinite, each))]
    points = [(x_place, y_place) for x_place, y_place, _ in known]
    dash = {"stroke-dasharray": " ".join(f"{1.8 * each:g}" for each in line.dash)} if line.dash else {}
    width = "1" if series.unfinished else "1.8"
    drawn = {"class": "line", "d": _path(points), "fill": "none", "stroke-width": width, "stroke-linejoin": "round"}
    far = {i: y for i, (_, y_place, y) in enumerate(known) if abs(y_place) == BEYOND * DOWN}
    if not series.points:
        SubElement(group, "path", drawn | dash | ({"data-far": json.dumps(far)} if far else {}))
    inside = [each for each in points if -1 <= each[0] <= ACROSS + 1 and -1 <= each[1] <= DOWN + 1]
    marked = inside if series.points else inside[:: -max(1, -(-len(inside) // MAX_MARKERS))]
    if marked:
        shape = SHAPES.get(line.marker, SHAPES["o"])
        places = "".join(f"M{x_place:.1f} {y_place:.2f}{shape}" for x_place, y_place in marked)
        faint = {"fill-opacity": "0.5"} if series.points else {}
        SubElement(group, "path", {"class": "mark", "d": places, "stroke": "none"} | faint)


def _path(points: Sequence[tuple[float, float]], digits: int = 2) -> str:
    known = [each for each in points if all(map(math.isfinite, each))]
    return "".join(f"{'L' if i else 'M'}{x:.{digits + 1}f} {y:.{digits}f}" for i, (x, y) in enumerate(known))


def _x(panel: Panel, x: float) -> float:
    low, high = panel.x_range
    if panel.x_log:
        if not x > 0:
            return math.nan
        low, high, x = math.log10(low), math.log10(high), math.log10(x)
    return ACROSS * (x - low) / (high - low)


def _y(panel: Panel, y: float) -> float:
    low, high = panel.y_range
    place = DOWN * (1 - (y - low) / (high - low))
    return max(-BEYOND * DOWN, min(BEYOND * DOWN, place)) if math.isfinite(place) else math.nan


def _swatch(parent: Element, line: Line, x: float, y: float) -> None:
    group = SubElement(parent, "g", {"class": css_class(line), "stroke": line.colour, "fill": line.colour})
    dash = {"stroke-dasharray": " ".join(f"{1.8 * each:g}" for each in line.dash)} if line.dash else {}
    SubElement(group, "path", {"d": f"M{x} {y:g}H{x + 34}", "stroke-width": "1.8", "fill": "none"} | dash)
    shape = SHAPES.get(line.marker, SHAPES["o"])
    SubElement(group, "path", {"d": f"M{x + 17} {y:g}{shape}", "stroke": "none"})


def _line(parent: Element, x1: float, y1: float, x2: float, y2: float) -> None:
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    SubElement(parent, "line", {**ends, "stroke": "currentColor", "stroke-opacity": "0.16"})


def _text(
    parent: Element,
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    size: float = TEXT,
    weight: str = "",
    opacity: str = "",
    most: int = MAX_LABEL_CHARACTERS,
) -> None:
    given = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "font-size": f"{size:g}"}
    given |= {"font-weight": weight} if weight else {}
    given |= {"fill-opacity": opacity} if opacity else {}
    SubElement(parent, "text", given).text = short(visible(words), most)
