"""What the server has of its own: one file and one frozen dataclass a choice, with conf/server_data/<file>.yaml.

`reserve(data, seed)` gives the server's examples, as the model wants them, and the data that is left for clients and
test; a pure function of the fields, the files they name, the data and the seed.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fedlab_runner.core.server_data import ServerData
    from fedlab_runner.datasets.examples import Data


class ServerDataSource(Protocol):
    """A source of the server's own examples."""

    def reserve(self, data: "Data", seed: int) -> "tuple[ServerData | None, Data]":
        """The server's examples (None: it has none), and the data without those taken from it."""
        ...
