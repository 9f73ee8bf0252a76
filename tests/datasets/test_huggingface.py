"""Data sets of the library `datasets`, from arrow and parquet files that the tests make; no network."""

import importlib
import importlib.util
import json
import os
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedlab_runner.datasets import _arrow
from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.huggingface import HuggingFace
from fedlab_runner.utils.errors import UserError
from tests.datasets.test_contract import dataset

there = importlib.util.find_spec("datasets") is not None
needs_library = pytest.mark.skipif(not there, reason="the extra huggingface (the library datasets) is not installed")
library: Any = importlib.import_module("datasets") if there else None


def made(path: str | Path, **changes: Any) -> HuggingFace:
    component = dataset("huggingface", path=str(path), **{"image_size": 4, **changes})
    assert isinstance(component, HuggingFace)
    return component


def load(path: str | Path, **changes: Any) -> Data:
    return made(path, **changes).load(0)


def refusal(path: str | Path, **changes: Any) -> str:
    with pytest.raises((UserError, ValueError)) as caught:
        load(path, **changes)
    message = str(caught.value)
    assert "\n" not in message and ("dataset." in message or not isinstance(caught.value, UserError))
    return message


@pytest.fixture(autouse=True)
def _quietly_in_a_cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if there:
        monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "hub")
        library.disable_progress_bars()


def pictures(size: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8)) for _ in range(size)]


def images(train: int = 9, test: int = 3) -> Any:
    """A mapping of splits with images, numbered classes and writers."""
    features = library.Features(
        image=library.Image(), label=library.ClassLabel(names=["x", "y", "z"]), writer=library.Value("string")
    )
    return library.DatasetDict(
        {
            name: library.Dataset.from_dict(
                {
                    "image": pictures(size, size),
                    "label": [i % 3 for i in range(size)],
                    "writer": [f"w{i % 2}" for i in range(size)],
                },
                features=features,
            )
            for name, size in (("train", train), ("test", test))
        }
    )


def values(**changes: Any) -> Any:
    """A split of numbers, texts, truths and lists."""
    columns = {
        "age": [20, 30, 40, 50, 60, 70],
        "job": ["cook", "nurse", "cook", "smith", "cook", "nurse"],
        "smoker": [True, False, True, False, True, True],
        "code": [[i / 2, 1.0 - i] for i in range(6)],
        "label": ["b", "a", "b", "a", "b", "a"],
        **changes,
    }
    return library.Dataset.from_dict({name: column for name, column in columns.items() if column is not None})


@needs_library
def test_images_from_a_folder_of_save_to_disk(tmp_path: Path) -> None:
    images().save_to_disk(str(tmp_path / "set"))
    for key, value in (("categorical", ["image"]), ("impute", "mean")):
        said = refusal(tmp_path / "set", user="writer", **{key: value})
        assert said == f"{key} must not be given for images, got {value}"
    data = load(tmp_path / "set", user="writer")
    assert data.class_names == ("x", "y", "z") and data.train.targets.tolist() == [0, 1, 2] * 3
    assert data.train.inputs.shape == (9, 3, 4, 4) and data.train.inputs.dtype == torch.uint8
    wanted = [np.asarray(each.resize((4, 4), Image.Resampling.BILINEAR)) for each in pictures(9, 9)]
    np.testing.assert_array_equal(data.train.inputs.permute(0, 2, 3, 1), wanted)
    assert data.train.users is not None and data.train.users.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert data.test.inputs.shape == (3, 3, 4, 4)
    assert data.mean == pytest.approx((data.train.inputs / 255.0).mean((0, 2, 3)).tolist(), abs=1e-6)
    assert load(tmp_path / "set", inputs=["image"], channels=1).train.inputs.shape == (9, 1, 4, 4)


@needs_library
def test_a_split_gives_the_test_set(tmp_path: Path) -> None:
    images(train=15).save_to_disk(str(tmp_path / "set"))
    data = load(tmp_path / "set", test=None, test_fraction=0.2, inputs=["image"])
    assert sorted(data.test.targets.tolist()) == [0, 1, 2] and len(data.train.targets) == 12
    both = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)
    assert len(both.unique(dim=0)) == 15
    single = load(tmp_path / "set/train", test=None, test_fraction=0.2, inputs=["image"])
    assert torch.equal(single.train.inputs, data.train.inputs)


