"""Server data: what is reserved, what is read from disk, what is refused, and the minibatches that come of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from PIL import Image

from fedlab_runner.algorithms.shared.server_batches import server_batches, server_steps
from fedlab_runner.algorithms.shared.server_training import train_as_client, train_on_server
from fedlab_runner.config.build import conf_dir
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets import image_cache
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.datasets.fashion_mnist import FashionMNIST
from fedlab_runner.experiment.run import prepare, run_in
from fedlab_runner.server_data import _images, checks
from fedlab_runner.server_data.image_folder import ServerImageFolder
from fedlab_runner.server_data.in_domain import InDomain
from fedlab_runner.server_data.none import NoServerData
from fedlab_runner.server_data.tiny_imagenet import TinyImageNet
from fedlab_runner.server_data.torchvision import OtherDataset
from fedlab_runner.utils.errors import UserError
from tests.datasets.test_contract import dataset
from tests.helpers.composed import composed
from tests.helpers.torchvision_files import write_mnist
from tests.helpers.toy import federation, local, mlp, model_family, normed, server_data

RNG = np.random.default_rng(3)


def images(n: int, channels: int = 3, size: int = 8) -> Examples:
    targets = torch.arange(n) % 4
    inputs = torch.from_numpy(RNG.integers(0, 256, (n, channels, size, size)).astype(np.uint8))
    return Examples(inputs, targets, targets, torch.arange(n))


def clients(channels: int = 3, size: int = 8, n: int = 40) -> Data:
    return Data(images(n, channels, size), images(n, channels, size), ("a", "b", "c", "d"), (0.5,), (0.5,))


def save(path: Path, array: np.ndarray, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array, mode=None).convert(mode).save(path, quality=100, subsampling=0)


def flat(colour: tuple[int, int, int], width: int = 64, height: int = 64) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def image_folder(root: Path, per_class: int = 5) -> Path:
    """ImageNet's layout: class k is of one colour, photographs are of many sizes, some grey."""
    for k, wnid in enumerate(("n02", "n01", "n03")):
        for i in range(per_class):
            save(
                root / wnid / f"{wnid}_{i}.JPEG",
                flat((80 * k, 80 * k, 80 * k), 50 + 7 * i, 40),
                "L" if i == 1 else "RGB",
            )
        (root / wnid / "notes.txt").write_text("not an image")
    return root


def tiny_imagenet(root: Path) -> Path:
    folder = root / "tiny-imagenet-200"
    wnids = ["n30", "n10", "n20"]
    for i in range(9):
        value = 100 * (i % 3)
        save(folder / "val" / "images" / f"val_{i}.JPEG", flat((value, value, value)), "L" if i < 3 else "RGB")
        save(folder / "train" / wnids[i % 3] / "images" / f"{wnids[i % 3]}_{i}.JPEG", flat((value, 0, 0)))
    lines = [f"val_{i}.JPEG\t{wnids[i % 3]}\t0\t32\t44\t62\n" for i in range(9)]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(wnids))
    return root


def reserved(component: Any, data: Data, seed: int = 0) -> tuple[ServerData, Data]:
    mine, rest = component.reserve(data, seed)
    assert mine is not None
    return mine, rest


# In-domain.


def test_none_leaves_everything() -> None:
    data = clients()
    assert NoServerData().reserve(data, 0) == (None, data)


def test_in_domain_examples_leave_the_test_set_and_only_it(caplog: pytest.LogCaptureFixture) -> None:
    data = clients()
    with caplog.at_level("INFO"):
        mine, rest = reserved(InDomain(15, None), data)
    assert caplog.messages == ["15 of 40 test examples are the server's (in_domain): server_data=none tests on all"]
    assert (len(mine), len(rest.test.targets), mine.num_classes, mine.in_domain) == (15, 25, 4, True)
    rows = [*mine.inputs.flatten(1).tolist(), *rest.test.inputs.flatten(1).tolist()]
    assert sorted(rows) == sorted(data.test.inputs.flatten(1).tolist()), "a disjoint exact cover"
    assert rest.test.users is not None and len(rest.test.users) == len(rest.test.strata) == 25
    assert rest.train is data.train
    where = {tuple(x): int(y) for x, y in zip(data.test.inputs.flatten(1).tolist(), data.test.targets, strict=True)}
    assert [where[tuple(x)] for x in mine.inputs.flatten(1).tolist()] == mine.targets.tolist()


