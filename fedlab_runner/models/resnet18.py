"""ResNet-18 (He et al., CVPR 2016) for small images. https://arxiv.org/abs/1512.03385"""

from dataclasses import dataclass
from functools import partial

from torch import nn

from fedlab_runner.models._torch import for_vmap
from fedlab_runner.models.base import Architecture
from fedlab_runner.utils.validate import one_of


@dataclass(frozen=True)
class ResNet18(Architecture):
    """torchvision's ResNet-18 with the usual stem for CIFAR: one 3x3 convolution of stride 1 and no pooling.

    `norm` is `batch`, or `group` with 32 groups, for clients with small or skewed batches (Hsieh et al., ICML 2020).
    With either it has 11,173,962 parameters for colour images and 10 classes, 11,220,132 for 100 classes.
    """

    norm: str

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(("batch", "group"), norm=self.norm)

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        from torchvision.models import resnet18

        norm = nn.BatchNorm2d if self.norm == "batch" else partial(nn.GroupNorm, 32)
        model = resnet18(num_classes=num_classes, norm_layer=norm)
        model.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")  # as the other convolutions
        model.maxpool = nn.Identity()
        return for_vmap(model)