@needs_library
def test_the_index_of_pandas_is_no_input(tmp_path: Path) -> None:
    values(__index_level_0__=[5, 3, 1, 4, 2, 0], code=None).to_parquet(str(tmp_path / "rows.parquet"))
    options = {"test": None, "test_fraction": 0.4, "categorical": ["job"]}
    found = load(tmp_path / "rows.parquet", **options)
    wanted = load(tmp_path / "rows.parquet", inputs=["age", "job", "smoker"], **options)
    assert torch.equal(found.train.inputs, wanted.train.inputs)


@needs_library
def test_parquet_and_arrow_files(tmp_path: Path) -> None:
    both = images()
    both.save_to_disk(str(tmp_path / "set"))
    wanted = load(tmp_path / "set", user="writer")
    (tmp_path / "parquet").mkdir()
    for name, part in both.items():
        part.to_parquet(str(tmp_path / f"parquet/{name}.parquet"))
    data = load(tmp_path / "parquet", user="writer")
    assert torch.equal(data.train.inputs, wanted.train.inputs) and torch.equal(data.test.inputs, wanted.test.inputs)
    single = load(tmp_path, name="parquet", user="writer")
    assert torch.equal(single.train.inputs, wanted.train.inputs)
    (arrow,) = (tmp_path / "set/train").glob("*.arrow")
    for path in (tmp_path / "parquet/train.parquet", arrow):
        single = load(path, user="writer", test=None, test_fraction=0.4)
        assert len(single.train.targets) == 6 and single.class_names == ("x", "y", "z")


@needs_library
def test_files_of_several_parts_and_other_names(tmp_path: Path) -> None:
    whole, folder = values(), tmp_path / "my-test-data"  # a name that no file's split comes from
    (folder / "data").mkdir(parents=True)
    for i in (0, 1):
        whole.select(range(3 * i, 3 * i + 3)).to_parquet(str(folder / f"data/train-0000{i}-of-00002.parquet"))
    whole.to_parquet(str(folder / "data/validation-00000-of-00001.parquet"))
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: https://example.org/x\n---")
    fields = {"categorical": ["job"]}
    data = load(folder, test="validation", **fields)
    assert torch.equal(data.train.inputs, data.test.inputs) and len(data.train.targets) == 6
    assert refusal(folder, **fields).startswith(f"test must be a split of {folder} ('train'), or null")
    whole.to_parquet(str(folder / "other.parquet"))
    assert len(load(folder / "other.parquet", test=None, **fields).train.targets) == 4


@needs_library
@pytest.mark.parametrize(
    ("names", "fields", "sizes"),
    [
        ("train_sft-0-of-1 test_sft-0-of-1", {"train": "train_sft", "test": "test_sft"}, (6, 5)),
        ("train_sft-0-of-1 test_sft-0-of-1", {"train": "train_sft", "test": None}, (6, 0)),
        ("train_sft test_sft", {}, (6, 5)),
        ("Train Test", {}, (6, 5)),
        ("train train_val", {"test": "train_val"}, (6, 5)),
        ("train1 test1", {"test": None}, (6, 0)),
        ("fold1 fold10", {"train": "fold1", "test": "fold10"}, (6, 5)),
        ("part/a part/b", {"test": None}, (11, 0)),
        ("mine/test", {"test": None}, (6, 0)),
        ("b_train b_test", {"train": "a", "test": None}, "no file is named after the split a, but .*, '.*' after o"),
        ("test/train test/test", {}, "train.parquet has the names of the splits train and test"),
    ],
)
def test_a_file_is_of_the_split_that_its_name_has(
    names: str, fields: dict[str, Any], sizes: Any, tmp_path: Path
) -> None:
    """A test file that trained would be worse than a refusal."""
    for name, size in zip(names.split(), (6, 5), strict=False):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        values().select(range(size)).to_parquet(str(tmp_path / f"{name}.parquet"))
    wanted = [name for name in {"train": "train", "test": "test", **fields}.values() if name is not None]
    if isinstance(sizes, str):
        with pytest.raises(ValueError, match=sizes):
            _arrow.open_local(library, tmp_path, None, wanted)
        return
    parts = _arrow.open_local(library, tmp_path, None, wanted)
    assert [parts[name].num_rows if name in parts else 0 for name in wanted] == [size for size in sizes if size]


