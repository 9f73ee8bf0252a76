"""Your own arrays: shapes and types that people save, and what cannot be learned from."""

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.datasets import npz
from fedlab_runner.datasets.examples import Data
from fedlab_runner.utils.errors import UserError
from tests.datasets.test_contract import dataset
from tests.helpers.own_files import write_arrays


def load(path: Path, **changes: Any) -> Data:
    data: Data = dataset("npz", path=str(path), **changes).load(0)
    return data


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(path)
    message = str(caught.value)
    assert "\n" not in message and "set dataset.path to a file that numpy.savez wrote with x_train" in message
    assert message.startswith(f"{path} ")
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arrays.npz"


def test_grey_images(path: Path) -> None:
    arrays = write_arrays(path, users_train=np.array(list("dabdabdab")), users_test=np.array(list("abcdab")))
    data = load(path)
    assert data.train.inputs.shape == (9, 1, 4, 4) and data.train.inputs.dtype == torch.uint8
    np.testing.assert_array_equal(data.train.inputs[:, 0], arrays["x_train"])
    np.testing.assert_array_equal(data.test.targets, arrays["y_test"])
    assert data.train.users is not None and data.train.users.tolist() == [3, 0, 1] * 3
    assert data.test.users is not None and data.test.users.tolist() == [0, 1, 2, 3, 0, 1]
    pixels = arrays["x_train"] / 255
    assert data.mean == pytest.approx([pixels.mean()]) and data.std == pytest.approx([pixels.std()])
    assert load(path, mean=[0.1], std=[0.2]).mean == (0.1,)
    assert data.class_names == ("0", "1", "2") and data.train.targets.dtype == torch.int64


def test_statistics_of_each_channel(path: Path) -> None:
    rng = np.random.default_rng(0)
    images = np.stack([rng.integers(0, top, (50, 6, 6), np.uint8) for top in (10, 256, 1)], 1)
    write_arrays(path, x_train=images, x_test=images, y_train=np.arange(50) % 2, y_test=np.arange(50) % 2)
    data = load(path)
    assert data.mean == pytest.approx((images / 255).mean((0, 2, 3)))
    assert data.std == pytest.approx([*(images[:, :2] / 255).std((0, 2, 3)), 1 / 255])  # the last channel is constant


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_first_and_last(channels: int, path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, channels, 4, 4), np.uint8)
    write_arrays(path, x_train=images, x_test=images[:6])
    first = load(path)
    write_arrays(path, x_train=images.transpose(0, 2, 3, 1), x_test=images[:6].transpose(0, 2, 3, 1))
    last = load(path)
    assert torch.equal(first.train.inputs, last.train.inputs) and first.mean == last.mean
    np.testing.assert_array_equal(first.train.inputs, images)


def test_whole_numbers_that_float32_holds_are_tokens(path: Path) -> None:
    x = np.array([[0, 2**24, -(2**24), 2**24 - 1, 7]] * 9)
    write_arrays(path, x_train=x, x_test=x[:6])
    np.testing.assert_array_equal(load(path).train.inputs.long(), x)


@pytest.mark.parametrize("dtype", ["f8", ">f4", "i2", "?", "u1", "f2"])
def test_features_are_taken_as_they_are(dtype: str, path: Path) -> None:
    x = (np.arange(45).reshape(9, 5) % 7).astype(dtype)
    write_arrays(path, x_train=x, x_test=x[:6])
    data = load(path)
    assert data.train.inputs.dtype == torch.float32 and data.mean is data.std is None
    np.testing.assert_array_equal(data.train.inputs, x.astype(np.float32))


