"""The table and the picture of a partition."""

import csv

import numpy as np
import pytest
from PIL import Image

from fedlab_runner.plots.partition import (
    class_counts,
    partition_table,
    plot_partition,
    write_partition_table,
)

LABELS = np.array([0, 1, 2, 2, 1, 0, 0])
USES = {"train": [2, 0, 3], "held_out": [0, 0, 1]}
SPLIT = [np.array([0, 5, 2]), np.array([], np.int64), np.array([1, 3, 4, 6])]
ROWS = [[0, 3, 2, 0, 2, 0, 1], [1, 0, 0, 0, 0, 0, 0], [2, 4, 3, 1, 1, 2, 1]]


def test_table():
    columns, rows = partition_table(SPLIT, LABELS, ["cat", "dog", "owl"], USES)
    assert columns == ["client", "examples", "train", "held_out", "cat", "dog", "owl"]
    assert rows == ROWS


def test_labels_finer_than_the_names_are_numbered():
    columns, rows = partition_table(SPLIT, LABELS, ["animal"], USES)
    assert columns == ["client", "examples", *USES, "class 0", "class 1", "class 2"] and rows == ROWS


def test_no_clients():
    assert class_counts([], LABELS, 3).shape == (0, 3)


def test_files(tmp_path):
    write_partition_table(tmp_path / "new", SPLIT, LABELS, ["cat, tabby", "dog", "owl"], USES)
    with (tmp_path / "new/partition.csv").open(newline="", encoding="utf-8") as file:
        columns, *rows = csv.reader(file)
    assert columns[4] == "cat, tabby" and [[int(cell) for cell in row] for row in rows] == ROWS
    lines = (tmp_path / "new/partition.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "3 clients (1 empty), 7 examples, 3 classes"
    assert "| examples | 0 | 3 | 4 |" in lines
    assert "| classes | 0 | 2 | 3 |" in lines
    assert "| share of its largest class | 0.5 | 0.583333 | 0.666667 |" in lines


def test_the_name_of_a_class_is_no_formula(tmp_path):
    names = ["=HYPERLINK(1)", "+1-2", "owl"]
    write_partition_table(tmp_path, SPLIT, LABELS, names, USES)
    with (tmp_path / "partition.csv").open(newline="", encoding="utf-8") as file:
        columns, *rows = csv.reader(file)
    assert columns[4:] == ["'=HYPERLINK(1)", "'+1-2", "owl"] and rows[0] == ["0", "3", "2", "0", "2", "0", "1"]


@pytest.mark.parametrize(
    ("num_clients", "num_classes"), [(0, 2), (1, 1), (5, 3), (120, 10), (40, 100), (2500, 10)], ids=str
)
def test_picture(num_clients, num_classes, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(num_classes, size=3000)
    owner = rng.permutation(np.arange(3000) % max(1, num_clients))
    split = [np.flatnonzero(owner == client) for client in range(num_clients)]
    plot_partition(tmp_path / "plots/partition.png", split, labels, [f"class {c}" for c in range(num_classes)], "toy")
    drawn = (tmp_path / "plots/partition.svg").read_text()
    words = "1 client" if num_clients == 1 else f"{num_clients:,} clients"
    assert f">Examples of each class at each client: {words}, " in drawn
    assert "\N{MINUS SIGN}0" not in drawn, "no parts of a client"
    assert ">Sizes of clients<" in drawn, "the median is on a line of its own, as the panel is narrow"
    with Image.open(tmp_path / "plots/partition.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert picture.width == 1800
    ink = (pixels.astype(int).sum(2) < 600).mean()
    assert ink > (0.01 if num_clients else 0.001)  # cells and bars, not only a frame
