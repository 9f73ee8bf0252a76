"""ISIC 2019: the challenge's table and photographs, a stratified split, faults in one line."""

from pathlib import Path

import pytest
import torch

from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.isic2019 import CLASSES, ISIC2019
from fedlab_runner.utils.errors import UserError
from tests.helpers.leaf_files import write_isic

LABELS = [0] * 10 + [1] * 5 + [2] * 3 + [7] * 2


def load(root: Path, seed: int = 0, image_size: int = 16, test_fraction: float = 0.2) -> Data:
    return ISIC2019(str(root), image_size, test_fraction, [0.5] * 3, [0.2] * 3).load(seed)


def refusal(root: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(root)
    assert "\n" not in str(caught.value) and "dataset.root (environment FEDLAB_DATA)" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("unknown", [False, True])
def test_each_class_gives_a_fifth_to_the_test_set(tmp_path, unknown):
    write_isic(tmp_path / "isic2019", LABELS, unknown)
    data = load(tmp_path)
    assert data.test.targets.bincount(minlength=8).tolist() == [2, 1, 1, 0, 0, 0, 0, 0]
    both = torch.cat([data.train.targets, data.test.targets])
    assert both.bincount().tolist() == [10, 5, 3, 0, 0, 0, 0, 2]
    assert data.class_names == CLASSES and data.train.users is None
    for examples in (data.train, data.test):
        assert examples.inputs.shape[1:] == (3, 16, 16) and examples.inputs.dtype == torch.uint8
        assert torch.equal(examples.strata, examples.targets)
        numbers = (examples.inputs[:, 0, 8, 8] / 12).round().long()
        assert [LABELS[i] for i in numbers.tolist()] == examples.targets.tolist()


def test_the_split_depends_on_the_seed_alone(tmp_path):
    write_isic(tmp_path / "isic2019", LABELS, True)
    first, same, other = load(tmp_path, 1), load(tmp_path, 1), load(tmp_path, 2)
    assert torch.equal(first.train.inputs, same.train.inputs)
    assert not torch.equal(first.train.inputs, other.train.inputs)


def test_photographs_of_no_known_class_are_left_out(tmp_path):
    write_isic(tmp_path / "isic2019", [0, 1, 8, 0, 8, 1], True)
    data = load(tmp_path, test_fraction=0.5)
    assert sorted(data.train.targets.tolist() + data.test.targets.tolist()) == [0, 0, 1, 1]


def test_missing_files(tmp_path):
    table = tmp_path / "isic2019/ISIC_2019_Training_GroundTruth.csv"
    assert f"{table} is missing" in refusal(tmp_path)
    names = write_isic(tmp_path / "isic2019", LABELS, True)
    photograph = tmp_path / f"isic2019/ISIC_2019_Training_Input/{names[4]}.jpg"
    photograph.unlink()
    assert f"{photograph} is missing" in refusal(tmp_path)
    photograph.write_bytes(b"<html>")
    assert f"{photograph} is not an image that can be read (" in refusal(tmp_path)


HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "lacks the columns"),
        ("<html>404</html>", "lacks the columns image,MEL,NV"),
        (HEADER.replace("MEL,NV", "NV,MEL"), "lacks the columns image,MEL,NV"),
        (HEADER, "lists no images"),
        (HEADER + "a,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0\nb,0.0\n", "has a line 3 that"),
        (HEADER + "a,1.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0\n", "has a line 2 that"),
        (HEADER + "a,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0\n", "has a line 2 that"),
        (HEADER + "a,x,0.0,0.0,0.0,0.0,0.0,0.0,1.0\n", "has a line 2 that"),
        (HEADER + "../a,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0\n", "has a line 2 that"),
    ],
)
def test_damaged_table(tmp_path, content, reason):
    table = tmp_path / "isic2019/ISIC_2019_Training_GroundTruth.csv"
    table.parent.mkdir()
    table.write_text(content)
    message = refusal(tmp_path)
    assert str(table) in message and reason in message


@pytest.mark.parametrize(("size", "fraction"), [(0, 0.2), (16, 0.0), (16, 1.0)])
def test_fields_out_of_range(tmp_path, size, fraction):
    with pytest.raises(ValueError, match=r"^(image_size must be >= 1, got 0|test_fraction must be in .*)$"):
        load(tmp_path, 0, size, fraction)
