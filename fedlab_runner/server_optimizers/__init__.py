"""Server optimisers: how the server's model follows an algorithm's steps.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.server_optimizers.base import ServerOptimizer

__all__ = ["ServerOptimizer"]
