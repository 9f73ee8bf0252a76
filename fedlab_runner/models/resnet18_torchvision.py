"""ResNet-18 (He et al., CVPR 2016) of torchvision, for images as large as ImageNet's. https://arxiv.org/abs/1512.03385"""

from dataclasses import dataclass

from torch import nn

from fedlab_runner.models._torch import for_vmap, load_weights
from fedlab_runner.models.base import Architecture

# Where to get weights, for messages.
HINT = "torchvision's own is https://download.pytorch.org/models/resnet18-f37072fd.pth"


@dataclass(frozen=True)
class TorchvisionResNet18(Architecture):
    """torchvision's ResNet-18, from scratch or from a local state dict file. It has 11,176,512 + 513 C parameters.

    `weights` is a path such as resnet18-f37072fd.pth (the run downloads nothing). The model keeps the file's classifier
    if it has as many classes as the data; otherwise the classifier is new.
    """

    weights: str | None

    def build(self, channels: int, image_size: int, num_classes: int) -> nn.Module:
        from torchvision.models import resnet18

        if self.weights is not None and channels != 3:
            raise ValueError(f"channels must be 3 with pretrained weights, got {channels}")
        model: nn.Module = for_vmap(resnet18(num_classes=num_classes))
        if channels != 3:
            model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
            nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
        if self.weights is not None:
            load_weights(model, "fc", self.weights, "torchvision's resnet18", HINT)
        return model
