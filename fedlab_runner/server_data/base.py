"""The contract of server data: the examples that the server holds itself.

Each choice is a frozen dataclass in a file of this folder, with conf/server_data/<file>.yaml. The config's places
`auxiliary_data` and `probe_data` take the same choices.
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
        """The server's examples (None: the server has none), and the data without those taken from it.

        The examples have the shape and type of the clients' inputs, and at least two classes. A pure function of the
        fields, the files that they name, the data and the run's seed: whatever is drawn comes from
        generator(seed, Purpose.SERVER_DATA). The run calls it once, after it has loaded the data. Raises UserError, one
        line that names the file and the remedy, and ValueError, named after the field.
        """
