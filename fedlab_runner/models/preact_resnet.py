"""Pre-activation ResNets (He et al., ECCV 2016) of any widths, which HeteroFL and DFML cut. https://arxiv.org/abs/1603.05027"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.models._widths import Axes, Axis, Sliceable
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import each_at_least


@dataclass(frozen=True)
class PreActResNet(Architecture):
    """A 3x3 convolution, a stage of two blocks for each width, batch norm, ReLU, average pooling and the classifier.
    With the default widths it is ResNet-18. All stages except the first start with stride 2.

    A block is batch norm, ReLU and a 3x3 convolution, twice. If the shape changes, its shortcut is a 1x1 convolution of
    the activated input.
    """

    widths: list[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        each_at_least(1, widths=self.widths)

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        layers: dict[str, nn.Module] = {"stem": nn.Conv2d(channels, self.widths[0], 3, padding=1, bias=False)}
        before, width_before = Axis("stage1"), self.widths[0]
        axes: dict[str, Axes] = {"stem.weight": (before, None, None, None)}
        for stage, width in enumerate(self.widths, start=1):
            for number in (1, 2):
                name = f"stage{stage}_block{number}"
                block = _Block(width_before, width, 2 if stage > 1 and number == 1 else 1)
                layers[name] = block
                after, inside = Axis(f"stage{stage}"), Axis(name)
                axes |= _norm_axes(f"{name}.norm1", before) | _norm_axes(f"{name}.norm2", inside)
                axes[f"{name}.conv1.weight"] = (inside, before, None, None)
                axes[f"{name}.conv2.weight"] = (after, inside, None, None)
                if block.shortcut is not None:
                    axes[f"{name}.shortcut.weight"] = (after, before, None, None)
                before, width_before = after, width
        layers |= {"norm": nn.BatchNorm2d(width_before), "relu": nn.ReLU(inplace=True)}
        layers |= {
            "pool": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "head": nn.Linear(width_before, num_classes),
        }
        axes |= _norm_axes("norm", before) | {"head.weight": (None, before), "head.bias": (None,)}
        return Sliceable(layers, axes)


def _norm_axes(name: str, axis: Axis) -> dict[str, Axes]:
    return {f"{name}.{part}": (axis,) for part in ("weight", "bias", "running_mean", "running_var")}


class _Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        same = stride == 1 and before == width
        self.shortcut = None if same else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        active = F.relu(self.norm1(inputs), inplace=True)
        past: Tensor = inputs if self.shortcut is None else self.shortcut(active)
        out: Tensor = past + self.conv2(F.relu(self.norm2(self.conv1(active)), inplace=True))
        return out