@needs_library
def test_values_are_encoded_as_those_of_a_table(tmp_path: Path) -> None:
    test = values(age=[100] * 6, job=["baker"] * 6, label=["a"] * 6)
    library.DatasetDict(train=values(), test=test).save_to_disk(str(tmp_path / "set"))
    data = load(tmp_path / "set", categorical=["job"])
    ages = np.arange(20, 80, 10)
    assert data.train.inputs.shape == (6, 7) and data.class_names == ("a", "b")
    np.testing.assert_allclose(data.train.inputs[:, 0], (ages - 45) / ages.std(), rtol=1e-6)
    assert data.train.inputs[:, 1:4].tolist()[:2] == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    assert not data.test.inputs[:, 1:4].any() and (data.test.inputs[:, 0] > 3).all()
    assert data.train.inputs[:, 4:].mean(0).abs().max() < 1e-6  # truths, and the two columns of the lists
    chosen = load(tmp_path / "set", inputs=["code"])
    assert torch.equal(chosen.train.inputs, data.train.inputs[:, 5:]) and data.mean is None


@needs_library
def test_missing_values(tmp_path: Path) -> None:
    gaps = {"age": [20, None, 40, 50, 60, 70], "job": ["cook", "cook", None, "nurse", "cook", "nurse"]}
    library.DatasetDict(train=values(**gaps), test=values()).save_to_disk(str(tmp_path / "set"))
    assert refusal(tmp_path / "set", categorical=["job"]) == (
        f"{tmp_path}/set has no value in the column 'age' of row 2 of the split train; set dataset.impute to mean or "
        "median, or fill the value in (dataset.path)"
    )
    data = load(tmp_path / "set", categorical=["job"], impute="median")
    assert data.train.inputs[1, 0] == data.train.inputs[3, 0] and data.train.inputs[2, 1] == 1
    library.DatasetDict(train=values(age=[float("nan")] * 6), test=values()).save_to_disk(str(tmp_path / "nan"))
    assert "has no value in the column 'age' of row 1" in refusal(tmp_path / "nan", categorical=["job"])
    library.DatasetDict(train=values(label=["a", None] * 3), test=values()).save_to_disk(str(tmp_path / "label"))
    assert "has no value in the column 'label' of row 2" in refusal(
        tmp_path / "label", categorical=["job"], impute="mean"
    )


@needs_library
def test_a_gap_in_a_column_of_integers_makes_no_other_categories_classes_and_users(tmp_path: Path) -> None:
    """pandas writes such a column as floats."""
    columns = {"job": [3, 1, 3, 2, 3, 1], "smoker": [0, 1, 0, 1, 1, 2], "label": [1, 0] * 3}
    floats = {name: [*map(float, column)] for name, column in columns.items()}
    library.DatasetDict(train=values(**columns), test=values(**floats)).save_to_disk(str(tmp_path / "set"))
    data = load(tmp_path / "set", categorical=["job"], user="smoker")
    for one, other in zip(data.train, data.test, strict=True):
        assert one is other is None or torch.equal(one, other)
    assert data.train.inputs[:, 1:4].sum() == 6 and data.class_names == ("0", "1")


@needs_library
def test_users_with_numbers_go_by_their_names(tmp_path: Path) -> None:
    """The library numbers each split by itself, and texts are names as they stand."""
    train, test = ["ann", "ben", "cem", "dan", "ben", "ann"], ["dan", "ben", "dan", "eva", "cem", "ben"]
    parts = [values(user=train), values(user=test)]
    users = []
    for i, numbered in enumerate(product((False, True), repeat=2)):
        both = [part.class_encode_column("user") if made else part for part, made in zip(parts, numbered, strict=True)]
        library.DatasetDict(train=both[0], test=both[1]).save_to_disk(str(tmp_path / f"set{i}"))
        data = load(tmp_path / f"set{i}", user="user", inputs=["age"])
        assert data.train.users is not None and data.test.users is not None
        users.append([data.train.users.tolist(), data.test.users.tolist()])
    assert users == [[[0, 1, 2, 3, 1, 0], [3, 1, 3, 4, 2, 1]]] * 4


