"""Vision Transformers for small data sets (Lee et al., 2021): shifted patch tokenisation and locality self-attention.
https://arxiv.org/abs/2112.13492
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.models._widths import Axes, Axis, Sliceable
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import at_least, one_of, within

DIAGONAL = ((-1, -1), (-1, 1), (1, -1), (1, 1))  # directions (x, y)
CARDINAL = ((0, -1), (0, 1), (-1, 0), (1, 0))  # directions (x, y)


@dataclass(frozen=True)
class SmallViT(Architecture):
    """`depth` layers of `width` channels on patches of `patch_size` pixels, with `heads` heads of `head_width` and MLPs
    of twice the width.

    Patches come from the image and four shifted copies, with `cardinal` shifts of one pixel or, as in the authors'
    code, `diagonal` shifts of half a patch. Attention has a learnt temperature, and no token attends to itself.
    """

    width: int
    depth: int
    patch_size: int
    heads: int
    head_width: int
    dropout: float
    shifts: str

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(
            1,
            width=self.width,
            depth=self.depth,
            patch_size=self.patch_size,
            heads=self.heads,
            head_width=self.head_width,
        )
        within("[0, 1)", dropout=self.dropout)
        one_of(("cardinal", "diagonal"), shifts=self.shifts)

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        if image_size % self.patch_size:
            raise ValueError(f"image_size must be a multiple of patch_size ({self.patch_size}), got {image_size}")
        step = 1 if self.shifts == "cardinal" else max(1, self.patch_size // 2)
        shifts = [(x * step, y * step) for x, y in (CARDINAL if self.shifts == "cardinal" else DIAGONAL)]
        tokens = _Tokens(channels, image_size, self.patch_size, self.width, shifts, self.dropout)
        layers: dict[str, nn.Module] = {"tokens": tokens}
        dim = Axis("width")
        axes: dict[str, Axes] = {
            "tokens.start": (None, None, dim),
            "tokens.places": (None, None, dim),
            "tokens.norm.weight": (None,),
            "tokens.norm.bias": (None,),
            "tokens.project.weight": (dim, None),
            "tokens.project.bias": (dim,),
        }
        for i in range(1, self.depth + 1):
            name, inside = f"layer{i}", Axis(f"layer{i}")
            layers[name] = _Layer(self.width, self.heads, self.head_width, self.dropout)
            axes |= {f"{name}.{norm}.{part}": (dim,) for norm in ("norm1", "norm2") for part in ("weight", "bias")}
            axes |= {f"{name}.temperature": (), f"{name}.qkv.weight": (None, dim)}
            axes |= {f"{name}.out.weight": (dim, None), f"{name}.out.bias": (dim,)}
            axes |= {f"{name}.up.weight": (inside, dim), f"{name}.up.bias": (inside,)}
            axes |= {f"{name}.down.weight": (dim, inside), f"{name}.down.bias": (dim,)}
        layers |= {"first": _First(), "norm": nn.LayerNorm(self.width), "head": nn.Linear(self.width, num_classes)}
        axes |= {"norm.weight": (dim,), "norm.bias": (dim,), "head.weight": (None, dim), "head.bias": (None,)}
        return Sliceable(layers, axes)


class _Tokens(nn.Module):
    """Turns images [b, c, s, s] into tokens [b, 1 + patches, width]."""

    def __init__(
        self, channels: int, size: int, patch: int, width: int, shifts: list[tuple[int, int]], dropout: float
    ) -> None:
        super().__init__()
        self._shifts, self._patch = shifts, patch
        values = (1 + len(shifts)) * channels * patch**2
        self.norm = nn.LayerNorm(values)
        self.project = nn.Linear(values, width)
        self.start = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        shifted = [F.pad(images, (x, -x, y, -y)) for x, y in self._shifts]  # zeros fill the free side
        patches = F.unfold(torch.cat([images, *shifted], 1), self._patch, stride=self._patch).transpose(1, 2)
        tokens = self.project(self.norm(patches))
        start = self.start.expand(len(tokens), -1, -1)
        out: Tensor = self.dropout(torch.cat([start, tokens], 1) + self.places)
        return out


class _Layer(nn.Module):
    """Locality self-attention and an MLP, each added to its input."""

    def __init__(self, width: int, heads: int, head_width: int, dropout: float) -> None:
        super().__init__()
        inner = heads * head_width
        self._heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.temperature = nn.Parameter(torch.tensor(head_width**-0.5).log())  # of the attention, as a logarithm
        self.qkv = nn.Linear(width, 3 * inner, bias=False)
        self.out = nn.Linear(inner, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(tokens)).unflatten(-1, (3, self._heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * self.temperature.exp()  # [b, heads, tokens, tokens]
        itself = torch.eye(scores.shape[-1], dtype=torch.bool, device=scores.device)
        weights = self.drop(scores.masked_fill(itself, -torch.inf).softmax(-1))
        tokens = tokens + self.drop(self.out((weights @ v).transpose(1, 2).flatten(2)))
        inside = self.drop(F.gelu(self.up(self.norm2(tokens))))
        out: Tensor = tokens + self.drop(self.down(inside))
        return out


class _First(nn.Module):
    """The first token, which stands for the image."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]
