"""The data sets that need no files, the configs of all, and label noise."""

import inspect
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from fedlab_runner.datasets import digits, synthetic
from fedlab_runner.datasets.digits import Digits
from fedlab_runner.datasets.examples import Data, Examples
from fedlab_runner.datasets.label_noise import add_label_noise
from fedlab_runner.utils.errors import UserError
from tests.helpers.paths import ROOT

NAMES = sorted(path.stem for path in (ROOT / "conf/dataset").glob("*.yaml"))
OFFLINE = ["digits", "synthetic"]
OWN = ["csv", "huggingface", "image_folder", "npz"]  # files of the user's, whose mean and std may be left to the run


def dataset_fields(name: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(ROOT / f"conf/dataset/{name}.yaml"))


def dataset(name: str, /, **changes: Any) -> Any:
    fields = dataset_fields(name)
    module, cls = fields.pop("_target_").rsplit(".", 1)
    assert module == f"fedlab_runner.datasets.{name}"
    return getattr(import_module(module), cls)(**{**fields, **changes})


def equal(first: Data, second: Data) -> bool:
    return all(
        torch.equal(first.train[i], second.train[i]) and torch.equal(first.test[i], second.test[i]) for i in (0, 1)
    )


def test_every_module_has_its_yaml():
    others = {"base", "checks", "examples", "image_cache", "label_noise"}
    modules = {path.stem for path in (ROOT / "fedlab_runner/datasets").glob("[!_]*.py")} - others
    assert sorted(modules) == NAMES and len(NAMES) >= 7


@pytest.mark.parametrize("name", NAMES)
def test_yaml_keys_are_the_fields(name, monkeypatch):
    monkeypatch.setenv("FEDLAB_DATA", "/somewhere")
    fields = OmegaConf.load(ROOT / f"conf/dataset/{name}.yaml")
    for key in [key for key in fields if OmegaConf.is_missing(fields, key)]:
        fields[key] = "/somewhere"
    component = OmegaConf.to_container(fields, resolve=True)
    cls = type(dataset(name))
    parameters = inspect.signature(cls).parameters
    assert list(component)[1:] == list(parameters)
    assert all(parameter.default is parameter.empty for parameter in parameters.values())
    if "root" in component:
        assert component["root"] == "/somewhere" and component.get("download", False) is False


@pytest.mark.parametrize("name", [name for name in NAMES if "mean" in dataset_fields(name) and name not in OWN])
def test_a_mean_and_std_for_each_channel(name):
    channels = len(dataset(name).mean)
    wanted = {1: "1 or 3", 3: "3"}[channels]
    for field in ("mean", "std"):
        with pytest.raises(ValueError, match=rf"^{field} must have one value for each channel \({wanted}\), got"):
            dataset(name, **{field: [0.5] * 2})
    if channels == 1:
        assert list(dataset(name, mean=[0.5] * 3, std=[0.5] * 3).mean) == [0.5] * 3
        with pytest.raises(ValueError, match=r"^std must have as many values as mean \(3\), got"):
            dataset(name, mean=[0.5] * 3)
    with pytest.raises(ValueError, match=r"^std must be finite and > 0, got"):
        dataset(name, std=[0.0] * channels)


@pytest.mark.parametrize("name", [name for name in OWN if name != "csv"])
def test_a_mean_comes_with_a_std(name):
    assert dataset(name, mean=[0.5] * 3, std=[0.2] * 3).mean == [0.5] * 3
    with pytest.raises(ValueError, match=r"^std must be null where mean is null, and only there, got None"):
        dataset(name, mean=[0.5] * 3)
    with pytest.raises(ValueError, match=r"^mean must have one value for each channel \(.*3.*\), got"):
        dataset(name, mean=[0.5] * 2, std=[0.2] * 2)


@pytest.mark.parametrize("name", [name for name in NAMES if "root" in dataset_fields(name) and name not in OWN])
def test_a_missing_file_says_where_to_get_it(name, tmp_path):
    with pytest.raises(UserError, match=r"(is|are) missing|hold no") as refused:
        dataset(name, root=str(tmp_path)).load(0)
    assert "https://" in str(refused.value) or "dataset.download=true" in str(refused.value)


@pytest.mark.parametrize("name", OFFLINE)
def test_in_memory_sets(name):
    data, same, other = (dataset(name).load(seed) for seed in (3, 3, 4))
    assert equal(data, same) and not equal(data, other)
    for examples in (data.train, data.test):
        n = len(examples.targets)
        assert examples.inputs.shape == (n, 1, 8, 8) and examples.inputs.dtype == torch.uint8
        assert examples.targets.dtype == torch.int64 and torch.equal(examples.strata, examples.targets)
        assert set(examples.targets.tolist()) == set(range(len(data.class_names)))
        assert examples.users is None
    pixels = data.train.inputs.double() / 255
    assert data.mean == pytest.approx([pixels.mean().item()], abs=2e-3)
    assert data.std == pytest.approx([pixels.std().item()], abs=2e-3)


def test_digits_are_those_of_scikit_learn():
    pixels, labels = import_module("sklearn.datasets").load_digits(return_X_y=True)
    with np.load(Path(digits.__file__).with_name("digits.npz"), allow_pickle=False) as arrays:
        assert np.array_equal(arrays["pixels"], pixels) and np.array_equal(arrays["labels"], labels)


