"""The floating-point operations of a round, as an estimate before the first round."""

import numpy as np

from fedlab_runner.core.federation import Federation
from fedlab_runner.core.local_training import LocalTraining


def local_operations(fed: Federation) -> float:
    """Operations of plain local training of a cohort, from means over the clients and their architectures."""
    return fed.cohort_size * _of_a_client(fed, fed.local)


def epoch_operations(fed: Federation, epochs: int, models: int) -> float:
    """Operations of training `models` models on one client's examples for `epochs` epochs."""
    return models * _of_a_client(fed, fed.local.for_epochs(epochs)) if epochs else 0.0


def _of_a_client(fed: Federation, local: LocalTraining) -> float:
    trained = np.flatnonzero(fed.client_data.num_examples)
    if not len(trained):
        return 0.0
    seen = fed.client_data.examples_seen(trained, local, fed.family.has_batch_norm).mean()
    example = fed.family.normalize(fed.client_data.inputs[:1], fed.family.dtype)
    return float(seen * np.mean([family.flops(example).step for family in fed.families]))
