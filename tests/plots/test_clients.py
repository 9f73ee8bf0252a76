"""Table and picture of the clients at the last evaluation."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from fedlab_runner.plots import clients
from fedlab_runner.plots.clients import client_table, plot_clients, write_client_table


class Scores(NamedTuple):
    ids: np.ndarray
    accuracy: np.ndarray


def scores(*accuracy: float, ids: tuple[int, ...] = (0, 2)) -> Scores:
    return Scores(np.array(ids), np.array(accuracy))


def test_table(tmp_path: Path) -> None:
    cells = {"server/own": scores(0.5, 0.25), "server/unseen": scores(1.0, ids=(1,))}
    columns, rows = client_table(cells, np.array([1]), 4)
    assert columns == ["client", "held_out", "server/own", "server/unseen"]
    assert rows == [[0, 0, 0.5, None], [1, 1, None, 1.0], [2, 0, 0.25, None], [3, 0, None, None]]
    write_client_table(tmp_path, columns, rows)
    with (tmp_path / "clients.csv").open(newline="") as file:
        assert list(csv.reader(file))[1:3] == [["0", "0", "0.5", ""], ["1", "1", "", "1.0"]]


@pytest.mark.parametrize("count", [1, 2000])
def test_picture(count: int, tmp_path: Path) -> None:
    ids, rng = tuple(range(count)), np.random.default_rng(0)
    server, other = (scores(*rng.random(count), ids=ids) for _ in range(2))
    cells = {"server/own": server, "client/own": other, "server/train": server, "tuned/train": other}
    assert plot_clients(tmp_path / "clients.png", cells, "a run")
    with Image.open(tmp_path / "clients.png") as picture:
        assert picture.width == round(2 * 4.4 * 150) and len(picture.convert("RGB").getcolors(2**24) or []) > 50
    assert (">1 client, own<" if count == 1 else ">2,000 clients, own<") in (tmp_path / "clients.svg").read_text()


@pytest.mark.parametrize("count", [1, 2000])
def test_points_of_the_legend_are_of_one_size(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(clients, "save", lambda figure, path: figures.append(figure))
    some = scores(*np.random.default_rng(0).random(count), ids=tuple(range(count)))
    plot_clients(tmp_path / "clients.png", {"server/own": some, "client/own": some}, "a run")
    (handle,) = figures[0].axes[0].get_legend().legend_handles
    assert handle.get_sizes() == pytest.approx([30])


def test_a_client_that_has_nothing_right_is_drawn_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(clients, "save", lambda figure, path: figures.append(figure))
    cells = {"server/own": scores(0.0, 1.0), "client/own": scores(1.0, 0.0)}
    assert plot_clients(tmp_path / "clients.png", cells, "a run")
    (axes,) = figures[0].axes
    for low, high in (axes.get_xlim(), axes.get_ylim()):
        assert low < 0 and high > 1


def test_nothing_is_drawn_without_two_models_on_the_same_examples(tmp_path: Path) -> None:
    cells = {"server/own": scores(0.5, 0.25), "client/train": scores(0.5, 0.25)}
    assert not plot_clients(tmp_path / "clients.png", cells, "a run") and not list(tmp_path.iterdir())
