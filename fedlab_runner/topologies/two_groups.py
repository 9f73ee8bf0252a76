"""Two meshes with one link between them (DFML, Figure 23)."""

from dataclasses import dataclass

import numpy as np

from fedlab_runner.topologies.base import Topology


@dataclass(frozen=True)
class TwoGroups(Topology):
    """A full mesh of the even ids, a full mesh of the odd ids, and a link between the median clients of both."""

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        ids = np.arange(num_clients)
        linked: np.ndarray = (ids[:, None] % 2 == ids % 2) & ~np.eye(num_clients, dtype=bool)
        if num_clients > 1:
            one, other = (group[(len(group) - 1) // 2] for group in (ids[::2], ids[1::2]))
            linked[one, other] = linked[other, one] = True
        return linked