@needs_library
def test_users_with_names_and_users_that_are_numbers_are_refused(tmp_path: Path) -> None:
    named = values(user=["a", "b", "c"] * 2).class_encode_column("user")
    library.DatasetDict(train=named, test=values(user=[0, 1, 2] * 2)).save_to_disk(str(tmp_path / "set"))
    said = refusal(tmp_path / "set", user="user", inputs=["age"])
    assert "has users of two types in the column 'user' of its splits" in said


@needs_library
@pytest.mark.parametrize(
    ("changes", "fields", "reason"),
    [
        (
            {},
            {},
            "has 'cook' and no number in the column 'job' of row 1 of the split train; name it in dataset.categorical, "
            "leave it out of dataset.inputs, or mend the value",
        ),
        (
            {},
            {"inputs": ["agee"]},
            "inputs must name columns of .* ('age', 'job', 'smoker', 'code', 'label'), got 'agee'",
        ),
        (
            {},
            {"inputs": ["age"], "categorical": ["job"]},
            "categorical must be columns of the inputs ('age'), got 'job'",
        ),
        ({}, {"inputs": ["age"], "mean": [0.5] * 3, "std": [1.0] * 3}, "mean must not be given for columns of values"),
        ({}, {"target": "kind"}, "target must name columns of"),
        ({}, {"target": "code"}, "target must be columns of values, got 'code', of the type List"),
        ({}, {"user": "code", "inputs": ["age"]}, "user must be columns of values"),
        ({}, {"train": "training"}, "train must be a split of .* ('train', 'test'), got training"),
        ({}, {"test": "tests"}, "test must be a split of .* ('train', 'test'), or null for test_fraction, got tests"),
        (
            {"code": [[1.0, 2.0], [1.0]] * 3},
            {"inputs": ["code"]},
            "has a list of 1 numbers, not 2, in the column 'code' of row 2",
        ),
        ({"code": [[1.0], None] * 3}, {"inputs": ["code"]}, "has no list in the column 'code' of row 2"),
        ({"label": ["c"] * 6}, {"inputs": ["age"]}, "target must be a column of classes, got 'label', which has 1"),
        ({"label": ["c", "b"] * 3}, {"inputs": ["age"]}, "has the class 'a', which no training row has, in the column"),
        ({"age": [{"x": 1}] * 6}, {"inputs": ["age"]}, "inputs must be columns of values or one of images, got 'age'"),
        ({"age": [[["x"]]] * 6}, {"inputs": ["age"]}, "inputs must be columns of values or one of images, got 'age'"),
        ({"age": [[1.0]] * 6}, {"inputs": ["age"]}, "has no column 'age' of the same type in the split test"),
    ],
)
def test_faults_are_one_line(changes: dict[str, Any], fields: dict[str, Any], reason: str, tmp_path: Path) -> None:
    library.DatasetDict(train=values(**changes), test=values()).save_to_disk(str(tmp_path / "set"))
    said = refusal(tmp_path / "set", **fields).replace(str(tmp_path / "set"), ".*")
    assert reason in said


@needs_library
def test_paths_that_are_no_data_set(tmp_path: Path) -> None:
    assert f"{tmp_path}/none is missing; set dataset.path to a folder of save_to_disk" in refusal(tmp_path / "none")
    (tmp_path / "a.pkl").write_bytes(b"x")
    for path in (tmp_path / "a.pkl", tmp_path):  # other readers of the library are not reached
        assert "cannot be read (it holds no file that ends in .arrow or .parquet)" in refusal(path)
    (tmp_path / "empty").mkdir()
    assert "cannot be read (" in refusal(tmp_path / "empty")
    for name in ("pandas", "pickle", "csv"):  # the library's own readers, some of which run what they read
        assert f"{name} is missing" in refusal(name)


@needs_library
def test_the_hub_is_asked_only_if_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    asked: list[Any] = []

    def connect(self: Any, address: Any) -> None:
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *each, **more: asked.append(each) or [])
    said = refusal("nobody/nothing")
    assert "nobody/nothing cannot be read (" in said and said.endswith("or set dataset.download=true")
    assert not asked and not library.config.HF_HUB_OFFLINE


