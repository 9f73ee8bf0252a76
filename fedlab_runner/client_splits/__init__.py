"""Client splits: the training, validation and test examples of each client.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.client_splits.base import ClientSplit

__all__ = ["ClientSplit"]
