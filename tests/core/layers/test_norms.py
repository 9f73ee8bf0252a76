"""Batch norm with PyTorch's own kernels: cuDNN's need addresses that views of a model's vector may not have."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedlab_runner.core.layers.norms import prepare_norms

NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.BatchNorm1d(8), (4, 8)),
    "2d": (lambda: nn.BatchNorm2d(8), (4, 8, 3, 3)),
    "3d": (lambda: nn.BatchNorm3d(8), (4, 8, 2, 3, 3)),
    "no statistics": (lambda: nn.BatchNorm2d(8, track_running_stats=False), (4, 8, 3, 3)),
    "not affine": (lambda: nn.BatchNorm2d(8, affine=False), (4, 8, 3, 3)),
    "forward of its own": (lambda: BatchNormAct2d(8), (4, 8, 3, 3)),
}


class _Seen(TorchDispatchMode):
    """Notes the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _kernels(kind: str, *, prepared: bool, training: bool = True) -> list[str]:
    """The kernels of batch norm that a GPU would run. None is needed: its tensors have no memory."""
    build, shape = NORMS[kind]
    with FakeTensorMode(), torch.device("cuda"), _Seen() as seen:
        norm = build().train(training)
        if prepared:
            prepare_norms(norm, None)
        norm(torch.empty(shape))
    return [name for name in seen.names if "batch_norm" in name]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", NORMS)
def test_batch_norm_does_without_cudnn(kind: str, training: bool) -> None:
    assert _kernels(kind, prepared=True, training=training) == ["native_batch_norm"]
    assert torch.backends.cudnn.enabled, "other layers go on with it"


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this build of torch has no cuDNN to do without")
def test_it_would_go_through_cudnn() -> None:
    assert _kernels("2d", prepared=False) == ["cudnn_batch_norm"]


@pytest.mark.parametrize("kind", NORMS)
def test_its_values_are_pytorchs(kind: str) -> None:
    build, shape = NORMS[kind]
    theirs = build()
    ours = copy.deepcopy(theirs)
    prepare_norms(ours, None)
    for training in (True, False):
        inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        assert torch.equal(ours.train(training)(inputs), theirs.train(training)(inputs))
    expected = {name: value for name, value in theirs.named_buffers() if value.is_floating_point()}
    for name, value in expected.items():
        assert torch.equal(dict(ours.named_buffers())[name], value)


@pytest.mark.parametrize("kind", ["1d", "2d", "3d", "no statistics", "not affine"])
def test_another_number_of_channels_is_refused(kind: str) -> None:
    """Fewer than the layer has: with more, the kernels would read foreign memory."""
    build, shape = NORMS[kind]
    norm = build()
    prepare_norms(norm, None)
    with pytest.raises(ValueError, match=r"^BatchNorm\dd\(8\) got 4 channels$"):
        norm(torch.ones(shape)[:, :4])


def test_an_error_in_a_norm_leaves_cudnn_enabled() -> None:
    norm = BatchNormAct2d(8)
    prepare_norms(norm, None)
    with pytest.raises(AssertionError):
        norm(torch.ones(8))
    assert torch.backends.cudnn.enabled


def test_autocast_raises_an_input_given_by_name() -> None:
    norm, inputs = nn.LayerNorm(4), torch.randn(3, 4).bfloat16()
    prepare_norms(norm, torch.bfloat16)
    found = norm(input=inputs)
    assert found.dtype is torch.bfloat16 and torch.equal(found, norm(inputs))
    assert torch.equal(found, nn.LayerNorm(4)(inputs.float()).bfloat16())
