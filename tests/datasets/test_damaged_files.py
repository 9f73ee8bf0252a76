"""Data sets whose files were damaged: with a bit flipped anywhere, or cut off anywhere, they are refused in one line.

A format without checksums (an unpacked idx file, LEAF's json) may hold another pixel and be read: then the examples
have the shape that they had, and a run that began with others refuses them (test_damage.py).
"""

import gzip
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.fed_heart import FedHeart
from fedlab_runner.datasets.herigraph import HeriGraph
from fedlab_runner.datasets.isic2019 import ISIC2019
from fedlab_runner.datasets.oxford_pets import OxfordPets
from fedlab_runner.datasets.stanford_cars import StanfordCars
from fedlab_runner.utils.errors import UserError
from tests.datasets.test_contract import dataset
from tests.datasets.test_files import CIFARS, MNISTS, load
from tests.datasets.test_leaf import femnist
from tests.datasets.test_photographs import write_cars, write_pets
from tests.helpers.heart_files import write_heart
from tests.helpers.leaf_files import characters, write_isic, write_leaf, write_npz
from tests.helpers.own_files import write_arrays, write_images, write_table
from tests.helpers.torchvision_files import write_cifar, write_mnist
from tests.partitions.test_blocks import write_herigraph

FEW = 60
Damage = Callable[[bytes, int], bytes]


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ (1 << position % 8)]) + content[position + 1 :]


def cut(content: bytes, position: int) -> bytes:
    return content[:position]


