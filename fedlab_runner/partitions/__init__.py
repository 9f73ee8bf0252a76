"""Partitions: the training examples of each client.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.partitions.base import Partition

__all__ = ["Partition"]