@needs_library
def test_the_cache_of_the_library_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the library leaves a data set of the Hub: <cache>/<owner>___<name>/<config>/<version>/<hash>."""
    both = images()
    folder = tmp_path / "hub/owner___some_name/default/0.0.0/abcdef"
    folder.mkdir(parents=True)
    infos = {}
    for name, part in both.items():
        part.save_to_disk(str(tmp_path / "made"))
        (arrow,) = (tmp_path / "made").glob("*.arrow")
        shutil.copy(arrow, folder / f"some_name-{name}.arrow")
        infos[name] = {"name": name, "num_examples": len(part), "num_bytes": 1, "dataset_name": "some_name"}
        shutil.rmtree(tmp_path / "made")
    about = {"features": both["train"].features.to_dict(), "splits": infos, "dataset_name": "some_name"}
    about |= {"builder_name": "parquet", "config_name": "default", "version": "0.0.0"}
    (folder / "dataset_info.json").write_text(json.dumps(about))
    data = load("owner/some_name", user="writer")
    both.save_to_disk(str(tmp_path / "set"))
    assert torch.equal(data.train.inputs, load(tmp_path / "set", user="writer").train.inputs)


@needs_library
def test_damaged_and_hostile_files(tmp_path: Path) -> None:
    """An arrow file whose offsets lead out of it would end the process: it is checked before it is read."""
    library.DatasetDict(train=values(), test=values()).save_to_disk(str(tmp_path / "set"))
    (arrow,) = (tmp_path / "set/train").glob("*.arrow")
    whole, refused = arrow.read_bytes(), 0
    for position in range(0, len(whole), max(1, len(whole) // 60)):
        for damaged in (whole[:position], whole[:position] + b"\xff" + whole[position + 1 :]):
            arrow.write_bytes(damaged)
            try:
                data = load(tmp_path / "set", categorical=["job"])
            except (UserError, ValueError) as error:
                assert "\n" not in str(error)
                refused += 1
            else:
                assert data.train.inputs.dtype == torch.float32
    assert refused > 40
    arrow.write_bytes(whole)
    os.mkfifo(tmp_path / "set/train/pipe.arrow")
    assert "pipe.arrow is no plain file" in refusal(tmp_path / "set", categorical=["job"])
    (tmp_path / "set/train/pipe.arrow").unlink()
    (tmp_path / "set/train/state.json").write_text("[" * 100_000)
    assert "cannot be read (" in refusal(tmp_path / "set", categorical=["job"])


@needs_library
def test_an_image_that_is_none(tmp_path: Path) -> None:
    features = library.Features(image=library.Image(), label=library.Value("int64"))
    rows = {"image": [{"bytes": b"no image", "path": None}] * 2, "label": [0, 1]}
    library.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "set"))
    said = refusal(tmp_path / "set", test=None, test_fraction=0.6)
    assert "test_fraction must leave" in said
    library.DatasetDict(
        train=library.Dataset.from_dict(rows, features=features),
        test=library.Dataset.from_dict(rows, features=features),
    ).save_to_disk(str(tmp_path / "both"))
    assert "has an image in row 1 of the split train that is not an image that can be read (" in refusal(
        tmp_path / "both"
    )
    away = library.Features(image=library.Image(decode=False), label=library.Value("int64"))
    gone = library.Dataset.from_dict({"image": [{"bytes": b"x", "path": None}] * 2, "label": [0, 1]}, features=away)
    column = gone.with_format("arrow")[:].column("image")
    assert _arrow.open_image(column, 0).read() == b"x"
    for value in ({"bytes": None, "path": None}, {"bytes": None, "path": str(tmp_path / "gone.png")}):
        with pytest.raises(FileNotFoundError):
            _arrow.open_image(library.arrow_dataset.pa.array([value]), 0)


def test_the_extra_is_named_where_it_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    assert str(caught.value) == 'dataset=huggingface needs an extra: pip install "fedlab-runner[huggingface]"'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": []}, r"^inputs must be null or a list of one or more columns, got \[\]$"),
        ({"test": "train"}, "^test must be another split than train, or null, got train$"),
        ({"user": "label"}, "^user must not be the target, got label$"),
        ({"categorical": ["label"]}, "^categorical must not have the target or the user, got label$"),
        ({"inputs": ["a", "u"], "user": "u"}, "^inputs must not have the target or the user, got u$"),
        ({"impute": "zero"}, "^impute must be one of mean, median, got zero$"),
    ],
)
def test_fields_that_disagree(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made("x", **changes)
