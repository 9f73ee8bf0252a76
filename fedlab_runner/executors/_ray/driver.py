"""The driver: a process that talks to Ray on behalf of a run.

Ray kills a driver whose head or node dies. The run itself must survive to write its checkpoint.

    python -m fedlab_runner.executors._ray.driver <connection> <process of the run> <address or ""> <GPUs of a worker>
"""

import importlib
import logging
import os
import re
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from fedlab_runner.core.parts import PartClients
from fedlab_runner.executors._blocks import Block
from fedlab_runner.executors._messages import Failed, Keep, receive, send
from fedlab_runner.executors._ray.crew import CannotStart, Crew, lacks_module
from fedlab_runner.executors._ray.worker import Round
from fedlab_runner.executors._shares import ClientShare
from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.system import die_with_parent, usable_cores

POLL_SECONDS = 2.0  # between two checks of the cluster while no result comes
HEAD_LOST_SECONDS = 20.0  # without an answer, after which the head is lost; a restarted head may come back before
MAX_SHARE_LOSSES = 3  # of a share's workers, after which the driver assumes that the share itself kills them


class Train(NamedTuple):
    """The request to train a cohort. The driver may drop objects under numbers that are not `in_use`."""

    job: bytes
    lasting: list[int]
    in_use: set[int]
    shares: Sequence[ClientShare | PartClients]  # all shares or all parts
    device: str  # of the workers
    block: Block | None  # the models of the cohort, where this process can write them


class Ready(NamedTuple):
    """The driver is connected, or has trained a cohort."""

    head: str
    workers: int  # that find room in the cluster


class Done(NamedTuple):
    """The models and mean losses of a share's clients, or what a part has told."""

    share: int
    models: Any  # ndarray [k, D]; None: the block has them. Of a part: Told
    losses: Any  # ndarray [k]; None for a part


class Lost(NamedTuple):
    """A worker has died. The driver trains its share `again`, unless that has happened too often."""

    share: int
    reason: str
    again: bool


class Gone(NamedTuple):
    """The driver found no cluster or has lost it."""

    reason: str
    wants_token: bool = False


