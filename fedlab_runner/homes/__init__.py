"""Homes: parts of a client's model that are its own and never leave it.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.homes.base import Home

__all__ = ["Home"]
