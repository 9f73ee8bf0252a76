"""Operations are counted as PyTorch counts them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.flop_counter import FlopCounterMode

from fedlab_runner.core.flops import FlopCounter


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x.flatten(2).transpose(1, 2)[..., :8]).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(8 * 6 * 6, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)),
    "convolutions": lambda: nn.Sequential(nn.Conv2d(8, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)),
    "transposed": lambda: nn.ConvTranspose2d(8, 2, 3),
    "attention": Attention,
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_what_pytorch_counts(name: str) -> None:
    model, x = MODELS[name](), torch.rand(5, 8, 6, 6)
    with FlopCounterMode(display=False) as theirs:
        model(x).sum().backward()
    with FlopCounter() as mine:
        model(x).sum().backward()
    assert mine.total == theirs.get_total_flops() > 0
    with torch.inference_mode(), FlopCounterMode(display=False) as theirs:
        model(x)
    with torch.inference_mode(), FlopCounter() as mine:
        model(x)
    assert mine.total == theirs.get_total_flops() > 0


def test_models_side_by_side_count_each() -> None:
    w, x = torch.rand(3, 4, 5), torch.rand(3, 2, 4)
    with FlopCounter() as counter:
        vmap(torch.matmul)(x, w)
    assert counter.total == 3 * 2 * 2 * 4 * 5


def test_a_grouped_convolutions_weights_are_counted_once() -> None:
    x = torch.rand(2, 4, 6, 6)
    grouped, plain = nn.Conv2d(4, 4, 3, groups=2), [nn.Conv2d(2, 2, 3) for _ in range(2)]
    counted = []
    for forward in (
        lambda: grouped(x),
        lambda: torch.cat([m(p) for m, p in zip(plain, x.chunk(2, 1), strict=True)], 1),
    ):
        with FlopCounter() as counter:
            forward().sum().backward()
        counted.append(counter.total)
    assert counted[0] == counted[1] > 0
