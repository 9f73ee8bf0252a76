"""The contract of server data: the examples that the server holds itself.

Each choice is a frozen dataclass in a file of this folder, with conf/server_data/<file>.yaml. The config nodes
`auxiliary_data` and `probe_data` have the same choices.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fedlab_runner.core.server_data import ServerData
    from fedlab_runner.datasets.examples import Data


class ServerDataSource(Protocol):
    """A source of the server's own examples."""

    @abstractmethod
    def reserve(self, data: "Data", seed: int) -> "tuple[ServerData | None, Data]":
        """The server's examples (None: the server has none), and the data without the examples taken from it.

        The examples have the shape and type of the clients' inputs, and at least two classes. A pure function of the
        fields, the files that they name, the data and the run's seed: all random numbers come from
        generator(seed, Purpose.SERVER_DATA). The run calls it once, after it has loaded the data. Raises UserError, one
        line with the file and the remedy, and ValueError, named after the field.
        """
