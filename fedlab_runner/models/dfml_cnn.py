"""The CNN of DFML (Khalil et al., TMLR 2024, appendix A.2) with any number of layers of any widths."""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models._widths import Axes, Axis, Sliceable
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import each_at_least


@dataclass(frozen=True)
class DFMLCNN(Architecture):
    """For each width a 5x5 convolution, ReLU, 2x2 max pooling and layer normalisation; then the classifier.

    Convolutions have a padding of 2, without which four layers would not fit 32 pixels. The norm is GroupNorm(1,
    width), whose weights belong to channels, so that the network can be cut to other widths.
    """

    widths: list[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        each_at_least(1, widths=self.widths)

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        side = image_size >> len(self.widths)
        if not side:
            raise ValueError(
                f"image_size must be >= {2 ** len(self.widths)} for {len(self.widths)} layers, got {image_size}"
            )
        layers: dict[str, nn.Module] = {}
        axes: dict[str, Axes] = {}
        before, width_before = None, channels
        for i, width in enumerate(self.widths, start=1):
            layers[f"conv{i}"] = nn.Conv2d(width_before, width, 5, padding=2)
            layers |= {
                f"relu{i}": nn.ReLU(inplace=True),
                f"pool{i}": nn.MaxPool2d(2),
                f"norm{i}": nn.GroupNorm(1, width),
            }
            axis = Axis(f"conv{i}")
            axes[f"conv{i}.weight"] = (axis, before, None, None)
            axes |= {name: (axis,) for name in (f"conv{i}.bias", f"norm{i}.weight", f"norm{i}.bias")}
            before, width_before = axis, width
        layers |= {"flatten": nn.Flatten(), "head": nn.Linear(width_before * side**2, num_classes)}
        axes["head.weight"] = (None, Axis(f"conv{len(self.widths)}", side**2))
        axes["head.bias"] = (None,)
        return Sliceable(layers, axes)
