"""Analyses: measurements of a run besides the algorithm.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.analyses.base import Analysis

__all__ = ["Analysis"]
