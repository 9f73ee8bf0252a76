"""The peak memory of an algorithm's round, for the estimate before a run."""

from typing import NamedTuple

from fedlab_runner.core.federation import Federation
from fedlab_runner.core.parts import Elsewhere
from fedlab_runner.utils.run_files import OTHER_FOLDER

FEWER = "lower participation.cohort_size"  # a remedy


class MemoryItem(NamedTuple):
    """Peak memory that an algorithm holds besides the server model and the cohort's models."""

    values: int  # how many values, each of the models' type
    what: str  # names the item in messages
    remedy: str  # what the user can do to make it smaller
    place: str = "device"  # or host (main memory, even if the models are on a GPU), or disk
    anew: int = 0  # of the values, that a round makes while it holds the last ones
    merging: bool = False  # whether the server holds the item while it merges updates, and nobody while clients train
    saved: bool = True  # whether the State, and so each checkpoint, holds the item; an item on disk is no part of it
    renewed: float = 1.0  # for clients' rows: the share of its own rows that a client replaces when it takes part


class RoundLoad(NamedTuple):
    """The numbers of clients in a round."""

    starting: int  # K
    late: int  # updates on their way when it begins
    arriving: int  # A
    on_time: int  # of the K
    first: int  # of the K that take part for the first time


class CohortLoad(NamedTuple):
    """The largest numbers of clients that a round of the run will have."""

    starting: int  # K
    late: int  # updates on their way at the end of a round
    arriving: int  # A
    ever: int  # clients that have taken part by the last round
    trained: int  # models that clients have trained by the last round


class Footprint(NamedTuple):
    """Peak memory of a round; the numbers of copies are documented in `Algorithm`."""

    model_copies: int
    training_copies: int
    payload_copies: int
    step_copies: int
    held: list[MemoryItem]


def models_at_once(fed: Federation, starting: int) -> int:
    """How many of a cohort's models a round holds on this machine."""
    if fed.at_once is None:
        return starting
    processes = fed.executor.num_processes() if isinstance(fed.executor, Elsewhere) else 1
    return min(starting, fed.at_once * processes)


def fewer_models(fed: Federation, takes_sums: bool) -> str:
    """The remedy for too many models in a round of an algorithm that takes sums of updates or does not."""
    if fed.at_once is not None:
        return "lower aggregator.sum_every"
    return f"{FEWER} or set aggregator.sum_every" if takes_sums else FEWER


def own_rows(place: str, fed: Federation, load: CohortLoad, sets: int = 1) -> list[MemoryItem]:
    """The rows of `sets` own models for each client that has taken part, kept at `place` (the field `store_on`)."""
    return rows_of_each(place, load, sets * fed.client_values // fed.num_clients)


def rows_of_each(place: str, load: CohortLoad, values: int, node: str = "algorithm") -> list[MemoryItem]:
    """The rows of `values` values of clients that have taken part. A round replaces those of its cohort, or of the
    clients whose updates arrive.
    """
    return client_rows(place, load.ever * values, max(load.starting, load.arriving) * values, node)


def client_rows(place: str, values: int, anew: int, node: str = "algorithm", renewed: float = 1.0) -> list[MemoryItem]:
    """The clients' rows, kept at `place` (the field `store_on` of `node`), and their single copy in checkpoints. A
    round makes `anew` of the values.
    """
    what = f"the clients' rows ({node}.store_on)"
    on_disk = MemoryItem(values, what, f"take a disk with more room, by {OTHER_FOLDER}", "disk", renewed=renewed)
    here = MemoryItem(values, what, f"set {node}.store_on=disk", place, anew=anew, saved=False)
    return [on_disk] if place == "disk" else [here, on_disk]