def test_in_domain_examples_are_a_function_of_the_seed() -> None:
    data = clients()
    one, again, other = (reserved(InDomain(15, None), data, seed)[0].inputs for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)


@pytest.mark.parametrize(
    ("fraction", "total", "size"), [(None, 10_000, 1000), (None, 4000, 1000), (None, 361, 90), (0.02, 10_000, 200)]
)
def test_in_domain_examples_are_a_share_of_the_test_set(fraction: float | None, total: int, size: int) -> None:
    """Without a number: Feddle's 1000 on every test set of the papers, a quarter of a small one."""
    mine, rest = reserved(InDomain(None, fraction), clients(1, 2, total))
    assert (len(mine), len(rest.test.targets)) == (size, total - size)
    second, rest = reserved(InDomain(None, fraction), rest)
    assert (len(second), len(rest.test.targets)) == (size, total - 2 * size)


@pytest.mark.parametrize(
    ("size", "fraction", "message"),
    [
        (0, None, r"size must be >= 1, got 0"),
        (-3, None, r"size must be >= 1, got -3"),
        (None, 0.0, r"fraction must be in \(0, 1\), got 0\.0"),
        (None, 1.0, r"fraction must be in \(0, 1\), got 1\.0"),
        (None, -0.1, r"fraction must be in \(0, 1\), got -0\.1"),
        (None, float("nan"), r"fraction must be in \(0, 1\), got nan"),
        (15, 0.5, r"fraction must be null where size is set, got 0\.5 and size 15"),
    ],
)
def test_in_domain_of_no_number_of_examples_is_refused(size: int | None, fraction: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{message}$"):
        InDomain(size, fraction)


@pytest.mark.parametrize(
    ("size", "fraction", "message"),
    [
        (40, None, "size must leave some of the test set's 40 examples, got 40"),
        (1, None, "size must give examples of two classes at least, got 1: 1 of the test set's 40"),
        (None, 0.99, r"fraction must leave some of the test set's 40 examples, got 0\.99"),
        (None, 0.01, r"fraction must give examples of two classes at least, got 0\.01: 0 of the test set's 40"),
    ],
)
def test_in_domain_that_the_test_set_cannot_give_is_refused(
    size: int | None, fraction: float | None, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{message}$"):
        InDomain(size, fraction).reserve(clients(), 0)


def test_a_second_share_that_the_rest_cannot_give_is_refused() -> None:
    half = InDomain(None, 0.5)
    with pytest.raises(ValueError, match=r"^fraction must leave some of the test set's 20 remaining examples, got 0.5"):
        half.reserve(reserved(half, clients())[1], 0)


@pytest.mark.parametrize("name", ["fedavg", "fedft"])
def test_every_algorithm_is_tested_on_what_the_server_left(name: str) -> None:
    whole = prepare(build("algorithm=fedavg", "server_data=none")).simulation
    left = prepare(build(f"algorithm={name}", "server_data=in_domain", "server_data.size=60")).simulation
    assert len(left.test.targets) == len(whole.test.targets) - 60
    assert left.fed.server_data is not None and len(left.fed.server_data) == 60


def build(*overrides: str) -> Any:
    from fedlab_runner.config import build as config_build

    return config_build.build(composed(*overrides))


# Out-of-domain.


def test_an_image_folder_is_read_to_the_clients_shape(tmp_path: Path) -> None:
    root = image_folder(tmp_path)
    mine, rest = reserved(ServerImageFolder(str(root), "mine", None, None, None), clients(3, 8))
    assert mine.inputs.shape == (15, 3, 8, 8) and mine.inputs.dtype == torch.uint8
    assert (mine.num_classes, mine.in_domain, len(rest.test.targets)) == (3, False, 40)
    # classes by name: n01 was written with colour 80, n02 with 0, n03 with 160
    for label, value in enumerate((80, 0, 160)):
        assert (mine.inputs[mine.targets == label].float() - value).abs().max() <= 2
    save(root / ".ipynb_checkpoints" / "n.png", flat((9, 9, 9)))
    grey, _ = reserved(ServerImageFolder(str(root), "mine", None, None, None), clients(1, 12))
    assert grey.num_classes == 3, "a hidden folder is no class"
    assert grey.inputs.shape == (15, 1, 12, 12)


def test_images_are_resized_as_a_whole_with_antialiasing(tmp_path: Path) -> None:
    halves = np.concatenate([flat((0, 0, 0), 32, 40), flat((255, 255, 255), 32, 40)], axis=1)
    stripes = np.tile(np.array([[0], [255]], np.uint8).repeat(64, 1)[..., None].repeat(3, 2), (20, 1, 1))
    for name, array in (("a/x.png", halves), ("b/x.png", stripes)):
        save_png(tmp_path / name, array)
    mine, _ = reserved(ServerImageFolder(str(tmp_path), "mine", None, None, None), clients(3, 8))
    assert mine.inputs[0, :, :, :3].max() == 0 and mine.inputs[0, :, :, 5:].min() == 255
    assert (mine.inputs[1].float() - 127.5).abs().max() < 16, "fine stripes become grey"


def save_png(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def test_classes_and_a_cap_choose_images_by_seed(tmp_path: Path) -> None:
    root = str(image_folder(tmp_path, 20))
    mine, _ = reserved(ServerImageFolder(root, "mine", ["n03", "n01"], None, None), clients())
    assert mine.num_classes == 2 and (mine.inputs[mine.targets == 0].float() - 160).abs().max() <= 2
    drawn = [
        reserved(ServerImageFolder(root, "mine", None, 30, None), clients(), seed)[0].targets for seed in (0, 0, 1)
    ]
    assert len(drawn[0]) == 30 and torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


# Decoded images in a file.


NPY_HEADER = 128  # bytes


def cached_files(path: Path) -> list[str]:
    """What lies in a cache folder, without the locks."""
    return sorted(file.name for file in path.iterdir() if file.suffix != ".lock")


@pytest.mark.parametrize("channels", [1, 3])
def test_a_cache_has_the_same_images_and_is_made_once(channels: int, tmp_path: Path, monkeypatch: Any) -> None:
    root, cache = str(image_folder(tmp_path / "images", 20)), tmp_path / "cache"
    monkeypatch.setattr(image_cache, "IMAGES_AT_ONCE", 7)
    held, _ = reserved(ServerImageFolder(root, "mine", None, 30, None), clients(channels))
    mapped, _ = reserved(ServerImageFolder(root, "mine", None, 30, str(cache)), clients(channels))
    assert mapped.mapped and not held.mapped and torch.equal(held.inputs, mapped.inputs)
    assert torch.equal(held.targets, mapped.targets) and mapped.to(torch.device("meta")) is mapped
    assert len(cached_files(cache)) == 1
    assert (cache / cached_files(cache)[0]).stat().st_size == held.inputs.numel() + NPY_HEADER + 4
    monkeypatch.setattr(image_cache, "decode", None)  # nothing is decoded again
    again, _ = reserved(ServerImageFolder(root, "mine", None, 30, str(cache)), clients(channels))
    assert torch.equal(held.inputs, again.inputs)


def test_a_cache_is_of_these_files_and_this_size(tmp_path: Path) -> None:
    root, cache = image_folder(tmp_path / "images"), tmp_path / "cache"
    source = ServerImageFolder(str(root), "mine", None, None, str(cache))
    reserved(source, clients(3, 8))
    reserved(source, clients(3, 12))
    assert len(cached_files(cache)) == 2
    save(root / "n02" / "n02_0.JPEG", flat((255, 255, 255)))
    changed, _ = reserved(source, clients(3, 8))
    assert len(cached_files(cache)) == 3 and (changed.inputs[changed.targets == 1].amin((1, 2, 3)) > 250).sum() == 1


def test_a_cache_is_whole_or_not_there(tmp_path: Path) -> None:
    root, cache = image_folder(tmp_path / "images"), tmp_path / "cache"
    source = ServerImageFolder(str(root), "mine", None, None, str(cache))
    broken = root / "n03" / "n03_4.JPEG"
    whole = broken.read_bytes()
    broken.write_bytes(b"GIF of a cat")
    with pytest.raises(UserError, match=r"^server_data: .*n03_4\.JPEG is not an image"):
        source.reserve(clients(), 0)
    assert cached_files(cache) == []
    broken.write_bytes(whole)
    mine, _ = reserved(source, clients())
    (file,) = cached_files(cache)
    (cache / file).unlink()
    (cache / file).with_suffix(".tmp").write_bytes(b"of a killed process, longer than the images" * 1000)
    again, _ = reserved(source, clients())
    assert cached_files(cache) == [file] and torch.equal(mine.inputs, again.inputs)
    assert (cache / file).stat().st_size == mine.inputs.numel() + NPY_HEADER + 4


def test_a_damaged_cache_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(image_cache, "BLOCK_BYTES", 1000)
    source = ServerImageFolder(str(image_folder(tmp_path / "images")), "mine", None, None, str(tmp_path / "cache"))
    expected = reserved(source, clients())[0].inputs.clone()
    (name,) = cached_files(tmp_path / "cache")
    file, size = tmp_path / "cache" / name, expected.numel()
    whole = file.read_bytes()
    assert len(whole) > size + NPY_HEADER + 4, "several blocks"
    flips = [
        (at, bytes([whole[at] ^ 1]))
        for at in (*range(0, NPY_HEADER, 7), 999, 1000, size - 1, *range(size, len(whole), 5))
    ]
    damaged = [whole[:at] + new + whole[at + 1 :] for at, new in flips]
    damaged += [whole[:cut] for cut in (0, 10, size - 1, size + 1, len(whole) - 1)] + [whole + b"more"]
    for content in damaged:
        file.write_bytes(content)
        caplog.clear()
        assert torch.equal(reserved(source, clients())[0].inputs, expected)
        assert "is damaged or of another format: it is made again" in caplog.text
        assert file.read_bytes() == whole
    assert np.array_equal(np.load(file), expected.numpy()), "what numpy reads too"
    caplog.clear()
    assert torch.equal(reserved(source, clients())[0].inputs, expected) and not caplog.records


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = ServerImageFolder(str(image_folder(tmp_path / "images")), "mine", None, None, str(tmp_path / "file"))
    with pytest.raises(
        UserError, match=r"^server_data\.cache must be a folder to write 2\.9e-06 GB into, got .*file \("
    ):
        source.reserve(clients(), 0)


@pytest.mark.parametrize("algorithm", ["feddle", "feddf"])
def test_a_run_is_the_same_with_a_cache(algorithm: str, tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images")
    run = [f"algorithm={algorithm}", "algorithm.epochs=2", "model=cnn_small", "rounds=2", "server_data=image_folder"]
    folders = []
    for cache in ("null", str(tmp_path / "cache")):
        folders.append(tmp_path / cache.rpartition("/")[2])
        run_in(folders[-1] / "run", composed(*run, f"server_data.root={root}", f"server_data.cache={cache}"))
    one, other = ((folder / "run" / "metrics.jsonl").read_bytes() for folder in folders)
    assert one == other


@pytest.mark.parametrize("cached", [False, True])
def test_a_run_does_not_continue_on_other_images(cached: bool, tmp_path: Path) -> None:
    root, cache = image_folder(tmp_path / "images"), tmp_path / "cache" if cached else "null"
    run = ["algorithm=feddf", "algorithm.epochs=1", "model=cnn_small", "server_data=image_folder"]
    run += [f"server_data.root={root}", f"server_data.cache={cache}", "checkpoint.rounds=1"]
    run_in(tmp_path / "run", composed(*run, "rounds=1"))
    save(root / "n02" / "n02_0.JPEG", flat((255, 255, 255)))
    with pytest.raises(UserError, match=r"checkpoint\.same_data=false to continue with these"):
        run_in(tmp_path / "run", composed(*run, "rounds=2"))


@pytest.mark.parametrize("split", ["val", "train"])
def test_tiny_imagenet_is_read_in_its_two_layouts(split: str, tmp_path: Path) -> None:
    mine, _ = reserved(TinyImageNet(str(tiny_imagenet(tmp_path)), split, None, None, None), clients(3, 8))
    assert (mine.inputs.shape, mine.num_classes, mine.in_domain) == ((9, 3, 8, 8), 3, False)
    for label in range(3):  # the order of wnids.txt, not the alphabet's
        assert (mine.inputs[mine.targets == label, 0].float() - 100 * label).abs().max() <= 3
    some, _ = reserved(TinyImageNet(str(tmp_path), split, ["n20", "n30"], None, None), clients(3, 8))
    assert some.num_classes == 2 and (some.inputs[some.targets == 0, 0].float() - 200).abs().max() <= 3


@pytest.mark.parametrize("part", ["train", "test"])
def test_another_data_set_serves_as_out_of_domain_data(part: str, tmp_path: Path, monkeypatch: Any) -> None:
    arrays = write_mnist(tmp_path, "FashionMNIST", monkeypatch)
    other = FashionMNIST(str(tmp_path), False, [0.3], [0.3])
    mine, _ = reserved(OtherDataset(other, part, None), clients(3, 28))
    prefix = "train" if part == "train" else "t10k"
    assert np.array_equal(mine.inputs[:, 1].numpy(), arrays[f"{prefix}-images-idx3-ubyte"])
    assert (mine.num_classes, mine.in_domain) == (10, False)
    assert len(reserved(OtherDataset(other, part, 7), clients(1, 16))[0]) == 7


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (
            lambda root: ServerImageFolder(str(root / "nowhere"), "mine", None, None, None),
            r"server_data\.root .*nowhere.* does not exist",
        ),
        (
            lambda root: ServerImageFolder(str(root), "mine", ["n01", "n09"], None, None),
            r"\.classes .*has no n09 \(1 of 2 missing\)",
        ),
        (
            lambda root: ServerImageFolder(str(root), "mine", ["n01", *(f"n{i}" for i in range(20, 27))], None, None),
            r"has no n20, n21, n22, n23, n24, \.\.\. \(7 of 8 missing\)$",
        ),
        (
            lambda root: ServerImageFolder(str(root / "empty"), "mine", None, None, None),
            r"server_data: no images in .*empty",
        ),
        (
            lambda root: ServerImageFolder(str(root / "single"), "mine", None, None, None),
            r"server_data: all 2 images .*one class",
        ),
        (
            lambda root: ServerImageFolder(str(root / "broken"), "mine", None, None, None),
            r"server_data: .*x\.JPEG is not an image",
        ),
        (
            lambda root: TinyImageNet(str(root), "val", None, None, None),
            r"wnids\.txt cannot be read; set server_data\.root",
        ),
        (
            lambda root: TinyImageNet(str(root / "tiny"), "val", ["n10", "n11"], None, None),
            r"which has no n11 \(1 of 2 missing\)",
        ),
    ],
)
def test_bad_images_are_one_line(component: Any, message: str, tmp_path: Path) -> None:
    image_folder(tmp_path)
    tiny_imagenet(tmp_path / "tiny")
    (tmp_path / "empty" / "a").mkdir(parents=True)
    for name in ("single/a/x.JPEG", "single/a/y.JPEG"):
        save(tmp_path / name, flat((9, 9, 9)))
    (tmp_path / "single" / "b").mkdir()
    for name in ("broken/a/x.JPEG", "broken/b/x.JPEG"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"GIF of a cat")
    with pytest.raises(UserError, match=message) as error:
        component(tmp_path).reserve(clients(), 0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("channels", "what"), [(2, "2 channels"), (None, "vectors of features")])
def test_clients_without_such_images_are_refused(channels: int | None, what: str, tmp_path: Path) -> None:
    data = clients(channels or 1)
    if channels is None:
        train = data.train._replace(inputs=torch.zeros(40, 6))
        data = Data(train, train, data.class_names, None, None)
    for component in (
        ServerImageFolder(str(image_folder(tmp_path)), "mine", None, None, None),
        OtherDataset(None, "train", None),
    ):
        with pytest.raises(UserError, match=rf"server_data: .*has .*{what}"):
            component.reserve(data, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ServerImageFolder("r", "mine", None, 1, None), "max_images must be >= 2, got 1"),
        (lambda: ServerImageFolder("r", "mine", ["a"], None, None), "classes must be null or two"),
        (lambda: TinyImageNet("r", "test", None, None, None), "split must be one of train, val, got test"),
        (lambda: TinyImageNet("r", "val", ["a", "a"], None, None), "classes must be null or two"),
        (lambda: OtherDataset(None, "val", None), "part must be one of train, test, got val"),
    ],
)
def test_bad_fields_name_themselves(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


# Through the entry: one line before anything is trained or written.


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm=feddle", "server_data=none"],
            r"^algorithm=feddle needs examples on the server: add server_data=in_domain \(",
        ),
        (
            ["algorithm=feddf", "server_data=none"],
            r"^algorithm=feddf needs examples on the server: add server_data=in_domain \(",
        ),
        (
            ["algorithm=fedft", "server_data=none"],
            r"^algorithm=fedft needs examples on the server: add server_data=in_domain$",
        ),
        (
            ["algorithm=hfcl", "server_data=none"],
            r"^algorithm=hfcl needs examples on the server: add server_data=in_domain$",
        ),
        (
            ["algorithm=center", "server_data=none"],
            r"^algorithm=center needs examples on the server: add server_data=in_domain$",
        ),
        (
            ["algorithm=fedlaw", "server_data=none"],
            r"^algorithm=fedlaw needs examples on the server: add server_data=in_domain$",
        ),
        (
            ["algorithm=fedbe", "server_data=none"],
            r"^algorithm=fedbe needs examples on the server: add server_data=in_domain \(",
        ),
        (
            ["server_data=in_domain", "server_data.size=1000"],
            r"^server_data\.size must leave some of the test set's 359 examples, got 1000$",
        ),
        (["server_data=in_domain", "server_data.size=0"], r"^server_data\.size must be >= 1, got 0$"),
        (
            ["server_data=in_domain", "server_data.fraction=1"],
            r"^server_data\.fraction must be in \(0, 1\), got 1\.0$",
        ),
        (["algorithm=feddle", "algorithm.atlas_size=0"], r"^algorithm\.atlas_size must be >= 1, got 0$"),
        (["server_data=tiny_imagenet", "server_data.root=/nowhere"], r"^/nowhere/tiny-imagenet-200/wnids\.txt cannot"),
        (["server_data=image_folder"], r"^server_data\.root is missing"),
        *(
            (
                ["server_data=torchvision", "dataset@server_data.dataset=digits", *limits],
                r"^server_data: \d+ of \d+ compared examples are training or test examples of the clients",
            )
            for limits in (
                ["server_data.part=test", "server_data.max_images=20"],
                ["server_data.part=train", "train_fraction=0.2", "model.image_size=6", "model=cnn_small"],
            )
        ),
        (
            ["algorithm=fedft", "server_data=torchvision", "dataset@server_data.dataset=synthetic"],
            r"^algorithm=fedft trains on the clients' own classes: use server_data=in_domain$",
        ),
        (
            ["server_data=torchvision", "dataset@server_data.dataset=synthetic", "server_data.dataset.features=5"],
            r"^server_data\.dataset must have images that can take the clients' form, 1 x 8 x 8, but channels must be",
        ),
        (
            ["server_data=torchvision", "dataset@server_data.dataset=digits", "server_data.dataset.test_fraction=1e-9"],
            r"^server_data\.dataset\.test_fraction must leave",
        ),
        (
            ["server_data=torchvision", "server_data.dataset.root=/nowhere"],
            r"^server_data: /nowhere/cifar-10-batches-py/",
        ),
        (
            [
                "dataset=synthetic",
                "dataset.features=6",
                "server_data=torchvision",
                "dataset@server_data.dataset=digits",
            ],
            r"^server_data: .*vectors of features",
        ),
    ],
)
def test_what_is_wrong_is_one_line_before_training(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        run_in(tmp_path, composed(*overrides))
    assert "\n" not in str(error.value) and not (tmp_path / "metrics.jsonl").exists()


def test_the_clients_folder_on_the_server_is_one_line_before_training(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images")
    for i, path in enumerate(sorted(root.rglob("*.JPEG"))):
        save(path, np.random.default_rng(i).integers(0, 256, (40, 60, 3), np.uint8))
    mine = ["dataset=image_folder", f"dataset.root={root}", "dataset.cache=null"]
    server = ["algorithm=feddf", "server_data=image_folder", f"server_data.root={root}", "model=cnn_small"]
    with pytest.raises(UserError, match=r"^server_data: 15 of 15 compared examples are training or test examples"):
        run_in(tmp_path / "run", composed(*mine, *server))


@pytest.mark.parametrize("algorithm", ["feddle", "feddf"])
def test_out_of_domain_data_of_another_set_run(algorithm: str, tmp_path: Path) -> None:
    overrides = ["server_data=torchvision", "dataset@server_data.dataset=synthetic", "server_data.max_images=50"]
    model = ["model=cnn_small", "rounds=2", "algorithm.epochs=1"]
    assert 0 <= run_in(tmp_path, composed(f"algorithm={algorithm}", *overrides, *model)) <= 1


# Minibatches and training.


def test_batches_cover_the_data_once_an_epoch_in_another_order() -> None:
    fed = federation(server=server_data(20))
    assert fed.server_data is not None
    batches = list(server_batches(fed, 2, 8))
    assert [len(b.mask) for b in batches] == [8, 8, 4, 8, 8, 4] and all(bool(b.mask.all()) for b in batches)
    epochs = [torch.cat([b.inputs for b in part]) for part in (batches[:3], batches[3:])]
    for epoch in epochs:
        assert sorted(epoch.tolist()) == sorted(fed.server_data.inputs.tolist())
    assert not torch.equal(*epochs)


def test_batches_are_a_function_of_seed_round_and_stage() -> None:
    def first(seed: int, round: int, stage: int) -> torch.Tensor:
        fed = federation(seed=seed)
        fed.begin(round, 1.0)
        return next(iter(server_batches(fed, 1, 64, stage=stage))).inputs

    base = first(0, 0, 0)
    assert torch.equal(base, first(0, 0, 0))
    assert not any(torch.equal(base, first(*key)) for key in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))


@pytest.mark.parametrize(
    ("n", "epochs", "cap"), [(20, 3, None), (20, 3, 4), (17, 2, None), (1, 2, None), (20, 0, None)]
)
@pytest.mark.parametrize("norm", [False, True])
def test_steps_are_counted_as_they_come(n: int, epochs: int, cap: int | None, norm: bool) -> None:
    fed = federation(server=server_data(n), **({"build": normed} if norm else {}))
    batches = list(server_batches(fed, epochs, 8, cap))
    assert len(batches) == server_steps(fed, epochs, 8, cap) <= (99 if cap is None else cap)
    if norm and n == 17:
        assert [len(b.mask) for b in batches] == [8, 8] * 2, "batch norm cannot be trained with a single example"
        assert len(list(server_batches(fed, 1, 8, training=False))) == 3


@pytest.mark.parametrize("norm", [False, True])
def test_training_is_that_of_torch(norm: bool) -> None:
    fed = federation(server=server_data(21), **({"build": normed} if norm else {}))
    x = fed.family.init(0)
    trained = train_on_server(fed, x, server_batches(fed, 3, 8), 0.01)
    module = model_family(normed if norm else mlp).module
    module.load_state_dict(fed.family.state_dict(x), strict=False)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    module.train()
    for batch in server_batches(fed, 3, 8):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(batch.inputs), batch.targets).backward()
        optimizer.step()
    # the bias before batch norm has a gradient of rounding errors only, and Adam makes steps of them
    torch.testing.assert_close(trained.model, fed.family.vector(module), rtol=0, atol=1e-8 if norm else 1e-12)