def test_digits():
    """1,797 digits of 17 grey levels; the test set has a fifth of each class and shares no example with training."""
    data = dataset("digits").load(0)
    total = torch.cat([data.train.targets, data.test.targets]).bincount()
    assert total.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert data.test.targets.bincount().tolist() == [round(0.2 * n) for n in total.tolist()]
    images = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)
    assert sorted(images.unique().tolist()) == [round(level * 255 / 16) for level in range(17)]
    assert len(images.unique(dim=0)) == len(images)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_digits_needs_both_parts(fraction):
    with pytest.raises(ValueError, match=f"^test_fraction must be in \\(0, 1\\), got {fraction}$"):
        Digits(fraction, [0.3], [0.4])


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_a_fraction_that_leaves_a_set_empty_is_refused(fraction):
    with pytest.raises(ValueError, match=f"^test_fraction must leave examples .*, got {fraction} of 1797 examples$"):
        Digits(fraction, [0.3], [0.4]).load(0)


@pytest.mark.parametrize("changes", [{}, {"channels": 3, "image_size": 11}, {"features": 20}, {"num_users": 7}])
def test_synthetic_is_learnable(changes, monkeypatch):
    """The nearest class mean of the training set classifies the test set. Both are made in several chunks."""
    monkeypatch.setattr(synthetic, "CHUNK_VALUES", 10_000)
    data = dataset("synthetic", **changes).load(0)
    train, test = data.train.inputs.flatten(1).float(), data.test.inputs.flatten(1).float()
    means = torch.stack([train[data.train.targets == c].mean(0) for c in range(10)])
    for inputs, targets in ((test, data.test.targets), (train, data.train.targets)):
        assert (torch.cdist(inputs, means).argmin(1) == targets).float().mean() > 0.95
    assert data.train.targets.bincount().tolist() == [200] * 10
    if "features" in changes:
        assert data.train.inputs.dtype == torch.float32 and data.mean is None and data.std is None
    else:
        assert data.train.inputs.shape[1:] == (changes.get("channels", 1), *[changes.get("image_size", 8)] * 2)
    if "num_users" in changes:
        assert data.train.users is not None and set(data.train.users.tolist()) == set(range(7))


@pytest.mark.parametrize("features", [None, 30])
def test_synthetic_noise(features):
    """No noise: every example is its class's prototype; else the standard deviation is as asked."""
    clean = dataset("synthetic", noise=0.0, features=features).load(0).train
    assert len(clean.inputs.unique(dim=0)) == 10
    cells = clean.inputs.view(-1, 4, 2, 4, 2) if features is None else clean.inputs.view(-1, 30, 1, 1, 1)
    assert torch.equal(cells.amax((2, 4)), cells.amin((2, 4))), "coarse images"
    noisy = dataset("synthetic", noise=0.2, num_train=20_000, features=features).load(0).train
    scale = 255 if features is None else 1
    spread = torch.stack([noisy.inputs[noisy.targets == c].double().std(0) for c in range(10)]) / scale
    assert spread.max() == pytest.approx(0.2, abs=0.01)  # the pixels that are not clipped


def test_synthetic_is_quick():
    start = time.perf_counter()
    data = dataset("synthetic", num_train=200_000, num_test=1, image_size=28).load(0)
    assert len(data.train.inputs) == 200_000 and time.perf_counter() - start < 20


@pytest.mark.parametrize(
    ("field", "value"), [("num_classes", 0), ("num_train", 0), ("features", 0), ("noise", -0.1), ("noise", 0.6)]
)
def test_synthetic_fields_out_of_range(field, value):
    with pytest.raises(ValueError, match=f"^{field} must be .* got {value}$"):
        dataset("synthetic", **{field: value})


def noise_case(n: int) -> Examples:
    targets = torch.arange(n) % 20
    return Examples(torch.zeros(n, 1), targets, torch.arange(n) % 100, None)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.2, 0.5, 1.0])
def test_label_noise(rate):
    """Exactly round(rate * n) labels are drawn again over all classes, so one in 20 of them hits the true one."""
    clean, n = noise_case(40_001), 40_001
    noisy = add_label_noise(clean, rate, 20, seed=5)
    changed = (noisy.targets != clean.targets).sum().item()
    assert torch.equal(noisy.strata, clean.strata) and torch.equal(clean.targets, torch.arange(n) % 20)
    assert changed <= round(rate * n)
    assert changed == pytest.approx(0.95 * round(rate * n), abs=5 * np.sqrt(0.05 * 0.95 * n * rate) + 1e-9)
    assert torch.equal(noisy.targets, add_label_noise(clean, rate, 20, seed=5).targets)
    if rate:
        assert not torch.equal(noisy.targets, add_label_noise(clean, rate, 20, seed=6).targets)


def test_label_noise_counts_exactly():
    """With labels that no draw can hit, what changed is what was chosen."""
    clean = noise_case(1003)._replace(targets=torch.full((1003,), -1))
    assert [(add_label_noise(clean, rate, 4, 0).targets != -1).sum() for rate in (0.1, 0.2, 1.0)] == [100, 201, 1003]
    assert add_label_noise(clean, 1.0, 4, 0).targets.bincount().min() > 200


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_label_noise_out_of_range(rate):
    with pytest.raises(ValueError, match=f"^label_noise must be in \\[0, 1\\], got {rate}$"):
        add_label_noise(noise_case(10), rate, 20, 0)
