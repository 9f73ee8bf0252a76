"""Pruning: when a run of a sweep is stopped early.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.pruning.base import Pruning

__all__ = ["Pruning"]