def test_training_goes_on_where_it_stopped() -> None:
    fed = federation(server=server_data(24))
    x, batches = fed.family.init(0), list(server_batches(fed, 2, 8))
    whole = train_on_server(fed, x, batches, 0.01)
    half = train_on_server(fed, x, batches[:4], 0.01)
    rest = train_on_server(fed, half.model, batches[4:], 0.01, slots=half.slots, first_step=4)
    assert torch.equal(rest.model, whole.model)


def test_the_server_as_a_client_trains_as_clients_do() -> None:
    """SGD with momentum on the server's examples, written out."""
    training = local(momentum=0.5, epochs=3, batch_size=30)
    fed = federation(server=server_data(30), training=training)
    fed.begin(2, 0.5)
    x = fed.family.init(0)
    module = fed.family.module
    y = train_as_client(fed, x)
    module.load_state_dict(fed.family.state_dict(x))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5)
    assert fed.server_data is not None
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(fed.server_data.inputs), fed.server_data.targets).backward()
        optimizer.step()
    torch.testing.assert_close(y, fed.family.vector(module), rtol=0, atol=1e-12)


def test_server_work_is_counted() -> None:
    """The toy's matrices have 5 x 6 + 6 x 3 entries; the first layer needs no gradient of its inputs."""
    fed = federation(server=server_data(21))
    fed.begin(0, 1.0)
    x = fed.family.init(0)
    counted = fed.family.flops(next(iter(server_batches(fed, 1, 8))).inputs)
    assert counted == (2 * 48, 2 * 48 + 2 * 48 + 2 * 18)
    train_on_server(fed, x, server_batches(fed, 2, 8), 0.01)
    assert fed.collect()["cost/server_gflops"] == pytest.approx(42 * counted.step / 1e9)
    before = fed.collect()["cost/server_gflops"]
    train_as_client(fed, x)
    assert fed.collect()["cost/server_gflops"] - before == pytest.approx(2 * 21 * counted.step / 1e9)


