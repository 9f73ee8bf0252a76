"""Data sets on disk: read as published, refused in one line when missing, damaged or hostile."""

import gzip
import os
import pickle
import shutil
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from omegaconf import OmegaConf

from fedlab_runner.datasets.cifar10 import CIFAR10
from fedlab_runner.datasets.cifar100 import CIFAR100
from fedlab_runner.datasets.cifar100_coarse import CIFAR100Coarse
from fedlab_runner.datasets.examples import Data
from fedlab_runner.datasets.fashion_mnist import FashionMNIST
from fedlab_runner.datasets.mnist import MNIST
from fedlab_runner.utils.errors import UserError
from tests.helpers.paths import ROOT
from tests.helpers.torchvision_files import (
    PARTS,
    expect_cifar,
    expect_mnist,
    idx,
    md5,
    write_cifar,
    write_mnist,
)

CIFARS = [(CIFAR10, "CIFAR10"), (CIFAR100, "CIFAR100"), (CIFAR100Coarse, "CIFAR100")]
MNISTS = [(MNIST, "MNIST"), (FashionMNIST, "FashionMNIST")]


def load(component, root: Path, download: bool = False) -> Data:
    channels = 1 if component in (MNIST, FashionMNIST) else 3
    return component(str(root), download, [0.5] * channels, [0.2] * channels).load(0)


