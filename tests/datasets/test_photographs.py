"""Caltech 101, Oxford-IIIT Pets and Stanford Cars, in the files that torchvision reads; faults in one line."""

from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image
from scipy.io import savemat

from fedlab_runner.datasets.caltech101 import Caltech101
from fedlab_runner.datasets.oxford_pets import OxfordPets
from fedlab_runner.datasets.stanford_cars import StanfordCars
from fedlab_runner.utils.errors import UserError

STATISTICS = ([0.5] * 3, [0.2] * 3)


def photograph(path: Path, shade: int, grey: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((24, 30) if grey else (24, 30, 3), shade, np.uint8)
    Image.fromarray(pixels).save(path)


def write_caltech(root: Path) -> dict[int, int]:
    """The class of each shade."""
    folder, shades = root / "caltech101" / "101_ObjectCategories", {}
    for label, (name, n) in enumerate({"Faces": 6, "accordion": 4, "zebra": 5}.items()):
        for i in range(1, n + 1):
            shade = 20 + 60 * label + 10 * i
            photograph(folder / name / f"image_{i:04d}.jpg", shade, grey=i == 1)
            shades[shade] = label
    photograph(folder / "BACKGROUND_Google" / "image_0001.jpg", 3)
    return shades


def write_pets(root: Path) -> None:
    folder = root / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    for part, numbers in (("trainval", (1, 2, 3)), ("test", (4, 5))):
        lines = []
        for label, breed in enumerate(("Abyssinian", "american_bulldog"), start=1):
            for number in numbers:
                lines.append(f"{breed}_{number} {label} {label} 1")
                photograph(folder / "images" / f"{breed}_{number}.jpg", 50 * label + 5 * number)
        (folder / "annotations" / f"{part}.txt").write_text("\n".join(lines) + "\n")


def write_cars(root: Path) -> None:
    folder = root / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    savemat(folder / "devkit/cars_meta.mat", {"class_names": np.array(["AM General Hummer", "Audi TT"], object)})
    for file, images, n in (
        ("devkit/cars_train_annos.mat", "cars_train", 4),
        ("cars_test_annos_withlabels.mat", "cars_test", 3),
    ):
        rows = np.zeros(n, dtype=[("class", object), ("fname", object)])
        for i in range(n):
            rows[i] = (i % 2 + 1, f"{i + 1:05d}.jpg")
            photograph(folder / images / f"{i + 1:05d}.jpg", 40 + 30 * i)
        savemat(folder / file, {"annotations": rows})


def caltech(root: Path, seed: int = 0, **changes: float) -> Caltech101:
    return Caltech101(str(root), int(changes.get("image_size", 8)), changes.get("test_fraction", 0.2), *STATISTICS)


def test_caltech_gives_a_fifth_of_all_photographs_to_the_test_set(tmp_path):
    shades = write_caltech(tmp_path)
    data, other = caltech(tmp_path).load(0), caltech(tmp_path).load(1)
    assert (len(data.train.targets), len(data.test.targets)) == (12, 3)
    assert data.class_names == ("Faces", "accordion", "zebra")
    for part in (data.train, data.test):
        assert part.inputs.shape[1:] == (3, 8, 8)
        nearest = [min(shades, key=lambda s, v=v: abs(s - v)) for v in part.inputs[:, 0, 4, 4].tolist()]
        assert [shades[shade] for shade in nearest] == part.targets.tolist()
    assert data.test.inputs.tolist() != other.test.inputs.tolist()


def test_pets_keep_their_own_division(tmp_path):
    write_pets(tmp_path)
    data = OxfordPets(str(tmp_path), 8, *STATISTICS).load(0)
    theirs = torchvision.datasets.OxfordIIITPet(tmp_path, "trainval")
    assert data.class_names == ("Abyssinian", "american_bulldog")
    assert data.train.targets.tolist() == theirs._labels == [0, 0, 0, 1, 1, 1]
    assert data.test.targets.tolist() == [0, 0, 1, 1]
    assert data.train.inputs[:, 0, 0, 0].tolist() == pytest.approx([55, 60, 65, 105, 110, 115], abs=2)


def test_cars_keep_their_own_division(tmp_path):
    write_cars(tmp_path)
    data = StanfordCars(str(tmp_path), 8, *STATISTICS).load(0)
    theirs = torchvision.datasets.StanfordCars(tmp_path, "train")
    assert list(data.class_names) == theirs.classes
    assert data.train.targets.tolist() == [label for _, label in theirs._samples] == [0, 1, 0, 1]
    assert data.test.targets.tolist() == [0, 1, 0]
    assert data.test.inputs[:, 0, 0, 0].tolist() == pytest.approx([40, 70, 100], abs=2)


def refusal(load) -> str:
    with pytest.raises(UserError) as caught:
        load()
    assert "\n" not in str(caught.value) and "dataset.root (environment FEDLAB_DATA)" in str(caught.value)
    return str(caught.value)


def test_missing_and_damaged_files_are_named(tmp_path):
    sets = [
        caltech(tmp_path),
        OxfordPets(str(tmp_path), 8, *STATISTICS),
        StanfordCars(str(tmp_path), 8, *STATISTICS),
    ]
    for dataset in sets:
        assert "is missing" in refusal(lambda dataset=dataset: dataset.load(0))
    (tmp_path / "caltech101" / "101_ObjectCategories").mkdir(parents=True)
    assert "has no photographs" in refusal(lambda: sets[0].load(0))
    write_pets(tmp_path)
    (tmp_path / "oxford-iiit-pet/images/Abyssinian_4.jpg").write_bytes(b"<html>")
    assert "Abyssinian_4.jpg is not an image that can be read (" in refusal(lambda: sets[1].load(0))
    listed = tmp_path / "oxford-iiit-pet/annotations/test.txt"
    for text, reason in (
        ("", "lists no images"),
        ("a 1\n", "has a line 1"),
        ("../a_1 1 1 1\n", "has a line 1"),
        ("a_1 9 1 1\n", "no photograph of class 3"),
    ):
        listed.write_text(text)
        assert reason in refusal(lambda: sets[1].load(0))
    write_cars(tmp_path)
    (tmp_path / "stanford_cars/cars_test/00002.jpg").unlink()
    assert "00002.jpg is missing" in refusal(lambda: sets[2].load(0))
    (tmp_path / "stanford_cars/devkit/cars_meta.mat").write_bytes(b"<html>")
    assert "cars_meta.mat is not a MATLAB file with class_names (" in refusal(lambda: sets[2].load(0))


@pytest.mark.parametrize("changes", [{"image_size": 0}, {"test_fraction": 0.0}, {"test_fraction": 1.0}])
def test_fields_out_of_range(tmp_path, changes):
    with pytest.raises(ValueError, match=f"^{next(iter(changes))} must be"):
        caltech(tmp_path, **changes)
