"""Architectures: what the clients train.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.models.base import Architecture

__all__ = ["Architecture"]
