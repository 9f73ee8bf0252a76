"""Work that several workers of a Ray cluster do in step: each exchanges rows with all others."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from fedlab_runner.executors._ray.crew import Crew
from fedlab_runner.executors._ray.exchange import PartnerLost
from fedlab_runner.executors._ray.worker import Round

GRACE_SECONDS = 5.0  # for workers to notice that one of them is gone, after which they are ended


class WorkersLost(Exception):
    """A worker is gone, and the work of all is lost."""


def in_step(
    ray: Any,
    crew: Crew,
    round: Round,
    parts: Sequence[Any],
    device: str,
    wait: Callable[[Sequence[Any]], list[Any]],
    check: Callable[[], None],
) -> list[Any]:
    """The results of each `JointPart`, from a worker of its own. `wait` gives the references of results that have come,
    and `check` raises an error if the cluster is lost.

    Raises WorkersLost, and the first error of a worker.
    """
    errors = ray.exceptions
    crew.recruit()
    if len(crew.free) < len(parts):
        raise WorkersLost("a node is gone")
    workers = [crew.free.pop() for _ in parts]
    try:
        rendezvous = ray.get(workers[0].meet.remote(crew.address(workers[0]), len(parts)))
    except errors.RayError as error:
        if isinstance(error, errors.RayTaskError):  # its node has no such address
            crew.free.append(workers[0])
        else:
            check()
            crew.replace(workers[0])
        crew.free += workers[1:]
        raise WorkersLost(_line(error)) from None
    places = [part.places for part in parts]
    working = {
        worker.in_step.remote(round, part, i, places, rendezvous, device): (i, worker)
        for i, (worker, part) in enumerate(zip(workers, parts, strict=True))
    }
    results, faults, lost, failed_at = dict[int, Any](), list[Exception](), list[str](), 0.0
    while working:
        for ref in wait(list(working)):
            i, worker = working.pop(ref)
            try:
                results[i], _ = ray.get(ref)
            except errors.RayTaskError as error:
                crew.free.append(worker)
                if isinstance(error.cause, PartnerLost):
                    lost.append(str(error.cause))
                else:
                    faults.append(error)
            except errors.RayError as error:
                check()
                crew.replace(worker)
                lost.insert(0, _line(error))  # the cause of the others
            else:
                crew.free.append(worker)
        if working and len(results) + len(working) < len(parts):
            failed_at = failed_at or time.monotonic()
            if time.monotonic() - failed_at > GRACE_SECONDS:
                for _, worker in working.values():
                    ray.kill(worker)
    if faults:
        raise faults[0]
    if len(results) < len(parts):
        raise WorkersLost(lost[0])
    return [results[i] for i in range(len(parts))]


def _line(error: Any) -> str:
    return str(getattr(error, "cause", None) or error).partition("\n")[0]
