"""Where the samples come from: one file and one frozen dataclass a data set, with conf/dataset/<file>.yaml.

`load(seed)` gives the Data, a pure function of the fields, the files they name and the seed.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # reading a data set's fields must not load torch
    from fedlab_runner.datasets.examples import Data


class Dataset(Protocol):
    """A source of labelled examples."""

    def load(self, seed: int) -> "Data":
        """Training and test examples; UserError where files are missing or damaged."""
        ...
