"""Learning-rate schedules: how the learning rate of the clients changes from round to round.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.lr_schedules.base import LRSchedule

__all__ = ["LRSchedule"]
