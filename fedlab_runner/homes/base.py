"""The contract of a home: the parts of a client's model that are its own and never leave it.

Each choice is a frozen dataclass in a file of this folder, with conf/home/<file>.yaml.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import nn

from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import one_of

PLACES = ("device", "host", "disk")  # values of the field `store_on`, of a home or an algorithm


@dataclass(frozen=True)
class Home(ABC):
    """A rule that names the tensors of a model that stay with the client, on the device, the host or disk (`store_on`).

    `core.client_homes` carries it out. A tensor, which is a parameter or a statistic of batch norm, stays as a whole.
    """

    store_on: str

    def __post_init__(self) -> None:
        one_of(PLACES, store_on=self.store_on)

    @abstractmethod
    def keeps(self, module: nn.Module, classifier: str | None, names: Sequence[str]) -> Sequence[str]:
        """Those of `names` that stay at home.

        `names` are the trainable parameters and the statistics of `module`; `classifier` is the name of its linear
        layer that gives the logits (None: it has none). Raises UserError, one line, if the module lacks the part that
        the rule names.
        """


def inside(name: str, prefix: str) -> bool:
    """Whether a tensor is the parameter `prefix` or belongs to the submodule `prefix`."""
    return name == prefix or name.startswith(f"{prefix}.")


def require_classifier(home: str, classifier: str | None, module: nn.Module) -> str:
    """The name of the classifier of `module`. Raises UserError if the model has none."""
    if classifier is not None:
        return classifier
    linear = [(name, layer.out_features) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    heads = [name for name, _ in takewhile(lambda each: each[1] == linear[-1][1], reversed(linear))]
    if len(heads) > 1:
        found = f"with one linear classifier, and none of {', '.join(reversed(heads))} alone gives its logits"
    else:
        found = "that ends in a linear classifier, which it trains and forward() calls as an nn.Linear module"
    raise UserError(f"home={home} needs a model {found}: take home=prefixes")
