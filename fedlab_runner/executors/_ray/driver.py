"""The driver: a process that talks to Ray on behalf of a run.

Ray kills a driver whose head or node dies. The run itself must survive to write its checkpoint.

    python -m fedlab_runner.executors._ray.driver <descriptor of a socket> <address or ""> <process of the run>
"""

import importlib
import logging
import os
import pickle
import socket
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from fedlab_runner.executors._ray.serialization import ClientShare, Round, train_share
from fedlab_runner.utils.system import die_with_parent, usable_cores

POLL_SECONDS = 2.0  # between two checks of the cluster while no result comes
HEAD_LOST_SECONDS = 20.0  # without an answer, after which the head is lost; a restarted head may come back before
MAX_SHARE_LOSSES = 3  # of a share's workers, after which the driver assumes that the share itself kills them


class Keep(NamedTuple):
    """The request to put an object into the object store under a number."""

    number: int
    thing: Any


class Train(NamedTuple):
    """The request to train a cohort. The driver may drop objects under numbers that are not `in_use`."""

    job: bytes
    lasting: list[int]
    in_use: set[int]
    shares: list[ClientShare]


class Ready(NamedTuple):
    """The driver is connected, or has trained a cohort."""

    head: str
    cores: int


class Done(NamedTuple):
    """The models and mean losses of a share's clients."""

    share: int
    models: Any  # ndarray [k, D]
    losses: Any  # ndarray [k]


class Lost(NamedTuple):
    """A worker has died. The driver trains its share `again`, unless that has happened too often."""

    share: int
    reason: str
    again: bool


class Failed(NamedTuple):
    """The training raised an error, which is pickled here."""

    error: bytes


class Gone(NamedTuple):
    """The driver found no cluster or has lost it."""

    reason: str


class Driver:
    """Carries out, with Ray, the requests that come over a connection."""

    def __init__(self, ray: Any, connection: Connection) -> None:
        self._ray, self._connection = ray, connection
        context = ray.get_runtime_context()
        self._head, self._node = context.gcs_address, context.get_node_id()
        self._kept: dict[int, Any] = {}
        self._train = ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")(train_share)

    def run(self) -> None:
        """Serves until the connection is closed or the cluster is lost."""
        while True:
            send(self._connection, Ready(self._head, max(1, int(self._ray.cluster_resources().get("CPU", 0)))))
            while isinstance(asked := receive(self._connection), Keep):
                self._kept[asked.number] = self._ray.put(asked.thing)
            if (reason := self._reason_gone() or self._cohort(asked)) is not None:
                send(self._connection, Gone(reason))
                return

    def _cohort(self, asked: Train) -> str | None:
        """Trains a cohort and sends each share's result as it comes; returns the reason if the cluster is lost."""
        ray, errors = self._ray, self._ray.exceptions
        self._kept = {number: ref for number, ref in self._kept.items() if number in asked.in_use}
        round = Round(ray.put(asked.job), [self._kept[number] for number in asked.lasting])
        losses = [0] * len(asked.shares)
        waiting = {self._train.remote(round, share): i for i, share in enumerate(asked.shares)}
        while waiting:
            done, _ = ray.wait(list(waiting), timeout=POLL_SECONDS)
            if not done and (reason := self._reason_gone()) is not None:
                return reason
            if self._connection.poll():  # no request comes while a cohort trains: the run has closed the connection
                raise EOFError
            for ref in done:
                i = waiting.pop(ref)
                try:
                    send(self._connection, Done(i, *ray.get(ref)))
                except errors.RayTaskError as error:
                    for other in waiting:
                        ray.cancel(other, force=True)
                    send(self._connection, Failed(ray.cloudpickle.dumps(error.cause or RuntimeError(str(error)))))
                    return None
                except errors.RayError as error:
                    if (reason := self._reason_gone()) is not None:
                        return reason
                    losses[i] += 1
                    again = losses[i] < MAX_SHARE_LOSSES
                    send(self._connection, Lost(i, str(error).partition("\n")[0], again))
                    if not again:
                        return None
                    waiting[self._train.remote(round, asked.shares[i])] = i
        return None

    def _reason_gone(self) -> str | None:
        """Why the cluster can no longer be used; None if it can."""
        since = time.monotonic()
        while not answers(self._head):
            if time.monotonic() - since > HEAD_LOST_SECONDS:
                return "its head does not answer"
            time.sleep(0.2)
        alive = {node["NodeID"]: node["Alive"] for node in self._ray.nodes()}
        return None if alive.get(self._node) else "this machine is no longer part of it"


def send(connection: Connection, message: NamedTuple) -> None:
    """Sends a message by value. `Connection.send` would share tensors by descriptors that the other end cannot open."""
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """The next message of the other end. Raises EOFError when the other end is gone."""
    return pickle.loads(connection.recv_bytes())


def answers(address: str) -> bool:
    """Whether a server listens at host:port."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return True
    except OSError:
        return False


def main() -> None:
    """Connects to the cluster and serves the run."""
    descriptor, address, parent = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    die_with_parent(parent)
    connection = Connection(descriptor)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = importlib.import_module("ray")
    # "local", not None, which means the cluster that RAY_ADDRESS names, or the last cluster on this machine.
    new = {"address": "local", "num_cpus": usable_cores(), "include_dashboard": False}
    where: dict[str, Any] = {"address": address} if address else new
    with suppress(EOFError, ConnectionError):  # the run has ended, and the driver ends too
        try:
            if address not in ("", "auto") and not answers(address):
                raise ConnectionError("nothing answers there")
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            send(connection, Gone(str(error).partition("\n")[0]))
            return
        try:
            Driver(ray, connection).run()
        except ray.exceptions.RayError as error:
            send(connection, Gone(str(error).partition("\n")[0]))


if __name__ == "__main__":
    # Imported by its name, not run as `__main__`: the classes of messages must be those that the run knows.
    from fedlab_runner.executors._ray import driver

    driver.main()
