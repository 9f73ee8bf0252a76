"""Every algorithm on data of one's own, in shares of one's own, with the whole evaluation matrix, resumed midway."""

import functools
import importlib.util
import json
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fedlab_runner.config.build import conf_dir
from fedlab_runner.experiment.run import run_in
from tests.helpers.composed import composed, files
from tests.helpers.own_files import write_arrays, write_images, write_table
from tests.helpers.smoke import SHORT
from tests.helpers.toy import algorithm

ALGORITHMS = sorted(path.stem for path in (conf_dir() / "algorithm").glob("*.yaml"))
CLASSES, CLIENTS, EACH = 3, 7, 70  # EACH: examples of a class
PARTITIONS = {
    "natural": (),
    "labels_per_client": ("partition.labels=2",),
    "power_law": (f"partition.classes_per_client={CLASSES}", "partition.min_per_class=2"),
}
SPLITS = {"shares": ("client_split.test=0.3", "client_split.validation=0.2"), "redealt": (), "natural": ()}
BLOCKS = ("partition.num_blocks=4", "partition.blocks_per_client=2", "partition.classes_per_client=3")


class Choice(NamedTuple):
    """One command line's choices."""

    data: str
    partition: str
    split: str
    std: float  # of the delays


def accepted(name: str) -> list[Choice]:
    """Every partition, split and delay that an algorithm accepts, on one kind of data after another.

    Images in folders have no users, whose own tests are client_split=natural, and learning over blocks has blocks of
    images.
    """
    if name == "hyfem":
        return [Choice("npz", "random_blocks", "redealt", 0.0)]
    stds = (0.0,) if algorithm(name).decentralized else (0.0, 1.0)
    found = []
    choices = [each for each in product(PARTITIONS, SPLITS, stds) if each[1] != "natural" or each[0] == "natural"]
    for i, (partition, split, std) in enumerate(choices, ALGORITHMS.index(name)):
        kinds = ("npz", "csv") if partition == "natural" else ("npz", "csv", "image_folder")
        found.append(Choice(kinds[i % len(kinds)], partition, split, std))
    return found


def covering() -> list[tuple[str, Choice]]:
    """A few algorithms with one choice each, which together have everything."""
    names = [name for name in ALGORITHMS if name != "hyfem"]
    of_each = [(name, accepted(name)) for name in names[::5]]
    return [(name, choices[3 * i % len(choices)]) for i, (name, choices) in enumerate(of_each)]


@functools.lru_cache
def overrides(name: str, choice: Choice) -> tuple[str, ...]:
    """The arguments, but for the data's path."""
    without_server = algorithm(name).decentralized or name in ("standalone", "hyfem")
    kinds = ("global", "train", "own", "unseen") if name != "hyfem" else ("global", "own")
    cells = [
        f"{model}/{data}" for model in ("client", "server", "tuned")[: 1 if without_server else 3] for data in kinds
    ]
    blocks = choice.partition == "random_blocks"
    said = [f"algorithm={name}", f"dataset={choice.data}", *SHORT.get(name, ()), f"num_clients={CLIENTS}"]
    said += [f"partition={choice.partition}", *(BLOCKS if blocks else PARTITIONS[choice.partition])]
    said += [f"client_split={choice.split}", *SPLITS[choice.split], "server_data.size=9", f"evaluation.matrix={cells}"]
    said += (
        ["model=blocks_mlp", "model.widths=[6,4]", "model.hidden=[6]"] if blocks else ["model=mlp", "model.hidden=[6]"]
    )
    said += [f"participation.cohort_size={CLIENTS if blocks else 3}", "local.batch_size=8", "evaluation.every=1"]
    said += [f"participation.held_out_clients={0 if blocks else 1}", "executor=loop", "threads=1"]
    said += ["delay=none"] if not choice.std else ["delay=half_normal", f"delay.std={choice.std}"]
    if name == "fedwalk":
        said += ["algorithm@algorithm.base=fedavg", "server_data@auxiliary_data=in_domain", "auxiliary_data.size=9"]
    return tuple(said)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The arguments that name the data, by kind: files that are written once."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    count = CLASSES * EACH
    arrays = {f"x_{part}": rng.integers(0, 256, (count, 8, 8), np.uint8) for part in ("train", "test")}
    targets = {f"y_{part}": np.arange(count) % CLASSES for part in ("train", "test")}
    users = {f"users_{part}": np.arange(count) % CLIENTS for part in ("train", "test")}
    write_arrays(folder / "mine.npz", **arrays, **targets, **users)
    lines = [f"u{i % CLIENTS},{rng.normal():.3f},{rng.normal():.3f},k{i % 4},c{i % CLASSES}" for i in range(count)]
    table = write_table(folder / "mine.csv", *lines, header="who,a,b,kind,target")
    write_images(folder / "images", [f"c{i}" for i in range(CLASSES)], [EACH] * CLASSES)
    found = {
        "npz": [f"dataset.path={folder / 'mine.npz'}"],
        "csv": [f"dataset.path={table}", "dataset.target=target", "dataset.user=who", "dataset.categorical=[kind]"],
        "image_folder": [
            f"dataset.root={folder / 'images'}",
            "dataset.image_size=8",
            f"dataset.cache={folder / 'cache'}",
        ],
    }
    if with_library():
        from datasets import Dataset

        columns = {"a": rng.normal(size=count), "who": np.arange(count) % CLIENTS, "target": np.arange(count) % CLASSES}
        Dataset.from_dict(columns).save_to_disk(folder / "arrow")
        where = [f"dataset.path={folder / 'arrow'}", "dataset.target=target", "dataset.user=who", "dataset.test=null"]
        found["huggingface"] = where
    return found


def with_library() -> bool:
    """Whether the extra for dataset=huggingface is installed."""
    return importlib.util.find_spec("datasets") is not None


def check(name: str, choice: Choice, places: dict[str, list[str]], folder: Path) -> None:
    """A run with every cell of the matrix; one that stops after a round and continues has the same bytes."""
    said = (*overrides(name, choice), *places[choice.data])
    for part, ends in (("whole", (3,)), ("resumed", (1, 3))):
        for rounds in ends:
            run_in(folder / part, composed(*said, f"rounds={rounds}"))
    assert files(folder / "whole") == files(folder / "resumed")
    last = json.loads((folder / "whole/metrics.jsonl").read_text().splitlines()[-1])
    cells = next(each for each in said if each.startswith("evaluation.matrix=")).partition("=")[2]
    assert all(0 <= last[cell.strip("' ")] <= 1 for cell in cells.strip("[]").split(","))


def test_the_covering_choices_have_everything() -> None:
    data, partitions, splits, stds = map(set, zip(*(choice for _, choice in covering()), strict=True))
    assert data == {"npz", "csv", "image_folder"} and partitions == set(PARTITIONS)
    assert splits == set(SPLITS) and stds == {0.0, 1.0}


@pytest.mark.parametrize(("name", "choice"), covering(), ids=str)
def test_a_choice_of_some(name: str, choice: Choice, places: dict[str, list[str]], tmp_path: Path) -> None:
    check(name, choice, places, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_choices(name: str, places: dict[str, list[str]], tmp_path: Path) -> None:
    choices = accepted(name)
    if with_library() and name != "hyfem":
        choices.append(choices[ALGORITHMS.index(name) % len(choices)]._replace(data="huggingface", partition="natural"))
    for i, choice in enumerate(choices):
        check(name, choice, places, tmp_path / str(i))