def test_the_lists_of_fedwalks_leash_tasks() -> None:
    """Two classes for each of CIFAR-10's, of which the medium list shares the first ten; forty for CIFAR-100."""
    lists = {
        name: list(OmegaConf.load(conf_dir() / "server_data" / f"imagenet_{name}.yaml").classes)
        for name in ("lh", "mh", "hh", "cifar100")
    }
    assert {name: len(set(wnids)) for name, wnids in lists.items()} == {"lh": 20, "mh": 20, "hh": 20, "cifar100": 40}
    assert lists["mh"][:10] == lists["lh"][:10] and not set(lists["mh"][10:]) & set(lists["lh"])
    assert all(len(wnid) == 9 and wnid[0] == "n" and wnid[1:].isdigit() for wnids in lists.values() for wnid in wnids)


def test_images_with_one_border_are_not_one_image() -> None:
    """Of a side of 256 pixels, of which every 256th is on the border."""
    rng = torch.Generator().manual_seed(0)

    def bordered(n: int) -> torch.Tensor:
        images = torch.full((n, 1, 256, 256), 255, dtype=torch.uint8)
        images[..., 3:-3, 3:-3] = torch.randint(255, (n, 1, 250, 250), generator=rng, dtype=torch.uint8)
        return images

    def examples(inputs: torch.Tensor) -> Examples:
        labels = torch.arange(len(inputs)) % 2
        return Examples(inputs, labels, labels, None)

    data = Data(examples(bordered(4)), examples(bordered(2)), ("a", "b"), (0.5,), (0.5,))
    mine = bordered(3)

    class Folder(NoServerData):
        def reserve(self, data: Data, seed: int) -> tuple[ServerData | None, Data]:
            return ServerData(mine, torch.tensor([0, 1, 0]), 2, in_domain=False), data

    assert checks.reserved(Folder(), data, data, 0)[0] is not None
    mine = torch.cat([mine, data.train.inputs[:1]])[-3:]
    with pytest.raises(UserError, match=r"^server_data: 1 of 3 compared examples are training or test examples"):
        checks.reserved(Folder(), data, data, 0)


