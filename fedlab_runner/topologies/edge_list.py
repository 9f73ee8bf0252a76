"""A graph from a file that lists its links."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedlab_runner.topologies.base import Topology
from fedlab_runner.topologies.graphs import from_edges, unreachable
from fedlab_runner.utils import untrusted
from fedlab_runner.utils.errors import UserError


@dataclass(frozen=True)
class EdgeList(Topology):
    """The links in the text file `path`. A line has two client ids from 0, separated by blanks or a comma.

    Empty lines and lines that start with # do not count. The graph must be connected.
    """

    names_clients: ClassVar[bool] = True
    path: str

    def draw(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        try:
            content = untrusted.read_bytes(Path(self.path).expanduser(), untrusted.MAX_LINES_BYTES)
            lines = content.decode().splitlines()
        except (OSError, UnicodeDecodeError, untrusted.Unreadable) as error:
            raise UserError(f"topology.path must be a readable text file, got {self.path} ({error})") from None
        edges = []
        for number, line in enumerate(lines, start=1):
            words = line.replace(",", " ").split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2 or not all(w.isascii() and w.isdigit() and int(w) < num_clients for w in words):
                wanted = f"two client ids from 0 to {num_clients - 1}"
                raise UserError(
                    f"topology.path must list {wanted} in each line, got line {number} of {self.path}: {line!r}"
                )
            edges.append([int(word) for word in words])
        linked = from_edges(num_clients, np.array(edges, np.int64).reshape(-1, 2))
        if len(missing := unreachable(linked)):
            raise UserError(
                f"topology.path must be a connected graph: client 0 cannot reach client {missing[0]} in {self.path}"
            )
        return linked
