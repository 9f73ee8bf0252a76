"""precision=bfloat16: whatever layers a model has, all executors train it, and to the same model but for rounding."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.core.work import Work
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers.toy import CPU, local
from tests.models.test_models import MODELS, every_small_model

CLIENTS, EXAMPLES, CLASSES = 2, 3, 5


def norms(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A network around a layer that normalises what a convolution gives it, [b, 4, 6, 6], and gives as much back."""

    def build() -> nn.Module:
        ends = nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES)
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), norm(), nn.ReLU(), *ends)

    return build


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(4),
    "batch without values": lambda: nn.BatchNorm2d(4, affine=False),
    "batch without statistics": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "instance without statistics": lambda: nn.InstanceNorm2d(4, affine=True),
    "layer": lambda: nn.LayerNorm([6, 6]),
    "group": lambda: nn.GroupNorm(2, 4),
    "batch with an activation": lambda: BatchNormAct2d(4),  # calls the function, not the layer's own forward
}


def trained(
    build: Callable[[], nn.Module], shape: tuple[int, ...], executor: Executor, autocast: torch.dtype | None
) -> Tensor:
    """How a step of each client changes its parameters, [K, P]."""
    family = ModelFamily(build, CLASSES, normalize=Normalize(None, None), device=CPU, autocast=autocast)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(CLIENTS * EXAMPLES, *shape, generator=generator)
    targets = torch.randint(CLASSES, (len(inputs),), generator=generator)
    client_data = ClientData(inputs, targets, np.split(np.arange(len(inputs)), CLIENTS), CPU)
    training, start = local(lr=1e-3, epochs=None, steps=1, batch_size=EXAMPLES), family.init(0)
    work = Work(family, client_data, np.arange(CLIENTS), np.ones(CLIENTS, np.int64), training, 1e-3, 0, 0, start)
    return (executor.train(work)[0] - start)[:, : family.num_params]


def distance(one: Tensor, other: Tensor) -> float:
    return float((torch.linalg.vector_norm(one - other, dim=1) / torch.linalg.vector_norm(other, dim=1)).max())


def assert_executors_agree(build: Callable[[], nn.Module], shape: tuple[int, ...], *others: Executor) -> None:
    exact = trained(build, shape, Loop(compile=False), None)
    rounded = trained(build, shape, Loop(compile=False), torch.bfloat16)
    noise = distance(rounded, exact)
    assert 0 < noise < 0.5, "nothing is rounded, or all is noise"
    for other in others:
        assert distance(trained(build, shape, other, torch.bfloat16), rounded) < max(2 * noise, 0.1)


@every_small_model
def test_every_model(name: str) -> None:
    model, (channels, size) = MODELS[name]
    build = lambda: model.build(channels, size, CLASSES)  # noqa: E731
    assert_executors_agree(build, (channels, size, size), Vectorized(chunk_size=None, compile=False))


@pytest.mark.parametrize("norm", LAYERS)
def test_every_norm(norm: str) -> None:
    others = Vectorized(None, compile=False), Vectorized(2, compile=False), Processes(2, Vectorized(2, compile=False))
    assert_executors_agree(norms(LAYERS[norm]), (2, 6, 6), *others)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
@pytest.mark.parametrize("norm", ["batch", "layer", "batch with an activation"])
def test_norms_in_compiled_steps(norm: str) -> None:
    others = Vectorized(None, compile=True), Loop(compile=True)
    assert_executors_agree(norms(LAYERS[norm]), (2, 6, 6), *others)


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_a_norm_gives_as_many_digits_as_it_is_given(given: torch.dtype) -> None:
    family = ModelFamily(
        lambda: nn.BatchNorm1d(3), 3, normalize=Normalize(None, None), device=CPU, autocast=torch.bfloat16
    )
    assert family.module(torch.randn(4, 3, dtype=given)).dtype == given


class _Conversions(TorchDispatchMode):
    """Counts the tensors of each shape that are converted."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.shapes[tuple(args[0].shape)] += 1
        return func(*args, **(kwargs or {}))


def test_an_evaluation_lowers_the_weights_once() -> None:
    build = lambda: nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, CLASSES))  # noqa: E731
    family = ModelFamily(build, CLASSES, normalize=Normalize(None, None), device=CPU, autocast=torch.bfloat16)
    w, batches = family.init(0), torch.randn(3, 2, 7).unbind()
    with _Conversions() as conversions, family.predicting(w) as predict:
        together = [predict(batch) for batch in batches]
    assert conversions.shapes[4, 7] == conversions.shapes[CLASSES, 4] == 1
    assert all(torch.equal(mine, family.predict(w, batch)) for mine, batch in zip(together, batches, strict=True))