def refusal(component, root: Path, download: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        load(component, root, download)
    message = str(caught.value)
    assert "\n" not in message and "dataset." in message
    assert caught.value.__cause__ is None and (caught.value.__suppress_context__ or caught.value.__context__ is None)
    return message


@pytest.mark.parametrize(("component", "cls"), MNISTS)
@pytest.mark.parametrize("unpacked", [False, True])
def test_mnist_format(component, cls, unpacked, tmp_path, monkeypatch):
    arrays = write_mnist(tmp_path, cls, monkeypatch)
    if unpacked:
        for path in (tmp_path / cls / "raw").glob("*.gz"):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    data = load(component, tmp_path)
    for examples, part in ((data.train, "train"), (data.test, "t10k")):
        assert examples.inputs.dtype == torch.uint8 and examples.targets.dtype == torch.int64
        np.testing.assert_array_equal(examples.inputs.squeeze(1), arrays[f"{part}-images-idx3-ubyte"])
        np.testing.assert_array_equal(examples.targets, arrays[f"{part}-labels-idx1-ubyte"])
        assert examples.inputs.shape == (PARTS[part], 1, 28, 28)
        assert examples.users is None and torch.equal(examples.strata, examples.targets)
    assert len(data.class_names) == 10 and (data.mean, data.std) == ((0.5,), (0.2,))


def test_mnist_reads_what_torchvision_reads(tmp_path, monkeypatch):
    write_mnist(tmp_path, "MNIST", monkeypatch)
    for path in (tmp_path / "MNIST/raw").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    reference = torchvision.datasets.MNIST(tmp_path, train=False)
    test = load(MNIST, tmp_path).test
    assert torch.equal(test.inputs[:, 0], reference.data) and torch.equal(test.targets, reference.targets)


def test_missing_files(tmp_path):
    for component, first, folder in (
        (MNIST, "train-images-idx3-ubyte.gz", "MNIST/raw"),
        (CIFAR10, "data_batch_1", "cifar-10-batches-py"),
        (CIFAR100Coarse, "train", "cifar-100-python"),
    ):
        message = refusal(component, tmp_path)
        assert f"{tmp_path / folder / first} is missing; set dataset.download=true" in message
        assert f"dataset.root (environment FEDLAB_DATA) to a folder with {folder}/" in message


def test_damaged_idx_files(tmp_path, monkeypatch):
    write_mnist(tmp_path, "MNIST", monkeypatch)
    folder = tmp_path / "MNIST/raw"
    images, labels = folder / "train-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz"
    good = images.read_bytes()

    images.write_bytes(good[:-100])
    assert f"{images} is damaged (its md5" in refusal(MNIST, tmp_path)
    for content, reason in (
        (good[:-100], "cannot be read"),  # from here on with the md5 that is asked for
        (b"<html>not found</html>", "cannot be read"),
        (gzip.compress(b"<html>not found</html>"), "is not an idx file of 3 dimensions"),
        (gzip.compress(gzip.decompress(good)[:-1]), "is damaged (23519 bytes for the shape [30, 28, 28])"),
        (gzip.compress(idx(np.zeros((0, 28, 28)))), "is damaged (0 bytes"),
        (gzip.compress(idx(np.zeros((29, 28, 28)))), "has 30 labels for 29 images"),
    ):
        images.write_bytes(content)
        expect_mnist(tmp_path, "MNIST", monkeypatch)
        assert reason in refusal(MNIST, tmp_path)
    images.write_bytes(good)
    labels.write_bytes(gzip.compress(idx(np.full(20, 10))))
    expect_mnist(tmp_path, "MNIST", monkeypatch)
    assert f"{labels} has the label 10 of 10 classes" in refusal(MNIST, tmp_path)

    labels.unlink()
    unpacked = labels.with_suffix("")
    unpacked.write_bytes(idx(np.zeros(20))[:-1])
    assert f"{unpacked} is damaged (19 bytes for the shape [20]): delete it" in refusal(MNIST, tmp_path)


@pytest.mark.parametrize(("component", "cls"), CIFARS)
def test_cifar_format(component, cls, tmp_path, monkeypatch):
    files = write_cifar(tmp_path, cls, monkeypatch)
    source = getattr(torchvision.datasets, cls)
    data = load(component, tmp_path)
    target = {CIFAR10: "labels", CIFAR100: "fine_labels", CIFAR100Coarse: "coarse_labels"}[component]
    stratum = "labels" if component is CIFAR10 else "fine_labels"
    for examples, part in ((data.train, source.train_list), (data.test, source.test_list)):
        batches = [files[name] for name, _ in part]
        assert examples.inputs.dtype == torch.uint8 and examples.users is None
        images = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
        np.testing.assert_array_equal(examples.inputs, images)
        assert examples.targets.tolist() == [label for batch in batches for label in batch[target]]
        assert examples.strata.tolist() == [label for batch in batches for label in batch[stratum]]
    assert list(data.class_names) == files[source.meta["filename"]][target.removesuffix("s") + "_names"]
    if component is not CIFAR100Coarse:
        for train, examples in ((True, data.train), (False, data.test)):
            reference = source(tmp_path, train)
            np.testing.assert_array_equal(examples.inputs.permute(0, 2, 3, 1), reference.data)
            assert examples.targets.tolist() == reference.targets


def test_damaged_cifar_files(tmp_path, monkeypatch):
    write_cifar(tmp_path, "CIFAR100", monkeypatch)
    train, meta = tmp_path / "cifar-100-python/train", tmp_path / "cifar-100-python/meta"
    good = train.read_bytes()
    for path, content in ((train, good[:-1]), (train, b""), (meta, good)):
        before = path.read_bytes()
        path.write_bytes(content)
        assert f"{path} is damaged (its md5" in refusal(CIFAR100, tmp_path)
        path.write_bytes(before)
    train.write_bytes(good[:-1])
    expect_cifar(tmp_path, "CIFAR100", monkeypatch)
    assert f"{train} is not a CIFAR file" in refusal(CIFAR100, tmp_path)


class Runs:
    """Pickles to a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (lambda path: pickle.dumps(Runs(os.mkdir, str(path)), 2), "asks for posix.mkdir"),
        (lambda path: pickle.dumps({"data": Runs(eval, f"__import__('os').mkdir({str(path)!r})")}, 2), "eval"),
        (lambda path: pickle.dumps(Runs(getattr, "text", "format"), 4), "asks for builtins.getattr"),
        (lambda path: b"\x80\x02cnumpy\nsave\n(U\x01xK\x01tR.", "asks for numpy.save"),
        (lambda path: b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93.", "asks for numpy.ndarray.tofile"),
        (
            lambda path: (
                b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(J\xff\xff\xff\x7ftU\x01btR."
            ),
            "way",
        ),
    ],
)
def test_hostile_pickles_run_nothing(hostile, reason, tmp_path, monkeypatch):
    """Even with the right md5."""
    write_cifar(tmp_path, "CIFAR10", monkeypatch)
    path, mark = tmp_path / "cifar-10-batches-py/data_batch_3", tmp_path / "was here"
    path.write_bytes(hostile(mark))
    assert f"{path} is damaged" in refusal(CIFAR10, tmp_path)
    expect_cifar(tmp_path, "CIFAR10", monkeypatch)
    message = refusal(CIFAR10, tmp_path)
    assert f"{path} is not a CIFAR file" in message and reason in message
    assert not mark.exists()


@pytest.fixture
def published(tmp_path, monkeypatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address where this machine serves it."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, directory=str(folder), **keywords)

        def log_message(self, *arguments):
            pass

    folder = tmp_path / "published"
    folder.mkdir()
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter:DeprecationWarning")  # by torchvision
def test_download_of_cifar(published, tmp_path, monkeypatch):
    """What is damaged or missing is replaced, nothing else is left behind, and what is there is not fetched again."""
    folder, address = published
    files = write_cifar(tmp_path, "CIFAR10", monkeypatch)
    source, archive = torchvision.datasets.CIFAR10, folder / "cifar.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / source.base_folder, source.base_folder)
    monkeypatch.setattr(source, "url", f"{address}cifar.tar.gz")
    monkeypatch.setattr(source, "tgz_md5", md5(archive))
    root = tmp_path / "data"
    load(CIFAR10, root, download=True)
    (root / source.base_folder / "data_batch_2").write_bytes(b"damaged")
    assert "data_batch_2 is damaged" in refusal(CIFAR10, root)
    load(CIFAR10, root, download=True)
    assert {path.name for path in (root / source.base_folder).iterdir()} == set(files)
    archive.unlink()
    load(CIFAR10, root, download=True)


def test_download_of_mnist_tries_every_mirror(published, tmp_path, monkeypatch):
    folder, address = published
    write_mnist(folder, "MNIST", monkeypatch)
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"{address}gone/", f"{address}MNIST/raw/"])
    root = tmp_path / "data"
    assert load(MNIST, root, download=True).train.inputs.shape == (30, 1, 28, 28)
    assert len(list((root / "MNIST/raw").iterdir())) == 4


def test_download_of_something_else(published, tmp_path, monkeypatch):
    """A login page in place of the file, say."""
    folder, address = published
    (folder / "cifar.tar.gz").write_text("<html>please log in</html>")
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "url", f"{address}cifar.tar.gz")
    message = refusal(CIFAR10, tmp_path / "data", download=True)
    assert "dataset.download failed for" in message and "corrupted" in message
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("component", "cls"), [CIFARS[0], MNISTS[0]])
def test_failed_download(component, cls, published, tmp_path, monkeypatch):
    source, (_, address) = getattr(torchvision.datasets, cls), published
    monkeypatch.setattr(source, "url", f"{address}gone.tar.gz", raising=False)
    monkeypatch.setattr(source, "mirrors", [address], raising=False)
    message = refusal(component, tmp_path / "data", download=True)
    assert f"dataset.download failed for {tmp_path / 'data'}" in message and "404" in message
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir()
    refusal(component, tmp_path / "data", download=True)
    assert [*tmp_path.glob("data/**")] == [tmp_path / "data"], "what was there before stays"


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "cifar100_coarse"])
def test_real_files(name):
    """Where FEDLAB_DATA (or data/) has the real set: the mean and std in its YAML are those of its training images."""
    cfg = OmegaConf.load(ROOT / f"conf/dataset/{name}.yaml")
    components = {component.__name__: component for component, _ in MNISTS + CIFARS}
    component = components[cfg._target_.rsplit(".", 1)[1]]
    try:
        data = component(cfg.root, False, list(cfg.mean), list(cfg.std)).load(0)
    except UserError as error:
        if "is missing" not in str(error):  # files that are there and refused are a failure
            raise
        pytest.skip(str(error))
    pixels = data.train.inputs.double() / 255
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-4)
    assert data.std == pytest.approx(pixels.std((0, 2, 3)).tolist(), abs=1e-4)
    assert len(data.test.targets) == 10_000
    assert set(data.train.targets.tolist()) == set(range(len(data.class_names)))


def test_home_in_root(tmp_path, monkeypatch):
    write_mnist(tmp_path / "sets", "MNIST", monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load(MNIST, Path("~/sets")).train.targets) == 30
    shutil.rmtree(tmp_path / "sets")
    assert f"{tmp_path}/sets/MNIST/raw/" in refusal(MNIST, Path("~/sets"))
