"""No data on the server."""

from dataclasses import dataclass

from fedlab_runner.data import Data
from fedlab_runner.server import ServerData


@dataclass(frozen=True)
class NoServerData:
    """The server has models only, as in plain federated learning."""

    def reserve(self, data: Data, seed: int) -> tuple[ServerData | None, Data]:
        return None, data
