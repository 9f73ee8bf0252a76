"""Topologies: the clients that can reach each other.

Each choice is one file with one frozen dataclass; `base.py` is the contract.
"""

from fedlab_runner.topologies.base import Topology

__all__ = ["Topology"]
