"""Participation: the clients that train in each round.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.participation.base import Participation

__all__ = ["Participation"]
