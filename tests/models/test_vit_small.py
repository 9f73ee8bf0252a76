"""The small ViT: shifted patches and attention without the token itself."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.models.vit_small import SmallViT


def test_shifted_patches_are_the_image_and_its_four_shifts() -> None:
    """Lee et al., Eq 2: tokens see the image and copies moved by half a patch, zeros where nothing moved in."""
    for shifts, steps in (
        ("cardinal", ((0, 1), (0, -1), (1, 0), (-1, 0))),
        ("diagonal", ((2, 2), (2, -2), (-2, 2), (-2, -2))),
    ):
        tokens: Any = SmallViT(None, None, 6, 1, 4, 1, 3, 0.0, shifts).build(1, 8, 3)[0]
        seen: list[Tensor] = []
        tokens.norm.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0]))
        image = torch.arange(1.0, 65).view(1, 1, 8, 8)
        tokens(image)
        whole = nn.functional.fold(seen[0].transpose(1, 2), 8, 4, stride=4)[0]  # [5, 8, 8]
        assert torch.equal(whole[0], image[0, 0])
        for dy, dx in steps:
            moved = torch.zeros(8, 8)
            moved[max(dy, 0) : 8 + min(dy, 0), max(dx, 0) : 8 + min(dx, 0)] = image[
                0, 0, max(-dy, 0) : 8 - max(dy, 0), max(-dx, 0) : 8 - max(dx, 0)
            ]
            assert any(torch.equal(copy, moved) for copy in whole[1:]), (shifts, dy, dx)


def test_no_token_attends_to_itself() -> None:
    """With two tokens each sees only the other, whatever the temperature."""
    layer: Any = SmallViT(None, None, 6, 1, 4, 2, 3, 0.0, "cardinal").build(1, 4, 3)[1]
    tokens = torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(0))
    values = layer.qkv(layer.norm1(tokens))[..., 12:]
    mixed_in = tokens + layer.out(values.flip(1))
    expected = mixed_in + layer.down(nn.functional.gelu(layer.up(layer.norm2(mixed_in))))
    torch.testing.assert_close(layer(tokens), expected)
    assert layer.temperature.exp().item() == pytest.approx(3**-0.5)
