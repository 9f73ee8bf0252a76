"""Augmentation: changes of a training example each time a client sees it.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.augment.base import Augment

__all__ = ["Augment"]