@pytest.mark.parametrize("stored", [(1, 6), (3, 6), (3, 12)])
@pytest.mark.parametrize("model", [(1, 4), (3, 8), (None, 16), (None, None)])
def test_the_clients_files_are_refused_whatever_the_model_converts(
    stored: tuple[int, int], model: tuple[int | None, int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And other files are not. Where the model converts images, a sample is decoded once more."""
    channels, size = stored
    for name, seed in (("mine", 0), ("other", 1)):
        rng = np.random.default_rng(seed)
        for i in range(20):
            save_png(tmp_path / name / f"class{i % 2}" / f"{i}.png", rng.integers(0, 256, (9, 14, 3), np.uint8))
    own = dataset("image_folder", root=str(tmp_path / "mine"), channels=channels, image_size=size, cache=None)
    data = own.load(0)
    fitted = data.fit(*model)
    monkeypatch.setattr(_images, "MAX_SAMPLED", 8)
    source = ServerImageFolder(str(tmp_path / "mine"), "mine", None, None, str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"^server_data: (8 of 8|20 of 20) compared examples are training or test"):
        checks.reserved(source, fitted, data, 0)
    taken, _ = checks.reserved(replace(source, root=str(tmp_path / "other")), fitted, data, 0)
    assert taken is not None and len(taken) == 20 and taken.sample is None