def test_labels_of_any_name(path: Path) -> None:
    write_arrays(path, y_train=np.array(["b", "a", "c"] * 3)[:, None], y_test=np.array(["c"] * 6))
    data = load(path)
    assert data.class_names == ("a", "b", "c") and data.test.targets.tolist() == [2] * 6
    write_arrays(path, y_train=np.array([10, -3, 9] * 3, np.int8), y_test=np.array([9] * 6, np.uint64))
    data = load(path)
    assert data.class_names == ("-3", "9", "10") and data.test.targets.tolist() == [1] * 6


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"x_test": None, "y_test": None}, "has no array x_test, y_test"),
    (
        {"x_train": np.zeros((9, 4, 5), np.uint8)},
        "has an array x_train of uint8 [9, 4, 5], not uint8 images, square",
    ),
    ({"x_train": np.zeros((9, 4, 4))}, "has an array x_train of float64 [9, 4, 4], not uint8 images"),
    ({"x_train": np.zeros((9, 2, 4, 4), np.uint8)}, "of uint8 [9, 2, 4, 4]"),
    ({"x_train": np.zeros((9, 4, 5, 3), np.uint8)}, "has an array x_train of uint8 [9, 4, 5, 3], not uint8 images"),
    ({"x_train": np.zeros(9)}, "has an array x_train of float64 [9]"),
    ({"x_train": np.zeros((9, 3), complex)}, "has an array x_train of complex128 [9, 3]"),
    (
        {"x_train": np.full((9, 3), 2**24 + 1), "x_test": np.zeros((6, 3))},
        "beyond 2^24, which float32 rounds, such as 16777217 in row 0, column 0 of x_train: make tokens smaller, or",
    ),
    ({"x_train": np.full((9, 3), 2**31 - 1, np.int32)}, "which float32 rounds, such as 2147483647 in row"),
    ({"x_train": np.full((9, 3), -(2**24) - 1)}, "which float32 rounds, such as -16777217 in row"),
    ({"x_train": np.zeros((0, 4, 4), np.uint8), "y_train": np.zeros(0, int)}, "has no examples in x_train"),
    ({"x_train": np.zeros((9, 5, 5), np.uint8)}, "inputs of two shapes or types"),
    ({"x_train": np.zeros((9, 16), np.uint8)}, "inputs of two shapes or types"),
    ({"y_train": np.arange(8) % 3}, "has an array y_train of int64 [8], not 9 whole numbers or texts"),
    ({"y_train": np.eye(9)}, "has an array y_train of float64 [9, 9]"),
    ({"y_train": np.arange(9) % 3 / 2}, "has an array y_train of float64 [9]"),
    ({"y_train": np.zeros(9, int)}, "has 1 different values in y_train"),
    ({"y_test": np.full(6, 3)}, "has the class '3' in y_test, which y_train lacks"),
    ({"y_test": np.array(["1"] * 6)}, "has numbers in one of y_train, y_test and texts in the other"),
    ({"users_train": np.arange(8)}, "has an array users_train of int64 [8], not 9"),
    ({"users_train": np.arange(9), "users_test": np.array(["a"] * 6)}, "has numbers in one of users_train, users_test"),
    ({"x_train": np.full((9, 2), np.nan)}, "has no finite number in row 0, column 0 of x_train"),
    ({"x_train": np.array([[0, 0], [0, 1e300]] * 5)[:9]}, "has no finite number in row 1, column 1 of x_train"),
    ({"y_train": np.array([{}] * 9)}, "cannot be read (Object arrays cannot be loaded when allow_pickle=False)"),
]


@pytest.mark.parametrize(("changes", "reason"), FAULTS, ids=[reason for _, reason in FAULTS])
def test_faults_are_one_line(changes: dict[str, Any], reason: str, path: Path) -> None:
    write_arrays(path, **changes)
    assert reason in refusal(path)


def test_a_member_that_is_no_array_is_one_line(path: Path) -> None:
    """numpy gives its bytes."""
    for name in ("x_train", "y_test"):
        write_arrays(path, **{name: None})
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(f"{name}.npy", b"hello")
        assert f"cannot be read ({name} is no array of numpy)" in refusal(path)


def test_statistics_of_features_are_refused(path: Path) -> None:
    write_arrays(path, x_train=np.eye(9), x_test=np.eye(9)[:6])
    with pytest.raises(ValueError, match=r"^mean must be null for vectors of features, .* got \[0\.5\]$"):
        load(path, mean=[0.5], std=[0.5])


def test_files_that_are_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is missing" in refusal(path)
    path.write_bytes(b"no zip")
    assert "cannot be read (File is not a zip file)" in refusal(path)
    path.unlink()
    os.mkfifo(path)
    assert "is no plain file" in refusal(path)
    path.unlink()
    write_arrays(path)
    monkeypatch.setattr(npz, "memory_bytes", lambda: 300)
    assert "needs 0.0 GB of memory, and 0.0 GB are free" in refusal(path)
