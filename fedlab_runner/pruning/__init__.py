"""Pruning: rules that stop runs of a sweep early.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.pruning.base import Pruning

__all__ = ["Pruning"]