def positions(content: bytes, most: int | None) -> Iterator[int]:
    """All, or evenly spread ones."""
    step = 1 if most is None else max(1, len(content) // most)
    yield from range(0, len(content), step)


def outcomes(path: Path, damage: Damage, read: Callable[[], Data], most: int | None) -> tuple[int, int]:
    """How many damages of a file were refused, and how many read; anything else is an error."""
    content, whole, refused, passed = path.read_bytes(), read(), 0, 0
    for position in positions(content, most):
        path.write_bytes(damage(content, position))
        try:
            data = read()
        except UserError as error:
            assert "\n" not in str(error) and "dataset." in str(error), error
            refused += 1
        except ValueError as error:  # named after a field: the run puts `dataset.` before it
            assert re.match(r"(target|user|categorical|ignore|test_fraction) must [^\n]+$", str(error)), error
            refused += 1
        else:
            for mine, theirs in zip(whole.train[:3] + whole.test[:3], data.train[:3] + data.test[:3], strict=True):
                assert mine.shape[1:] == theirs.shape[1:] and mine.dtype == theirs.dtype, position
            passed += 1
    path.write_bytes(content)
    print(f"\n{damage.__name__} {path.name}: {refused} refused, {passed} read")
    return refused, passed


MOST = pytest.mark.parametrize("most", [FEW, pytest.param(3000, marks=pytest.mark.slow)])
BOTH = pytest.mark.parametrize("damage", [flipped, cut])


@MOST
@BOTH
def test_files_with_published_digests(
    damage: Damage, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mnist, cls), (cifar, other) = MNISTS[0], CIFARS[0]
    write_mnist(tmp_path, cls, monkeypatch)
    write_cifar(tmp_path, other, monkeypatch)
    for component, name in (
        (mnist, "MNIST/raw/train-images-idx3-ubyte.gz"),
        (mnist, "MNIST/raw/t10k-labels-idx1-ubyte.gz"),
        (cifar, "cifar-10-batches-py/data_batch_3"),
        (cifar, "cifar-10-batches-py/batches.meta"),
    ):
        refused, passed = outcomes(tmp_path / name, damage, lambda component=component: load(component, tmp_path), most)
        assert refused and not passed


@MOST
def test_unpacked_idx(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut anywhere, or changed in the header: refused. A pixel is a pixel."""
    component, cls = MNISTS[0]
    write_mnist(tmp_path, cls, monkeypatch)
    for path in (tmp_path / "MNIST/raw").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    assert outcomes(path, flipped, lambda: load(component, tmp_path), most)[1]
    assert outcomes(path, cut, lambda: load(component, tmp_path), most)[1] == 0
    head = path.read_bytes()
    for position in range(16):
        path.write_bytes(flipped(head, position))
        with pytest.raises(UserError):
            load(component, tmp_path)


@MOST
@BOTH
def test_npz(damage: Damage, most: int, tmp_path: Path) -> None:
    """Zip has checksums: what is read is what was written, in the arrays that are used."""
    path = tmp_path / "femnist/femnist-leaf-sf05.npz"
    write_npz(path, [0, 1, 2, 3], [0, 0, 1, 1], [0, 1, 0, 1])
    whole = femnist(tmp_path)

    def read() -> Data:
        data = femnist(tmp_path)
        assert (data.train.inputs == whole.train.inputs).all() and (data.train.targets == whole.train.targets).all()
        return data

    refused, _ = outcomes(path, damage, read, most)
    assert refused


@MOST
@BOTH
def test_leaf(damage: Damage, most: int, tmp_path: Path) -> None:
    path = tmp_path / "femnist/all_data/all_data_0.json"
    write_leaf(path, {"w": characters([0, 1], 3), "v": characters([4, 5, 6], 4)})
    refused, passed = outcomes(path, damage, lambda: femnist(tmp_path), most)
    assert refused and (damage is flipped or not passed)


def test_swapped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file in place of another of the same data set."""
    component, cls = MNISTS[0]
    write_mnist(tmp_path, cls, monkeypatch)
    folder = tmp_path / "MNIST/raw"
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 4
    for name in names:
        good = (folder / name).read_bytes()
        for other in {*names} - {name}:
            shutil.copy(folder / other, folder / name)
            with pytest.raises(UserError, match="is damaged"):
                load(component, tmp_path)
            (folder / name).write_bytes(good)
    for path in folder.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    for name in (name.removesuffix(".gz") for name in names):
        good = (folder / name).read_bytes()
        for other in {other.removesuffix(".gz") for other in names} - {name}:
            shutil.copy(folder / other, folder / name)
            with pytest.raises(UserError, match=r"is not an idx file|labels for \d+ images"):
                load(component, tmp_path)
            (folder / name).write_bytes(good)


STATISTICS = ([0.5] * 3, [0.2] * 3)


@MOST
@BOTH
@pytest.mark.parametrize(
    "name", ["devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat", "devkit/cars_meta.mat"]
)
def test_matlab(name: str, damage: Damage, most: int, tmp_path: Path) -> None:
    """Compressed parts have checksums, headers have none."""
    write_cars(tmp_path)
    component = StanfordCars(str(tmp_path), 4, *STATISTICS)
    refused, passed = outcomes(tmp_path / "stanford_cars" / name, damage, lambda: component.load(0), most)
    assert refused and (damage is flipped or not passed)


@MOST
@BOTH
def test_lists_of_photographs(damage: Damage, most: int, tmp_path: Path) -> None:
    write_pets(tmp_path)
    write_isic(tmp_path / "isic2019", [0] * 4 + [1] * 3 + [7] * 2, True)
    pets, isic = OxfordPets(str(tmp_path), 4, *STATISTICS), ISIC2019(str(tmp_path), 4, 0.4, *STATISTICS)
    for path, component in (
        (tmp_path / "oxford-iiit-pet/annotations/trainval.txt", pets),
        (tmp_path / "isic2019/ISIC_2019_Training_GroundTruth.csv", isic),
    ):
        refused, _ = outcomes(path, damage, lambda component=component: component.load(0), most)
        assert refused


@MOST
@BOTH
@pytest.mark.parametrize("name", ["Attribute_Labels.csv", "Textual_Features.csv", "Visual_Features.csv"])
def test_tables_of_features(name: str, damage: Damage, most: int, tmp_path: Path) -> None:
    folder = tmp_path / "herigraph/here"
    write_herigraph(folder, posts=18)
    component = HeriGraph(str(tmp_path), ["here"], True, 0.34)
    refused, _ = outcomes(folder / name, damage, lambda: component.load(0), min(most, 600))
    assert refused


@MOST
@BOTH
def test_tables_of_patients(damage: Damage, most: int, tmp_path: Path) -> None:
    """Without checksums: another number is read, and what is no number refused."""
    write_heart(tmp_path)
    component = FedHeart(str(tmp_path))
    path = tmp_path / "fed_heart/processed.cleveland.data"
    refused, _ = outcomes(path, damage, lambda: component.load(0), min(most, 600))
    assert refused


@MOST
@BOTH
def test_a_photograph(damage: Damage, most: int, tmp_path: Path) -> None:
    """JPEG has no checksums: it is decoded or refused."""
    write_pets(tmp_path)
    component = OxfordPets(str(tmp_path), 4, *STATISTICS)
    path = tmp_path / "oxford-iiit-pet/images/Abyssinian_2.jpg"
    refused, _ = outcomes(path, damage, lambda: component.load(0), most)
    assert refused


@MOST
@BOTH
def test_your_own_tables(damage: Damage, most: int, tmp_path: Path) -> None:
    """A text has no checksums: another digit is read."""
    path = tmp_path / "table.csv"
    fields = {"path": write_table(path), "target": "kind", "user": "who", "ignore": ["job"]}
    component = dataset("csv", **fields, test_path=write_table(tmp_path / "test.csv"))
    refused, passed = outcomes(path, damage, lambda: component.load(0), most)
    assert refused and passed
    assert outcomes(tmp_path / "test.csv", damage, lambda: component.load(0), most)[0]


@MOST
@BOTH
def test_arrays_of_ones_own(damage: Damage, most: int, tmp_path: Path) -> None:
    """Zip has checksums of contents: what is read is what was written, in the arrays that have kept their names."""
    path = tmp_path / "arrays.npz"
    write_arrays(path)
    component = dataset("npz", path=str(path))
    whole = component.load(0)

    def read() -> Data:
        data: Data = component.load(0)
        assert (data.train.inputs == whole.train.inputs).all() and (data.test.targets == whole.test.targets).all()
        return data

    refused, passed = outcomes(path, damage, read, most)
    assert refused and (damage is flipped or not passed)


@MOST
@BOTH
def test_images_of_ones_own(damage: Damage, most: int, tmp_path: Path) -> None:
    write_images(tmp_path, ["a", "b"], [3, 3])
    component = dataset("image_folder", root=str(tmp_path), name="mine", cache=None, image_size=4)
    refused, _ = outcomes(tmp_path / "b/001.png", damage, lambda: component.load(0), most)
    assert refused
