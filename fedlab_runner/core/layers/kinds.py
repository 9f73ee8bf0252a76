"""What kinds of layers a network has."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm


def batch_norms(network: nn.Module) -> list[nn.Module]:
    """The layers of batch norm."""
    return [layer for layer in network.modules() if isinstance(layer, _BatchNorm)]


def keeps_statistics(network: nn.Module) -> bool:
    """Whether a layer keeps statistics of all examples of a minibatch: batch norm, or instance norm with them."""
    kinds = (_BatchNorm, _InstanceNorm)
    return any(isinstance(layer, kinds) and layer.track_running_stats for layer in network.modules())


def has_convolution(network: nn.Module) -> bool:
    """Whether a layer is a convolution."""
    return any(isinstance(layer, _ConvNd) for layer in network.modules())


def drops_out(network: nn.Module) -> bool:
    """Whether a layer drops values in training."""
    return any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in network.modules())


def adapts_gradients(network: nn.Module) -> bool:
    """Whether an embedding that trains gives its padding no gradient, or scales gradients by how often each vector
    occurs in the minibatch.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    return any(
        layer.weight.requires_grad and (layer.padding_idx is not None or layer.scale_grad_by_freq) for layer in layers
    )
