"""The contract of a topology: the clients that can reach each other. N clients.

Each choice is a frozen dataclass in a file of this folder, with conf/topology/<file>.yaml.
"""

from abc import abstractmethod
from typing import ClassVar, Protocol

import numpy as np

from fedlab_runner.topologies.graphs import unreachable
from fedlab_runner.utils.contract import require
from fedlab_runner.utils.errors import UserError


class Topology(Protocol):
    """A rule that links clients. With an algorithm without a server the run draws a topology once, before round 0."""

    names_clients: ClassVar[bool] = False
    """The fields, or a file that they name, have clients by number. Then the run refuses to number clients anew."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        """The adjacency [N, N] bool: symmetric, with a False diagonal, connected.

        A pure function of the fields, of the files that they name and of `rng`, which the run derives from its seed.
        Raises ValueError, named after the field, if the field does not allow a graph of these clients, and UserError
        for a file that is missing or wrong.
        """


def drawn_links(topology: Topology, rng: np.random.Generator, num_clients: int) -> np.ndarray:
    """The adjacency that a topology draws. Raises UserError where it breaks the contract of `Topology.draw`."""
    linked = topology.draw(rng, num_clients)
    right = isinstance(linked, np.ndarray) and linked.dtype == bool and linked.shape == (num_clients, num_clients)
    right = right and not linked.diagonal().any() and np.array_equal(linked, linked.T) and not len(unreachable(linked))
    words = f"links [{num_clients}, {num_clients}] bool: symmetric, without a client's link to itself, and connected"
    require(right, topology, "draw", words, linked)
    return linked


def check_participants(linked: np.ndarray, participants: np.ndarray) -> None:
    """Raises UserError unless the clients that may train, with these ids [k], reach each other over links among
    themselves: no model travels through any other client.
    """
    if len(participants) and len(cut := unreachable(linked[np.ix_(participants, participants)])):
        raise UserError(
            "topology must stay connected without the clients that are held out or have no examples: client "
            f"{participants[0]} cannot reach client {participants[cut[0]]}; set participation.held_out_clients=0, "
            "drop_empty=true, another seed or a denser topology"
        )
