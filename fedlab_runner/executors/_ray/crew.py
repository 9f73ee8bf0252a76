"""The workers that a run has on a Ray cluster."""

import re
from typing import Any

from fedlab_runner.executors._ray.worker import ClusterWorker

MAX_FAILED_STARTS = 3  # of workers in succession, after which the driver assumes that none can start


class CannotStart(Exception):
    """No worker can start, or none that has a module."""


class Crew:
    """Workers that are each a process with a core, or with a GPU or a part of one, from their start to the run's end:
    what they have received and prepared is there in the next round. (A task of Ray's that has a GPU is a new process
    each time, which loads torch again, and a lasting process of tasks may be given another GPU than it has begun with.)
    """

    def __init__(self, ray: Any, num_gpus: float) -> None:
        needs = {"num_cpus": 1, "num_gpus": num_gpus or None, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._ray, self._num_gpus, self._worker = ray, num_gpus, ray.remote(**needs)(ClusterWorker)
        self._nodes: dict[Any, str] = {}  # of the workers that have started
        self._failed_starts = 0
        self.starting: dict[Any, Any] = {}  # workers by the reference to the node that they will tell
        self.free: list[Any] = []

    def room(self) -> int:
        """How many workers find room in the cluster as it is now, those that are there included."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if self._num_gpus:
            return sum(int(min(has.get("CPU", 0), has.get("GPU", 0) / self._num_gpus)) for has in alive)
        return max(1, int(sum(has.get("CPU", 0) for has in alive)))

    def recruit(self) -> None:
        """Asks for as many workers as find room, and forgets those whose node is gone."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        self._nodes = {worker: node for worker, node in self._nodes.items() if node in alive}
        self.free = [worker for worker in self.free if worker in self._nodes]
        for _ in range(max(1, self.room()) - len(self._nodes) - len(self.starting)):
            worker = self._worker.remote()
            self.starting[worker.node.remote()] = worker

    def take(self, ref: Any) -> None:
        """Takes in a worker that has told its node, or asks for another if it could not start.

        Raises CannotStart where no other would do better.
        """
        worker = self.starting.pop(ref)
        try:
            self._nodes[worker] = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._failed_starts += 1
            if self._failed_starts == MAX_FAILED_STARTS or lacks_module(error):
                raise CannotStart(str(error)) from None
            self.recruit()
            return
        self._failed_starts = 0
        self.free.append(worker)

    def address(self, worker: Any) -> str:
        """Where others reach the node of a worker."""
        return next(str(n["NodeManagerAddress"]) for n in self._ray.nodes() if n["NodeID"] == self._nodes[worker])

    def replace(self, worker: Any) -> None:
        """Forgets a worker that is lost, and asks for another."""
        self._nodes.pop(worker, None)
        self.recruit()


def lacks_module(error: Exception) -> str | None:
    """The module that a node does not have, if that is what an error of Ray's says."""
    found = re.search(r"No module named '([\w.]+)'", str(error))
    return found and found[1]
