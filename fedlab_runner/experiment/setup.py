"""What a config says of the clients' models and of their links, built for the data and the number of clients."""

import logging

import numpy as np
import torch

from fedlab_runner.config.components import Components
from fedlab_runner.core.architectures import shape_of
from fedlab_runner.core.model_family import Normalize, Task
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.datasets.examples import Data
from fedlab_runner.models.base import Model
from fedlab_runner.topologies.base import describe
from fedlab_runner.topologies.mesh import Mesh
from fedlab_runner.utils.errors import UserError

_log = logging.getLogger("fedlab_runner")


def model_families(c: Components, data: Data, device: torch.device, num_clients: int) -> list[Task]:
    """One family of models for each architecture."""
    dtype = torch.float64 if c.precision == "float64" else torch.float32
    num_classes, models = len(data.class_names), c.model.architectures()
    if len(models) > num_clients:
        raise ValueError(f"models must be at most as many as the {num_clients} clients, got {len(models)}")
    if len(models) > 1 and not c.algorithm.heterogeneous:
        name = type(c.algorithm).__module__.rpartition(".")[2]
        raise UserError(
            f"algorithm={name} needs one architecture for all clients, got {len(models)}: choose another model, or "
            "algorithm=dfml, dec_fedavg, fml"
        )
    channels, image_size = shape_of(data.train.inputs)

    def task(model: Model) -> Task:
        return Task(
            lambda: model.build(channels, image_size, num_classes),
            num_classes,
            normalize=Normalize.of(data.mean, data.std, dtype, device),
            device=device,
            dtype=dtype,
            autocast=torch.bfloat16 if c.precision == "bfloat16" else None,
            supervision=c.supervision,
        )

    return [task(model) for model in models]


def draw_topology(c: Components, num_clients: int) -> np.ndarray | None:
    """Who can reach whom, drawn from the seed and logged, where there is no server; what goes unused is said."""
    name = type(c.algorithm).__module__.rpartition(".")[2]
    if not c.algorithm.serverless:
        if not isinstance(c.topology, Mesh):
            _log.warning("algorithm=%s has a server: the topology is not used", name)
        return None
    if c.delay.sample(generator(c.seed, Purpose.DELAY), np.arange(num_clients)).any():
        _log.warning("algorithm=%s has no server to be late for: the delay is not used", name)
    linked: np.ndarray = c.topology.draw(generator(c.seed, Purpose.TOPOLOGY), num_clients)
    _log.info("topology: %s", describe(linked))
    return linked
