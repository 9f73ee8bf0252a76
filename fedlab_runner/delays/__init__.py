"""Delays: the rounds by which the update of a client is late.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.delays.base import Delay

__all__ = ["Delay"]
