"""Data.fit: the same images in the size and with the channels that a model wants."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedlab_runner.datasets import examples as examples_module
from fedlab_runner.datasets.examples import Data, Examples


def make(*shape: int, dtype: torch.dtype = torch.uint8) -> Data:
    generator = torch.Generator().manual_seed(0)

    def examples(n: int) -> Examples:
        coarse = torch.randint(0, 256, (n, *shape), generator=generator)
        targets = torch.arange(n) % 2
        return Examples(coarse.to(dtype), targets, targets * 3, torch.arange(n))

    images = len(shape) == 3
    mean, std = ((0.1, 0.2, 0.3)[: shape[0]], (0.4, 0.5, 0.6)[: shape[0]]) if images else (None, None)
    return Data(examples(7), examples(5), ("a", "b"), mean, std)


def pillow(image: Tensor, size: int) -> Tensor:
    channels = [Image.fromarray(channel.numpy()).resize((size, size), Image.Resampling.BILINEAR) for channel in image]
    return torch.stack([torch.from_numpy(np.array(channel)) for channel in channels])


@pytest.mark.parametrize("size", [1, 5, 32, 64])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 16, 24)])
def test_resize_is_pillows(shape, size):
    fitted = make(*shape).fit(None, size)
    for before, after in zip((make(*shape).train, make(*shape).test), (fitted.train, fitted.test), strict=True):
        assert after.inputs.shape == (len(before.inputs), shape[0], size, size) and after.inputs.dtype == torch.uint8
        expected = torch.stack([pillow(image, size) for image in before.inputs])
        assert (after.inputs.int() - expected.int()).abs().max() <= 1
        assert torch.equal(after.targets, before.targets) and torch.equal(after.strata, before.strata)
        assert after.users is not None and torch.equal(after.users, torch.arange(len(before.inputs)))
    assert fitted.mean == make(*shape).mean and fitted.class_names == ("a", "b")


def test_grey_to_three_channels():
    data = make(1, 6, 6)
    fitted = data.fit(3, None)
    assert torch.equal(fitted.train.inputs, data.train.inputs.repeat(1, 3, 1, 1))
    assert (fitted.mean, fitted.std) == ((0.1,) * 3, (0.4,) * 3)
    assert torch.equal(data.fit(3, 12).test.inputs[:, 1], data.fit(None, 12).test.inputs[:, 0])


def test_grey_may_have_the_statistics_of_colour_photographs_where_the_model_reads_three_channels():
    """As a network expects that was pretrained on such photographs; one that reads grey has no use for them."""
    photographs = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    data = replace(make(1, 6, 6), **photographs)
    fitted = data.fit(3, None)
    assert {"mean": fitted.mean, "std": fitted.std} == photographs
    for channels in (1, None):
        with pytest.raises(ValueError, match=r"^channels must be 3, as many as dataset\.mean has values, got"):
            data.fit(channels, 4)


def test_three_channels_to_grey_is_pillows():
    data = make(3, 6, 6)
    fitted = data.fit(1, None)
    for image, grey in zip(data.test.inputs, fitted.test.inputs, strict=True):
        expected = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).convert("L")
        np.testing.assert_array_equal(grey[0], np.array(expected))
    assert fitted.mean == pytest.approx([0.299 * 0.1 + 0.587 * 0.2 + 0.114 * 0.3])
    assert fitted.std == pytest.approx([0.299 * 0.4 + 0.587 * 0.5 + 0.114 * 0.6])


@pytest.mark.parametrize("chunk_bytes", [1, 1000])
def test_chunks_change_nothing(monkeypatch, chunk_bytes):
    whole = make(3, 9, 9).fit(1, 14)
    monkeypatch.setattr(examples_module, "CHUNK_BYTES", chunk_bytes)
    assert torch.equal(make(3, 9, 9).fit(1, 14).train.inputs, whole.train.inputs)


@pytest.mark.parametrize("wants", [(None, None), (1, 8), (1, None), (None, 8)])
def test_what_fits_is_not_copied(wants):
    data = make(1, 8, 8)
    assert data.fit(*wants).train.inputs.data_ptr() == data.train.inputs.data_ptr()


def test_features_pass_through():
    data = make(9, dtype=torch.float32)
    assert data.fit(None, None) is data


@pytest.mark.parametrize(
    ("data", "wants", "message"),
    [
        (make(9, dtype=torch.float32), (3, None), "^channels must be null for feature vectors .* got 3$"),
        (make(9, dtype=torch.float32), (None, 32), "^image_size must be null for feature vectors .* got 32$"),
        (make(1, 8, 8), (2, None), "^channels must be 1 .* got 2$"),
        (make(2, 8, 8), (3, None), "^channels must be 2 .* got 3$"),
        (make(1, 8, 8), (0, None), "^channels must be in .1, 4096., got 0$"),
        (make(1, 8, 8), (None, -3), "^image_size must be in .1, 4096., got -3$"),
    ],
)
def test_impossible(data, wants, message):
    with pytest.raises(ValueError, match=message):
        data.fit(*wants)


@pytest.mark.parametrize(("fraction", "kept"), [(1.0, 7), (0.99, 7), (0.4, 3), (0.01, 1)])
def test_thinned_keeps_a_share_of_the_training_examples(fraction, kept):
    data = make(3, 4, 4)
    fewer = data.thinned(fraction, 5)
    rows = fewer.train.users
    assert rows is not None and len(rows) == kept and torch.equal(rows, rows.unique())
    assert all(torch.equal(a, b[rows]) for a, b in zip(fewer.train[:4], data.train[:4], strict=True))
    assert fewer.test is data.test


def test_a_larger_share_has_the_smaller_one():
    data, seed = make(3, 4, 4), 5
    shares = [data.thinned(k / 7, seed).train.users.tolist() for k in range(1, 8)]
    assert all(set(small) < set(large) for small, large in itertools.pairwise(shares))
    assert any(data.thinned(3 / 7, other).train.users.tolist() != shares[2] for other in range(5))
