"""Server data: examples that the server holds itself.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.server_data.base import ServerDataSource

__all__ = ["ServerDataSource"]
