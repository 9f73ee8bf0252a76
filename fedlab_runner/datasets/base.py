"""The contract of a data set: where the labelled examples come from.

Each choice is a frozen dataclass in a file of this folder, with conf/dataset/<file>.yaml.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # reading a data set's fields must not load torch
    from fedlab_runner.datasets.examples import Data


class Dataset(Protocol):
    """A source of labelled examples."""

    @abstractmethod
    def load(self, seed: int) -> "Data":
        """The training and the test examples. `examples.Data` describes their shapes, types and units.

        A pure function of the fields, the files that they name and the run's seed: all random numbers come from
        generator(seed, Purpose.DATA). The run calls it once. Raises UserError, one line with the file and the remedy,
        if a file is missing or damaged, and ValueError, named after the field, if a field does not fit the files. It
        downloads nothing unless a field asks for it.
        """
