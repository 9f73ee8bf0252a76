"""Your own images: both layouts, decoded once, and what is no folder of classes."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image

from fedlab_runner.datasets import image_cache, image_folder
from fedlab_runner.datasets.examples import Data
from fedlab_runner.utils.errors import UserError
from tests.datasets.test_contract import dataset
from tests.helpers.own_files import write_images


def load(root: Path, seed: int = 0, **changes: Any) -> Data:
    fields = {"root": str(root), "name": "mine", "cache": None, "image_size": 4, **changes}
    data: Data = dataset("image_folder", **fields).load(seed)
    return data


def refusal(root: Path, **changes: Any) -> str:
    with pytest.raises((UserError, ValueError)) as caught:
        load(root, **changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_train_and_test_folders(tmp_path: Path) -> None:
    images = write_images(tmp_path / "train", ["dog", "cat"], [3, 4])
    write_images(tmp_path / "test", ["cat"], [2], suffix=".JPG")
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / "cat" / "._000.png").write_bytes(b"what macOS notes beside a file of a zip")
    data = load(tmp_path)
    assert data.class_names == ("cat", "dog") and data.train.targets.tolist() == [0] * 4 + [1] * 3
    assert data.train.inputs.shape == (7, 3, 4, 4) and data.train.inputs.dtype == torch.uint8
    assert data.test.inputs.shape == (2, 3, 4, 4) and data.test.targets.tolist() == [0, 0]
    first = Image.fromarray(images[3]).resize((4, 4), Image.Resampling.BILINEAR)  # the dogs were written first
    np.testing.assert_array_equal(data.train.inputs[0].permute(1, 2, 0), np.asarray(first))
    pixels = data.train.inputs.double() / 255
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert data.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())
    assert load(tmp_path, channels=1).train.inputs.shape == (7, 1, 4, 4)
    assert load(tmp_path, mean=[0.5] * 3, std=[0.2] * 3).std == (0.2,) * 3


@pytest.mark.parametrize("cached", [False, True])
def test_folders_of_classes_are_split_by_the_seed(cached: bool, tmp_path: Path) -> None:
    write_images(tmp_path / "data", ["a", "b"], [10, 5])
    cache = str(tmp_path / "cache") if cached else None
    data, other = load(tmp_path / "data", cache=cache), load(tmp_path / "data", seed=1, cache=cache)
    assert data.train.targets.tolist() == [0] * 8 + [1] * 4 and data.test.targets.tolist() == [0, 0, 1]
    assert not torch.equal(data.test.inputs, other.test.inputs)
    assert torch.equal(load(tmp_path / "data", cache=cache).test.inputs, data.test.inputs)
    both = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)
    assert len(both.unique(dim=0)) == 15  # no image is in both
    assert len(list((tmp_path / "cache").glob("*.npy"))) == (1 if cached else 0)  # one file for all seeds


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "data/train", ["a", "b"], [3, 3])
    write_images(tmp_path / "data/test", ["a", "b"], [1, 1])
    cache = str(tmp_path / "cache")
    first, decode, seen = load(tmp_path / "data", cache=cache), image_cache._decode, []
    monkeypatch.setattr(image_cache, "_decode", lambda *each: seen.append(each) or decode(*each))
    second = load(tmp_path / "data", cache=cache)
    assert not seen and torch.equal(first.train.inputs, second.train.inputs)
    assert torch.equal(second.train.inputs, load(tmp_path / "data").train.inputs) and len(seen) == 8
    path = tmp_path / "data/train/a/000.png"
    Image.new("RGB", (5, 5), "white").save(path)
    os.utime(path, (time.time() + 5,) * 2)
    assert (load(tmp_path / "data", cache=cache).train.inputs[0] == 255).all()
    digests, times = set(), (1e9, 1e9)
    for name, changed in (("000", times), ("000", (1e9, 2e9)), ("001", times)):
        file = path.with_stem(name)
        file.write_bytes(b"of one size")
        os.utime(file, changed)
        digests.add(image_cache._digest([file], (3, 4, 4), image_folder._refuse))
    assert len(digests) == 3, "a file of another time or of another name is another image"


def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC)
    image.save(tmp_path / "x.jpg", quality=95)
    (found,) = image_cache.decode([tmp_path / "x.jpg"], (3, 12, 12), image_folder._refuse)
    whole = np.asarray(image.resize((12, 12), Image.Resampling.BILINEAR), float)
    assert np.abs(found.permute(1, 2, 0).numpy() - whole).mean() < 3


def test_faults_are_one_line(tmp_path: Path) -> None:
    layout = (
        "; set dataset.root to a folder with train/<class>/ and test/<class>/, or <class>/, that hold images (.jpeg"
    )
    root = tmp_path / "x"
    assert refusal(root).startswith(f"{root} is no folder{layout}")
    root.write_text("a file")
    assert refusal(root).startswith(f"{root} is no folder")
    root = tmp_path / "y"
    write_images(root, ["a"], [3])
    assert refusal(root).startswith(f"{root} holds 1 folders of classes, and 2 are needed{layout}")
    (root / "b").mkdir()
    assert refusal(root, test_fraction=0.4).startswith(f"{root} has no training image of the class b{layout}")
    write_images(root, ["b"], [1])
    assert refusal(root, test_fraction=0.1).startswith("test_fraction must leave examples of some class")
    write_images(root / "train", ["a", "b"], [1, 1])
    assert refusal(root).startswith(f"{root} has train/ and no test/{layout}")
    (root / "test").mkdir()
    assert "holds 0 folders of classes" in refusal(root)
    (root / "test/a").mkdir()
    (root / "test/c").mkdir()
    assert refusal(root).startswith(f"{root}/test/c is a class that {root}/train lacks")
    (root / "test/c").rename(root / "test/b")
    assert refusal(root).startswith(f"{root}/test has no image")
    write_images(root / "test", ["a"], [1])
    assert len(load(root).test.targets) == 1


def test_damaged_and_hostile_images(tmp_path: Path) -> None:
    write_images(tmp_path, ["a", "b"], [3, 3])
    path = tmp_path / "b/001.png"
    path.write_bytes(path.read_bytes()[:40])
    assert refusal(tmp_path).startswith(f"{path} is not an image that can be read (")
    path.unlink()
    os.mkfifo(path)  # to open it would wait for ever
    assert refusal(tmp_path).startswith(f"{path} is no plain file")
    assert refusal(tmp_path, cache=str(tmp_path / "cache")).startswith(f"{path} is no plain file")


@pytest.mark.parametrize("form", image_cache.FORMATS)
def test_an_image_is_read_by_its_content(form: str, tmp_path: Path) -> None:
    write_images(tmp_path, ["a", "b"], [3, 3])
    Image.fromarray(np.full((5, 7, 3), 200, np.uint8)).save(tmp_path / "b/001.png", form)
    data = load(tmp_path, test_fraction=0.4)
    images = torch.cat([data.train.inputs, data.test.inputs]).float()
    assert ((images - 200).abs() < 3).flatten(1).all(1).any()


def test_no_image_starts_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow gives PostScript to Ghostscript, whatever the name of the file."""
    started: list[Any] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *arguments, **_: started.append(arguments))
    write_images(tmp_path, ["a", "b"], [3, 3])
    path = tmp_path / "b/001.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n")
    said = refusal(tmp_path)
    assert (
        said.startswith(f"{path} is not an image that can be read (its content is none of JPEG, PNG,") and not started
    )


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    write_images(tmp_path, ["car", "train"], [5, 5])
    assert load(tmp_path).class_names == ("car", "train")


