"""No data on the server."""

from dataclasses import dataclass

from fedlab_runner.core.server_data import ServerData
from fedlab_runner.datasets.examples import Data
from fedlab_runner.server_data.base import ServerDataSource


@dataclass(frozen=True)
class NoServerData(ServerDataSource):
    """The server has models but no data, as in plain federated learning."""

    def reserve(self, data: Data, seed: int) -> tuple[ServerData | None, Data]:
        return None, data
