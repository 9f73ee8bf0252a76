"""Aggregators: what the server takes for the mean of the updates that arrive.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.aggregators.base import Aggregator

__all__ = ["Aggregator"]