def test_of_sixteen_bits_the_upper_eight_count(tmp_path: Path) -> None:
    """Pillow by itself makes all values from 255 on white."""
    write_images(tmp_path, ["a", "b"], [5, 5])
    values = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4096 + 77
    Image.fromarray(values).save(tmp_path / "a/000.png")
    expected = torch.from_numpy((values >> 8).astype(np.uint8))
    for channels in (1, 3):
        data = load(tmp_path, channels=channels)
        images = torch.cat([data.train.inputs, data.test.inputs])
        assert (images == expected).flatten(1).all(1).any()
    thirty_two = Image.fromarray(np.zeros((4, 4), np.float32))
    thirty_two.save(tmp_path / "a/000.png", "TIFF")
    assert "is not an image that can be read (its pixels have 32 bits, and at most 16 are read)" in refusal(tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    write_images(tmp_path / "data", ["a", "b"], [5, 5])
    (tmp_path / "file").write_text("")
    said = refusal(tmp_path / "data", cache=str(tmp_path / "file"))
    assert said.startswith("dataset.cache must be a folder to write 4.8e-07 GB into, got ")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [("image_size", 0, r"in \[1, 4096\]"), ("image_size", 5000, r"in \[1, 4096\]"), ("channels", 2, "one of 1, 3")],
)
def test_fields_out_of_range(field: str, value: int, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be {why}, got {value}$"):
        load(tmp_path, **{field: value})
