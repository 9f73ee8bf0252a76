"""Pictures are drawn of any run, however short or broken, and without a display."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedlab_runner.methods import registry
from fedlab_runner.plots import curves, style
from fedlab_runner.plots.curves import plot_curves, plot_staleness, staleness_counts
from tests.helpers.paths import ROOT


def rows(count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for round in range(count):
        found.append({"round": round, "train/loss": 2 / (round + 1), "late/staleness_count/0": 2.0})
        if round % 5 == 0:
            found[-1] |= {"test/accuracy": 1 - 1 / (round + 2), "test/loss": math.nan if round == 5 else 1.0}
            found[-1] |= {"late/staleness_count/12": 1.0}
    return found


def colours(path: Path) -> int:
    """How many colours a picture has: an empty page has one."""
    with Image.open(path) as image:
        assert min(image.size) > 300
        return len(image.convert("RGB").getcolors(2**24) or [])


@pytest.mark.parametrize("count", [1, 6, 300])
def test_curves(tmp_path: Path, count: int) -> None:
    path = tmp_path / "plots" / "curves.png"
    assert plot_curves(path, rows(count), "a run", 5)
    assert colours(path) > 50
    picture = path.with_suffix(".svg").read_text()
    assert "<text" in picture and "Accuracy of the evaluated model" in picture, "text stays text, with a caption"


@pytest.mark.parametrize(("every", "best"), [(1, "70.00 % in round 2"), (3, "60.00 % in round 3")])
def test_the_best_round_is_one_that_the_summary_counts(tmp_path: Path, every: int, best: str) -> None:
    """Not the initial model, nor the last round before the run was made longer, which may be the best of all."""
    tested = {0: 0.9, 2: 0.7, 3: 0.6, 4: 0.5}
    plot_curves(tmp_path / "x.png", [{"round": r, "test/accuracy": a} for r, a in tested.items()], "a run", every)
    assert f"best {best}<" in (tmp_path / "x.svg").read_text()


def test_more_data_is_another_picture_and_the_same_data_the_same(tmp_path: Path) -> None:
    for name, count in (("one", 50), ("same", 50), ("other", 60)):
        plot_curves(tmp_path / f"{name}.png", rows(count), "a run", 5)
    for kind in ("png", "svg"):
        one, same, other = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("one", "same", "other"))
        assert one == same and one != other


def test_a_panel_without_a_finite_value_is_left_out(tmp_path: Path) -> None:
    nothing = {"round": 1, "test/accuracy": math.nan, "train/loss": math.inf}
    assert not plot_curves(tmp_path / "x.png", [nothing], "a run", 5) and not list(tmp_path.iterdir())
    assert plot_curves(tmp_path / "x.png", [nothing | {"test/loss": 1.0}], "a run", 5)
    with Image.open(tmp_path / "x.png") as image:
        assert image.width == round(4.5 * 150)


def test_rounds_are_whole_numbers_and_the_colours_are_those_of_methods(tmp_path: Path) -> None:
    for few in (1, 2):
        plot_curves(tmp_path / "x.png", [{"round": r, "test/accuracy": 0.5} for r in range(few)], "a run", 1)
        assert not re.search(r">[0-9]+\.[0-9]+<", (tmp_path / "x.svg").read_text()), "no half rounds"
    plot_curves(tmp_path / "x.png", [{"round": r, "test/accuracy": r / 100} for r in range(101)], "a run", 1)
    assert {">20<", ">40<"} <= {*re.findall(r">[0-9]+<", (tmp_path / "x.svg").read_text())}
    assert {style.BLUE, style.ORANGE, *style.CYCLE} == {light for light, _ in registry._styles()[0].values()}


def test_no_two_ticks_of_an_accuracy_are_called_the_same(tmp_path: Path) -> None:
    plot_curves(tmp_path / "x.png", [{"round": r, "test/accuracy": 0.9999 + r / 1e5} for r in range(11)], "a run", 1)
    ticks = re.findall(r">([0-9.]+ %)<", (tmp_path / "x.svg").read_text())
    assert len({*ticks}) == len(ticks) > 2


@pytest.mark.parametrize("sign", [1, -1])
def test_the_name_of_the_best_round_hides_no_curve(sign: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(curves, "save", lambda figure, path: figures.append(figure))
    plot_curves(tmp_path / "x.png", [{"round": r, "test/accuracy": 0.5 + sign * r / 20} for r in range(10)], "", 1)
    figures[0].draw_without_rendering()
    (axes,) = figures[0].axes
    line = axes.lines[0].get_transform().transform_path(axes.lines[0].get_path())
    assert not line.intersects_bbox(axes.get_legend().get_window_extent(), filled=False)


def test_staleness(tmp_path: Path) -> None:
    assert staleness_counts(rows(11)) == {0: 22.0, 12: 3.0}
    over_rounds = [{"round": round, "late/staleness_mean": 2.0, "late/staleness_max": 7} for round in range(9)]
    sizes = []
    for name, data in (("counts", rows(11)), ("rounds", over_rounds), ("both", rows(11) + over_rounds)):
        assert plot_staleness(tmp_path / f"{name}.png", data, "a run")
        assert colours(tmp_path / f"{name}.png") > 50
        with Image.open(tmp_path / f"{name}.png") as image:
            sizes.append(image.width)
    assert sizes[0] == sizes[1] and sizes[2] == 2 * sizes[0], "one panel for each"


def test_no_staleness_no_picture(tmp_path: Path) -> None:
    assert not plot_staleness(tmp_path / "staleness.png", [{"round": 1, "late/in_flight": 2.0}], "a run")
    assert not (tmp_path / "staleness.png").exists()


def test_no_window_system_is_touched(tmp_path: Path) -> None:
    """In a process of its own: other tests may import what they like."""
    code = (
        "import sys; from pathlib import Path; from fedlab_runner.plots.curves import plot_curves\n"
        "assert not [name for name in sys.modules if name.startswith('matplotlib')]\n"
        "plot_curves(Path(sys.argv[1]), [{'round': 1, 'test/loss': 1.0}], 'a run', 1)\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DISPLAY": ":99"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.png")], check=True, env=environment)


@pytest.mark.parametrize("rounds", [[0], [1], [0, 1], [0, 4]])
def test_rounds_on_an_axis_are_whole_and_different(rounds: list[int]) -> None:
    figure = style.new_figure(4, 3, "")
    axes = figure.subplots()
    axes.plot(rounds, rounds, marker="o")
    style.over_rounds(axes, "")
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    shown = [text.get_text() for text in axes.get_xticklabels() if low <= text.get_position()[0] <= high]
    assert shown == [str(each) for each in range(rounds[0], rounds[-1] + 1)]
