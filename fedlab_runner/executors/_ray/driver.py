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
from typing import Any, NamedTuple

from fedlab_runner.core.joint_work import JointPart
from fedlab_runner.core.parts import PartClients
from fedlab_runner.executors._blocks import Block
from fedlab_runner.executors._messages import Channel, Failed, Keep, channel, raised_in_worker
from fedlab_runner.executors._ray.crew import CannotStart, Crew, lacks_module
from fedlab_runner.executors._ray.in_step import WorkersLost, in_step
from fedlab_runner.executors._ray.worker import Round
from fedlab_runner.executors._shares import ClientShare
from fedlab_runner.utils.errors import RunFailed, UserError
from fedlab_runner.utils.system import die_with_parent, usable_cores

POLL_SECONDS = 2.0  # between two checks of the cluster while no result comes
HEAD_LOST_SECONDS = 20.0  # without an answer, after which the head is lost; a restarted head may come back before
MAX_SHARE_LOSSES = 3  # of a share's workers, after which the driver assumes that the share itself kills them


Share = ClientShare | PartClients | JointPart
METHODS = {ClientShare: "train_share", PartClients: "sum_part", JointPart: "joint_part"}  # of a worker


class Request(NamedTuple):
    """The request to train a cohort, or to do joint work. The driver may drop objects under numbers that are not
    `in_use`.
    """

    job: bytes
    lasting: list[int]
    in_use: set[int]
    shares: Sequence[Share]  # of one kind
    device: str  # of the workers
    block: Block | None  # the models of the cohort, where this process can write them
    in_step: bool  # whether all shares are done at the same time: they exchange rows


class Ready(NamedTuple):
    """The driver is connected, or has done what was asked."""

    head: str
    workers: int  # that find room in the cluster
    present: int  # that have started


class Done(NamedTuple):
    """The models and mean losses of a share's clients, or what a part has told."""

    share: int
    models: Any  # ndarray [k, D]; None: the block has them. Of a part of the cohort: Told. Of joint work: its results
    losses: Any  # ndarray [k]; None for a part


class Lost(NamedTuple):
    """A worker has died. The driver trains its share `again`, unless that has happened too often. Of shares that are
    done in step it does none again.
    """

    share: int
    reason: str
    again: bool


class Gone(NamedTuple):
    """The driver found no cluster or has lost it."""

    reason: str
    wants_token: bool = False


class _ClusterGone(Exception):
    """The cluster can no longer be used."""


