"""Data sets: where the examples come from.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.datasets.base import Dataset

__all__ = ["Dataset"]