class Driver:
    """Carries out, with Ray, the requests that come over a connection."""

    def __init__(self, ray: Any, connection: Connection, num_gpus: float) -> None:
        self._ray, self._connection, self._crew = ray, connection, Crew(ray, num_gpus)
        context = ray.get_runtime_context()
        self._head, self._node = context.gcs_address, context.get_node_id()
        self._kept: dict[int, Any] = {}

    def run(self) -> None:
        """Serves until the connection is closed or the cluster is lost."""
        while True:
            send(self._connection, Ready(self._head, self._crew.room()))
            while isinstance(asked := receive(self._connection), Keep):
                self._kept[asked.number] = self._ray.put(asked.packed)
            if (reason := self._reason_gone() or self._cohort(asked)) is not None:
                send(self._connection, Gone(reason))
                return

    def _cohort(self, asked: Train) -> str | None:
        """Trains a cohort and sends each share's result as it comes; returns the reason if the cluster is lost.

        Of several shares that fail it tells the error of the first, whichever ends first.
        """
        ray, errors, crew = self._ray, self._ray.exceptions, self._crew
        self._kept = {number: ref for number, ref in self._kept.items() if number in asked.in_use}
        round = Round(ray.put(asked.job), [self._kept[number] for number in asked.lasting], asked.block)
        method = "sum_part" if isinstance(asked.shares[0], PartClients) else "train_share"
        models = None if asked.block is None else asked.block.models()
        todo, losses, working = deque(range(len(asked.shares))), [0] * len(asked.shares), dict[Any, tuple[int, Any]]()
        failed, fault = len(asked.shares), None  # the first share that has failed so far
        crew.recruit()
        while todo or any(i < failed for i, _ in working.values()):
            while todo and crew.free:
                i, worker = todo.popleft(), crew.free.pop()
                working[getattr(worker, method).remote(round, asked.shares[i], asked.device)] = i, worker
            done, _ = ray.wait([*working, *crew.starting], timeout=POLL_SECONDS)
            if not done and (reason := self._reason_gone()) is not None:
                return reason
            if self._connection.poll():  # no request comes while a cohort trains: the run has closed the connection
                raise EOFError
            for ref in done:
                try:
                    if ref in crew.starting:
                        crew.take(ref)
                        continue
                    i, worker = working.pop(ref)
                    y, losses_of = ray.get(ref)
                except CannotStart as error:
                    self._failed(error)
                    return None
                except errors.RayTaskError as error:
                    crew.free.append(worker)
                    if i < failed:
                        failed, fault, todo = i, error, deque(j for j in todo if j < i)
                except errors.RayError as error:
                    if (reason := self._reason_gone()) is not None:
                        return reason
                    losses[i] += 1
                    again = losses[i] < MAX_SHARE_LOSSES
                    send(self._connection, Lost(i, str(error).partition("\n")[0], again))
                    if not again:
                        return None
                    crew.replace(worker)
                    todo.extendleft([i] if i < failed else [])
                else:
                    crew.free.append(worker)
                    share = asked.shares[i]
                    if isinstance(share, ClientShare) and y is not None and models is not None:  # of another machine
                        models.numpy()[share.rows], y = y, None
                    send(self._connection, Done(i, y, losses_of))
        if fault is not None:
            self._failed(fault)
        return None

    def _failed(self, error: Exception) -> None:
        """Tells the run of an error, which ends it."""
        send(self._connection, Failed(self._ray.cloudpickle.dumps(_cause(error))))

    def _reason_gone(self) -> str | None:
        """Why the cluster can no longer be used; None if it can."""
        since = time.monotonic()
        while not answers(self._head):
            if time.monotonic() - since > HEAD_LOST_SECONDS:
                return "its head does not answer"
            time.sleep(0.2)
        alive = {node["NodeID"]: node["Alive"] for node in self._ray.nodes()}
        return None if alive.get(self._node) else "this machine is no longer part of it"


def _cause(error: Any) -> BaseException:
    """What has happened in a worker, or keeps workers from starting; one line where a node lacks what it needs."""
    if missing := lacks_module(error):
        return UserError(
            f"a node of the Ray cluster lacks the module {missing}: install this package and what it needs there "
            "(docs/cluster.md)"
        )
    if isinstance(error, CannotStart):
        return RunFailed(f"the workers of the Ray cluster do not start: {str(error).strip().splitlines()[-1].strip()}")
    return error.cause or RuntimeError(str(error))


def refused(error: BaseException | None) -> bool:
    """Whether a cluster has asked for its token in vain, which Ray names in the text of some error before this one."""
    while error is not None:
        if re.search("InvalidAuthToken|AuthenticationError|[Tt]oken authentication", f"{type(error).__name__} {error}"):
            return True
        error = error.__cause__ or error.__context__
    return False


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
    descriptor, parent, address, num_gpus = sys.argv[1:]
    die_with_parent(int(parent))
    connection = Connection(int(descriptor))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address:
        # Nobody else may use the cluster. Ray itself would write a token to the user's home, for later clusters too.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray: Any = importlib.import_module("ray")  # which reads the environment now
    # "local", not None, which means the cluster that RAY_ADDRESS names, or the last cluster on this machine.
    new = {"address": "local", "num_cpus": usable_cores(), "include_dashboard": False}
    where: dict[str, Any] = {"address": address} if address else new
    with suppress(EOFError, ConnectionError):  # the run has ended, and the driver ends too
        try:
            if address not in ("", "auto") and not answers(address):
                raise ConnectionError("nothing answers there")
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            send(connection, Gone(str(error).partition("\n")[0], refused(error)))
            return
        try:
            Driver(ray, connection, float(num_gpus)).run()
        except ray.exceptions.RayError as error:
            send(connection, Gone(str(error).partition("\n")[0]))


if __name__ == "__main__":
    # Imported by its name, not run as `__main__`: the classes of messages must be those that the run knows.
    from fedlab_runner.executors._ray import driver

    driver.main()