class Driver:
    """Carries out, with Ray, the requests that come over a connection."""

    def __init__(self, ray: Any, connection: Channel, num_gpus: float) -> None:
        self._ray, self._connection, self._crew = ray, connection, Crew(ray, num_gpus)
        context = ray.get_runtime_context()
        self._head, self._node = context.gcs_address, context.get_node_id()
        self._kept: dict[int, Any] = {}

    def run(self) -> None:
        """Serves until the connection is closed or the cluster is lost."""
        while True:
            self._connection.send(Ready(self._head, self._crew.room(), len(self._crew.free)))
            while isinstance(asked := self._connection.receive(), Keep):
                self._kept[asked.number] = self._ray.put(asked.packed)
            try:
                self._check_cluster()
                (self._in_step if asked.in_step else self._one_by_one)(asked, self._round(asked))
            except _ClusterGone as gone:
                self._connection.send(Gone(str(gone)))
                return

    def _round(self, asked: Request) -> Round:
        """What all shares have in common, in the object store."""
        self._kept = {number: ref for number, ref in self._kept.items() if number in asked.in_use}
        lasting, in_use = [self._kept[n] for n in asked.lasting], {ref.hex() for ref in self._kept.values()}
        return Round(self._ray.put(asked.job), lasting, in_use, asked.block)

    def _in_step(self, asked: Request, round: Round) -> None:
        """Has all shares done at the same time, and sends their results."""
        try:
            how = asked.shares, asked.device, self._wait, self._check_cluster
            results = in_step(self._ray, self._crew, round, *how)
        except WorkersLost as lost:
            self._connection.send(Lost(0, str(lost), again=True))
        except self._ray.exceptions.RayTaskError as error:
            self._failed(error)
        else:
            for i, found in enumerate(results):
                self._connection.send(Done(i, found, None))

    def _one_by_one(self, asked: Request, round: Round) -> None:
        """Has each share done by a free worker, and sends each result as it comes.

        Of several shares that fail it tells the error of the first, whichever ends first.
        """
        ray, errors, crew = self._ray, self._ray.exceptions, self._crew
        method = METHODS[type(asked.shares[0])]
        models = None if asked.block is None else asked.block.models()
        todo, losses, working = deque(range(len(asked.shares))), [0] * len(asked.shares), dict[Any, tuple[int, Any]]()
        failed, fault = len(asked.shares), None  # the first share that has failed so far
        crew.recruit()
        while todo or any(i < failed for i, _ in working.values()):
            while todo and crew.free:
                i, worker = todo.popleft(), crew.free.pop()
                working[getattr(worker, method).remote(round, asked.shares[i], asked.device)] = i, worker
            for ref in self._wait([*working, *crew.starting]):
                try:
                    if ref in crew.starting:
                        crew.take(ref)
                        continue
                    i, worker = working.pop(ref)
                    y, losses_of = ray.get(ref)
                except CannotStart as error:
                    self._failed(error)
                    return
                except errors.RayTaskError as error:
                    crew.free.append(worker)
                    if i < failed:
                        failed, fault, todo = i, error, deque(j for j in todo if j < i)
                except errors.RayError as error:
                    self._check_cluster()
                    losses[i] += 1
                    again = losses[i] < MAX_SHARE_LOSSES
                    self._connection.send(Lost(i, str(error).partition("\n")[0], again))
                    if not again:
                        return
                    crew.replace(worker)
                    todo.extendleft([i] if i < failed else [])
                else:
                    crew.free.append(worker)
                    share = asked.shares[i]
                    if isinstance(share, ClientShare) and y is not None and models is not None:  # of another machine
                        models.numpy()[share.rows], y = y, None
                    self._connection.send(Done(i, y, losses_of))
        if fault is not None:
            self._failed(fault)

    def _wait(self, refs: Sequence[Any]) -> list[Any]:
        """The references of results that have come, none after a while without any."""
        done, _ = self._ray.wait(list(refs), timeout=POLL_SECONDS)
        if not done:
            self._check_cluster()
        if self._connection.has_message():  # no request comes now: the run has closed the connection
            raise EOFError
        return list(done)

    def _failed(self, error: Exception) -> None:
        """Tells the run of an error, which ends it."""
        self._connection.send(Failed(self._ray.cloudpickle.dumps(_cause(error))))

    def _check_cluster(self) -> None:
        """Raises _ClusterGone if the cluster can no longer be used."""
        since = time.monotonic()
        while not answers(self._head):
            if time.monotonic() - since > HEAD_LOST_SECONDS:
                raise _ClusterGone("its head does not answer")
            time.sleep(0.2)
        if not {node["NodeID"]: node["Alive"] for node in self._ray.nodes()}.get(self._node):
            raise _ClusterGone("this machine is no longer part of it")


def _cause(error: Any) -> BaseException:
    """What has happened in a worker, or keeps workers from starting; one line where a node lacks what it needs."""
    if missing := lacks_module(error):
        return UserError(
            f"a node of the Ray cluster lacks the module {missing}: install this package and what it needs there "
            "(docs/cluster.md)"
        )
    if isinstance(error, CannotStart):
        return RunFailed(f"the workers of the Ray cluster do not start: {str(error).strip().splitlines()[-1].strip()}")
    return raised_in_worker(error.cause, str(error)) if error.cause else RuntimeError(str(error))


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
    connection = channel(descriptor)
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
            connection.send(Gone(str(error).partition("\n")[0], refused(error)))
            return
        try:
            Driver(ray, connection, float(num_gpus)).run()
        except ray.exceptions.RayError as error:
            connection.send(Gone(str(error).partition("\n")[0]))


if __name__ == "__main__":
    # Imported by its name, not run as `__main__`: the classes of messages must be those that the run knows.
    from fedlab_runner.executors._ray import driver

    driver.main()
