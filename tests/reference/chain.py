"""The neurons of a chain of linear layers, for reference loops that cut or match them."""

from typing import NamedTuple

from tests.reference.plain import Net


class Layer(NamedTuple):
    """A hidden layer: its neurons are rows of some tensors and columns of one."""

    size: int
    rows: list[str]  # weights, biases and the parameters of a norm behind them
    statistics: list[str]  # running means and variances of that norm
    columns: str  # the weights that read the neurons


def hidden_layers(net: Net) -> list[Layer]:
    """The hidden layers of a chain, from the inputs to the logits."""
    layers: list[Layer] = []
    for name, shape in net.shapes.items():
        if len(shape) == 2:  # a linear layer reads the layer before and begins another
            if layers:
                layers[-1] = layers[-1]._replace(columns=name)
            layers.append(Layer(shape[0], [], [], ""))
        layers[-1].rows.append(name)
        module = name.rpartition(".")[0]
        layers[-1].statistics.extend(k for k in net.stats if k.startswith(f"{module}.") and name.endswith("weight"))
    return layers[:-1]  # the last one makes the logits
