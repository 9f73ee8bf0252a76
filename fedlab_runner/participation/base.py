"""The contract of a participation policy: the clients that train in each round. N clients, K clients of a cohort.

Each choice is a frozen dataclass in a file of this folder, with conf/participation/<file>.yaml.
"""

from abc import abstractmethod
from typing import ClassVar, Protocol

import numpy as np

from fedlab_runner.utils.contract import require
from fedlab_runner.utils.validate import at_least, within

HeldOut = int | float  # a number of clients, or with a decimal point a share of all clients


class Participation(Protocol):
    """Which clients the server asks to train in a round, and whose updates it uses.

    A policy is a pure function of its fields, the round and its generator, which the run derives from (seed, round):
    the cohort is the same in every executor and after a resume.
    """

    names_clients: ClassVar[bool] = False
    """The fields, or a file that they name, have clients by number. Then the run refuses to number clients anew."""

    @abstractmethod
    def check(self, num_clients: int) -> None:
        """Raises ValueError, named after the field, if the policy cannot choose among `num_clients` clients.

        The run calls this before it loads data, and again if the partition leaves clients without examples.
        """

    @abstractmethod
    def cohort(self, num_clients: int) -> int:
        """K, the number of `num_clients` clients that report from each round if enough clients are idle."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, idle: np.ndarray, num_clients: int, round: int) -> np.ndarray:
        """The distinct ids of the clients that the server asks in `round`, counted from 0: int64 [n] in the order of
        sampling.

        They are some of `idle`, the ascending ids of the clients that have examples and owe no update; none if `idle`
        is empty.
        """

    def held_out(self, rng: np.random.Generator, num_clients: int) -> np.ndarray:
        """The ascending ids, int64, of the clients that the policy never asks, so that no model sees their examples.

        The run draws them once, from its seed. Default: none.
        """
        return np.empty(0, np.int64)

    def reporting(self, ids: np.ndarray, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The clients whose update the server uses and their delays in rounds: two arrays [K], in the order of `ids`.

        `ids` [n] are the clients that the server asked, with their `delays` [n] in rounds. Default: all of them.
        """
        return ids, delays


def cohort_size(policy: Participation, num_clients: int) -> int:
    """K of a policy. Raises UserError where it breaks the contract of `Participation.cohort`."""
    size = policy.cohort(num_clients)
    right = isinstance(size, int | np.integer) and 1 <= size <= num_clients
    require(right, policy, "cohort", f"a whole number from 1 to {num_clients}", size)
    return int(size)


def never_asked(policy: Participation, rng: np.random.Generator, num_clients: int) -> np.ndarray:
    """The clients that a policy holds out. Raises UserError where they break the contract of
    `Participation.held_out`.
    """
    ids = policy.held_out(rng, num_clients)
    right = _some_of(np.arange(num_clients), ids) and bool((np.diff(ids) > 0).all())
    require(right, policy, "held_out", f"ascending ids, int64 [n], of the {num_clients} clients", ids)
    return ids


def asked_clients(
    policy: Participation, rng: np.random.Generator, idle: np.ndarray, num_clients: int, round: int
) -> np.ndarray:
    """The clients that a policy asks. Raises UserError where they break the contract of `Participation.sample`."""
    ids = policy.sample(rng, idle.copy(), num_clients, round)
    require(_some_of(idle, ids), policy, "sample", f"distinct ids, int64 [n], of the {len(idle)} idle clients", ids)
    return ids


def reporting_clients(policy: Participation, asked: np.ndarray, delays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The clients, of those that a policy has asked, whose update the server uses, and their delays. Raises UserError
    where they break the contract of `Participation.reporting`.
    """
    ids, late = policy.reporting(asked.copy(), delays.copy())
    require(_some_of(np.sort(asked), ids), policy, "reporting", f"distinct ids of the {len(asked)} asked clients", ids)
    right = late.shape == ids.shape and late.dtype == np.int64 and bool((late >= 0).all())
    require(right, policy, "reporting", f"delays >= 0, int64 [{len(ids)}]", late)
    return ids, late


def _some_of(known: np.ndarray, ids: np.ndarray) -> bool:
    """Whether `ids` are different ones of the ascending ids `known`; sorting a million of these would take longer."""
    if not (isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.ndim == 1):
        return False
    places = known.searchsorted(ids)
    if not len(ids):
        return True
    return int(places.max()) < len(known) and np.array_equal(known[places], ids) and len(np.unique(ids)) == len(ids)


def number_of(held_out_clients: HeldOut, num_clients: int) -> int:
    """The number of clients, out of `num_clients`, that a policy holds out; at least one for a share above 0."""
    if isinstance(held_out_clients, int):
        return held_out_clients
    return max(1, round(held_out_clients * num_clients)) if held_out_clients else 0


def check_held_out(held_out_clients: HeldOut) -> None:
    """Raises ValueError unless the value is a number >= 0 or a share in [0, 1)."""
    at_least(0, held_out_clients=held_out_clients)
    if isinstance(held_out_clients, float):
        within("[0, 1)", held_out_clients=held_out_clients)


def check_left(held_out_clients: HeldOut, num_clients: int, asked: int, name: str = "cohort_size") -> None:
    """Raises ValueError, named after a field, unless the clients that are not held out are at least `asked`.

    The server asks `asked` clients at once; `name` is the field, or the rule of fields, that decides this number.
    """
    if asked > num_clients:
        raise ValueError(f"{name} must be <= the number of clients ({num_clients}), got {asked}")
    if number_of(held_out_clients, num_clients) > num_clients - asked:
        raise ValueError(
            f"held_out_clients must leave {asked} of the {num_clients} clients for {name}, got {held_out_clients}"
        )


def drawn(rng: np.random.Generator, clients: np.ndarray, size: int) -> np.ndarray:
    """The ids of `size` of the clients, drawn without replacement, ascending."""
    return np.sort(rng.choice(clients, size, replace=False))
