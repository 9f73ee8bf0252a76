"""Decentralised FedAvg (Khalil et al., TMLR 2024, DFML), Algorithm 2. https://arxiv.org/abs/2402.01863"""

from dataclasses import dataclass

from fedlab_runner.algorithms.shared.averaging_peers import AveragingPeers


@dataclass(frozen=True)
class DecFedAvg(AveragingPeers):
    """In each round one client averages the models that others send to it, architecture by architecture."""
