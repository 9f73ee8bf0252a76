"""A Ray cluster of two nodes on this machine: the inner executor's bits, and what happens when a node dies."""

import importlib
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.algorithms.shared.teachers import ANSWERED_AT_ONCE, mean_answers
from fedlab_runner.config.build import build
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Batch
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.core.work import Work
from fedlab_runner.evaluation import scoring
from fedlab_runner.evaluation.scores import of_each, on_examples
from fedlab_runner.executors._blocks import Blocks
from fedlab_runner.executors._chunks import Chunk, ChunkedExecutor
from fedlab_runner.executors._lasting import packed
from fedlab_runner.executors._ray import session
from fedlab_runner.executors._ray.driver import Done, Lost
from fedlab_runner.executors._shares import packed_work, shares_of
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.ray import Ray
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.utils import own_modules
from fedlab_runner.utils.errors import Diverged, RunFailed, UserError
from fedlab_runner.utils.torch_settings import usual_settings
from tests.executors.test_processes import train
from tests.helpers.composed import composed, files
from tests.helpers.kinds import by_kind
from tests.helpers.mixed import KINDS
from tests.helpers.mutual import learnt
from tests.helpers.paths import ROOT
from tests.helpers.toy import (
    ALGORITHMS,
    CLASSES,
    RAGGED,
    Attending,
    aggregator,
    algorithm,
    check_homes,
    examples,
    federation,
    local,
    mlp,
    normed,
    run,
    tensors,
)

LOOP = Loop(compile=False)


def ray(address: str | None = None, num_gpus: float = 0) -> Ray:
    return Ray(address, num_gpus, LOOP)


def test_bad_values() -> None:
    with pytest.raises(ValueError, match=r"^address must be host:port, auto or null, got ray://head$"):
        Ray("ray://head", 0, LOOP)
    with pytest.raises(ValueError, match=r"^inner must be loop or vectorized, got processes$"):
        Ray(None, 0, Processes(2, LOOP))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^num_gpus must be a whole number where it is above 1, got 1.5$"):
        ray(num_gpus=1.5)
    with pytest.raises(UserError, match=r"^executor=ray needs device=cpu or executor.num_gpus, got meta$"):
        ray().train(SimpleNamespace(family=SimpleNamespace(device=torch.device("meta"))))  # type: ignore[arg-type]
    assert build(composed("executor=ray", "executor.address=10.0.0.1:6379")).executor == ray("10.0.0.1:6379")


def test_without_the_extra_there_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'^executor=ray needs an extra: pip install "fedlab-runner\[ray\]"$'):
        ray().bind_run(tmp_path, 1)
    with pytest.raises(UserError, match=r"^executor=ray needs an extra: "):  # where a cluster is to be opened again
        run(algorithm("fedavg"), federation(executor=ray()), 1)


def test_clients_are_dealt_out_by_their_steps() -> None:
    fed = federation((8, 80, 8, 8, 40, 16, 16, 8))
    ids = np.arange(8)
    steps = fed.client_data.num_steps(ids, fed.local, False)
    work = Work(fed.family, fed.client_data, ids, steps, fed.local, 0.1, 0, 0, fed.family.init(0))
    shares = shares_of(work, LOOP.chunks(work), 3)
    assert sorted(row for share in shares for row in share.rows.tolist()) == list(range(8))
    assert [int(share.num_steps.sum()) for share in shares] == [20, 14, 12]  # two epochs of 10; 5 + 2; and the rest
    whole = shares_of(work, [Chunk(np.array([3, 1]), False), Chunk(np.array([0]), True)], 1)
    assert [(chunk.rows.tolist(), chunk.frozen_norm) for chunk in whole[0].chunks] == [([0, 1], False), ([2], True)]


OWN = """
import own_tools, torch
from dataclasses import dataclass
from fedlab_runner.augment.base import Augment
from fedlab_runner.executors.loop import Loop


@dataclass(frozen=True)
class Halving(Loop):
    def train_chunk(self, work, chunk, y, losses):
        super().train_chunk(work, chunk, y, losses)
        y[chunk.rows] *= own_tools.STRENGTH


@dataclass(frozen=True)
class Mirror(Augment):
    numbers = 1

    def num_views(self, shape):
        return 2

    def views(self, drawn, shape):
        return (2 * drawn[:, 0]).astype("int64")

    def apply(self, inputs, views):
        return inputs * (1 - 2 * views.unsqueeze(1))


def pulled(family, anchor):
    def loss(model, batch):
        return family.loss(model, batch) + own_tools.distance(model.params, anchor)

    return loss
"""
WORKER = """
import pickle, sys, types
import cloudpickle

sys.modules["ray"], sys.modules["ray.cloudpickle"] = types.SimpleNamespace(get=lambda ref: ref.thing), cloudpickle


class Ref:
    def __init__(self, name, thing):
        self.name, self.thing = name, thing

    def hex(self):
        return self.name


job, client_data, family, share = pickle.load(sys.stdin.buffer)
from fedlab_runner.executors._ray.worker import ClusterWorker, Round

round = Round(Ref("job", job), [Ref("client_data", client_data), Ref("family", family)], (), None)
pickle.dump(ClusterWorker().train_share(round, share, "cpu"), sys.stdout.buffer)
"""


def test_a_worker_needs_no_file_of_the_users_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executor, augmentation and loss from `--config-dir`; with the pickler that Ray's is a copy of."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "own_tools.py").write_text(
        "STRENGTH = 0.5\n\n\ndef distance(a, b):\n    return STRENGTH * (a - b).square().sum()\n"
    )
    monkeypatch.setattr(own_modules, "_folders", set())
    monkeypatch.syspath_prepend(str(tmp_path))
    own: Any = importlib.import_module("own")
    own_modules.remember(own)
    monkeypatch.setitem(sys.modules, "ray.cloudpickle", cloudpickle)
    inner = own.Halving(compile=False)
    fed = federation(augment=own.Mirror())
    ids, start = np.arange(len(RAGGED)), fed.family.init(0)
    steps = fed.client_data.num_steps(ids, fed.local, False)
    loss = own.pulled(fed.family, fed.family.init(1)[: fed.family.num_params])
    work = Work(fed.family, fed.client_data, ids, steps, fed.local, 0.1, 0, 0, start, loss=loss)
    (share,) = shares_of(work, inner.chunks(work), 1)
    sent = pickle.dumps((packed_work(work, inner), packed(work.client_data), packed(work.family), share))
    for module in ("own", "own_tools"):
        cloudpickle.unregister_pickle_by_value(sys.modules[module])
        monkeypatch.delitem(sys.modules, module)
    paths = {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", WORKER], input=sent, capture_output=True, cwd=ROOT, env=os.environ | paths
    )
    assert ended.returncode == 0, ended.stderr.decode()
    models, losses = pickle.loads(ended.stdout)
    expected, expected_losses = inner.train(work)
    assert np.array_equal(models, expected[share.rows]) and np.array_equal(losses, expected_losses[share.rows])


@pytest.fixture(scope="module")
def shared() -> Iterator[Ray]:
    """One connection for all: to connect takes seconds."""
    with _cluster() as nodes:
        yield ray(nodes.address)


@pytest.fixture
def one_core(shared: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's machine has so little to offer that any two workers are faster, and two are there."""
    monkeypatch.setattr(session, "usable_cores", lambda: 1)
    monkeypatch.setattr(session, "EXCHANGE_SECONDS", 0.0)
    monkeypatch.setattr(session, "BYTES_A_SECOND", math.inf)
    for _ in range(300):
        train(federation(executor=shared))
        if shared._session._ready.present == 2:
            return
        time.sleep(0.1)
    raise AssertionError("the second worker does not start")


class _cluster:
    """Two nodes in a process of their own, which can be killed one by one. `words` are those of `ray_nodes.py`."""

    def __init__(self, *words: str) -> None:
        self._words = words

    def __enter__(self) -> "_cluster":
        pytest.importorskip("ray", reason="the extra [ray] is not installed")
        self.folder = tempfile.mkdtemp(prefix="ray")  # a short name: sockets lie in it
        paths = os.pathsep.join([*sys.path[:1], str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/helpers/ray_nodes.py"), *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ
            | {"PYTHONPATH": paths, "RAY_TMPDIR": self.folder, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"},
        )
        self.address = self._answer()
        return self

    def tell(self, node: str) -> None:
        """Kills the `head` or the `other` node, or adds one `more`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{node}\n")
        self.process.stdin.flush()
        assert self._answer() == node

    def _answer(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("nodes: "):
                return line.removeprefix("nodes: ").strip()
        raise AssertionError("the cluster has not started")

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.parametrize("inner", [LOOP, Vectorized(chunk_size=3, compile=False)])
def test_the_bits_are_the_inner_executors(inner: ChunkedExecutor, shared: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """With closures over tensors, and rows that each client has of its own."""
    monkeypatch.setitem(shared.__dict__, "inner", inner)
    other, own = federation(build=normed).family.init(1)[0], torch.linspace(0.1, 0.5, len(RAGGED), dtype=torch.float64)
    starts = torch.stack([federation(build=normed).family.init(seed) for seed in range(len(RAGGED))])
    for start in (starts[0], starts):
        how: dict[str, Any] = {
            "start": start,
            "correct": lambda g, pull, late: g - (pull + late) * other,
            "per_client": (own,),
            "per_step": lambda work, rows, step: (own[torch.from_numpy(work.ids[rows])] * step,),
        }
        expected = train(federation(executor=inner, build=normed), **how)
        result = train(federation(executor=shared, build=normed), **how)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))


def test_what_clients_have_at_home_goes_with_them(shared: Ray) -> None:
    check_homes(LOOP, shared)


@pytest.mark.parametrize("name", by_kind(ALGORITHMS))
def test_every_algorithm(name: str, shared: Ray, one_core: None) -> None:
    built = algorithm(name)
    expected = tensors(run(built, federation(cohort=4, std=1.0), 3))
    result = tensors(run(built, federation(cohort=4, std=1.0, executor=shared), 3))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))


def test_sums_are_formed_on_the_nodes(shared: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bits, and with the metrics, of parts that train here; no model of a client is sent."""
    # HFCL's server trains like one client.
    monkeypatch.setattr(Ray, "train", lambda self, work: LOOP.train(work) if len(work.ids) < 2 else None)
    for name in (name for name in ALGORITHMS if algorithm(name).takes_sums()):
        found = []
        for executor in (LOOP, shared):
            fed = federation(cohort=7, std=1.0, executor=executor, rule=aggregator("mean", sum_every=2), build=normed)
            found.append((tensors(run(algorithm(name), fed, 3)), fed.collect()))
        (expected, metrics), (result, its) = found
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True)), name
        assert metrics == its, name


class Answers(list[Any]):
    """What the driver of a cluster says."""

    def __init__(self, cluster: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
        real = cluster._session._receive

        def received(its: Any) -> Any:
            self.append(real())
            return self[-1]

        monkeypatch.setattr(type(cluster._session), "_receive", received)

    def of(self, kind: type) -> list[Any]:
        return [answer for answer in self if isinstance(answer, kind)]


def test_workers_ask_teachers(shared: Ray, one_core: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bits of one process, on more examples than are asked at once; each worker asks some of the teachers."""
    found, answers = [], Answers(shared, monkeypatch)
    inputs, targets = examples(2 * ANSWERED_AT_ONCE + 1)
    for executor in (LOOP, shared):
        fed = federation(executor=executor, build=normed, server=ServerData(inputs, targets, CLASSES, in_domain=True))
        fed.begin(0, 1.0)
        teachers = fed.cohort(np.arange(len(RAGGED))).train(fed.family.init(0), counted=False)
        means = [mean_answers(fed, teachers, answer) for answer in (None, lambda logits: logits.softmax(-1))]
        found.append((means, fed.collect()["cost/server_gflops"]))
    (expected, operations), (result, counted) = found
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))
    assert counted == operations and len([answer for answer in answers.of(Done) if answer.losses is None]) == 4


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch computes attention itself row by row
@pytest.mark.parametrize("network", [normed, Attending])
@usual_settings()
def test_workers_score_models(
    network: Callable[[], nn.Module], shared: Ray, one_core: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bits of one process: clients' models on the same examples and on their own."""
    monkeypatch.setattr(scoring, "MIN_ALONE_FLOPS", 0.0)
    found, answers, ids = [], Answers(shared, monkeypatch), np.arange(len(RAGGED))
    inputs, targets = examples(200)
    for executor in (LOOP, shared):
        fed = federation(executor=executor, build=network)
        models = fed.cohort(ids).train(fed.family.init(0), counted=False)
        same = on_examples(executor, fed.family, models, inputs, targets, 64)
        own = of_each(executor, fed.family, models, fed.client_data, ids, 64)
        found.append([same.correct, same.loss, torch.from_numpy(own.accuracy), torch.from_numpy(own.loss)])
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))
    assert len([answer for answer in answers.of(Done) if answer.losses is None]) == 4


@pytest.mark.parametrize("taught", [False, True])
def test_workers_share_mutual_learning(
    taught: bool, shared: Ray, one_core: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bits of one process; each worker learns some of the models."""
    expected = learnt(LOOP, taught=taught)
    answers = Answers(shared, monkeypatch)
    found = learnt(shared, taught=taught)
    assert [len(answer.models) for answer in answers.of(Done) if answer.losses is None] == [1 if taught else 3] * 2
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[0], expected[0], strict=True))
    assert found[1] == expected[1]


def test_mutual_learning_that_is_no_faster_on_a_cluster_stays_here(
    shared: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers on a machine of two cores, dropout, and little work."""
    monkeypatch.setattr(session, "usable_cores", lambda: 2)
    answers = Answers(shared, monkeypatch)
    learnt(shared)
    monkeypatch.setattr(session, "usable_cores", lambda: 1)
    learnt(shared)
    monkeypatch.setattr(session, "EXCHANGE_SECONDS", 0.0)
    monkeypatch.setattr(session, "BYTES_A_SECOND", math.inf)
    learnt(shared, builds=(*KINDS[:2], lambda: nn.Sequential(mlp(), nn.Dropout(0.1))))
    assert answers and all(answer.losses is not None for answer in answers.of(Done))


def test_an_error_in_a_worker_that_works_with_others_is_the_callers(shared: Ray, one_core: None) -> None:
    here = os.getpid()

    def act() -> None:
        if os.getpid() != here:
            raise ArithmeticError("no such loss")

    with pytest.raises(ArithmeticError, match=r"^no such loss(?m:$)"):
        learnt(shared, act=act)


@pytest.mark.slow  # new workers take seconds to start
def test_of_workers_that_learn_together_one_dies(
    shared: Ray, one_core: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The models learn again, with the workers that are left or here."""
    here, mark = os.getpid(), tmp_path / "died"
    expected, _ = learnt(LOOP)

    def act() -> None:
        if os.getpid() != here and not mark.exists():
            mark.touch()
            os._exit(1)

    found, _ = learnt(shared, act=act)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    assert mark.exists() and "a worker is lost, its part of the work goes to others" in caplog.text


def test_workers_that_do_not_reach_each_other_leave_the_work_to_the_run(
    shared: Ray, one_core: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = learnt(LOOP)
    here = os.getpid()

    def act() -> None:
        from fedlab_runner.executors._ray.exchange import PartnerLost

        if os.getpid() != here:
            raise PartnerLost("a worker cannot reach another")

    monkeypatch.setattr(shared._session, "_shares", True)
    answers = Answers(shared, monkeypatch)
    for _ in range(2):
        found, _ = learnt(shared, act=act)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))
    assert caplog.text.count("workers cannot work together (a worker cannot reach another): this machine does it") == 1
    assert len(answers.of(Lost)) == 2
    monkeypatch.undo()
    shared._session._shares = True


def test_updates_on_nodes_that_are_not_finite(shared: Ray) -> None:
    """The run ends in the line that it ends in elsewhere, and the next cohort finds a cluster."""
    lines, training = [], local()
    object.__setattr__(training, "lr", 1e308)  # a config has none so large
    for executor in (LOOP, shared):
        fed = federation(executor=executor, rule=aggregator("mean", sum_every=1), training=training)
        with pytest.raises(Diverged, match=r"^the run diverged in round 1 \(update of client \d+ not finite") as raised:
            run(algorithm("fedavg"), fed, 2)
        lines.append(str(raised.value))
    assert lines[0] == lines[1]
    assert len(train(federation(executor=shared))[0]) == len(RAGGED)


def test_of_several_parts_that_fail_the_first_is_told(shared: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others end before it."""

    def fails(self: FedAvg, state: Any, cohort: Any, slow: int = -1) -> Any:
        if not len(cohort.ids):  # which tells the kind of an upload
            return update(self, state, cohort)
        time.sleep(0.5 * (int(cohort.ids[0]) == slow))
        raise ArithmeticError(int(cohort.ids[0]))

    method, update, rule = algorithm("fedavg"), FedAvg.client_update, aggregator("mean", sum_every=1)
    monkeypatch.setattr(FedAvg, "client_update", fails)
    with pytest.raises(ArithmeticError) as here:
        run(method, federation(rule=rule), 1)
    job = partial(fails, method, slow=here.value.args[0])
    monkeypatch.setattr("fedlab_runner.core.algorithm.partial", lambda sent, state: partial(job, state))
    with pytest.raises(ArithmeticError) as there:
        run(method, federation(executor=shared, rule=rule), 1)
    assert here.value.args == there.value.args


def test_models_that_workers_cannot_write_into_the_runs_memory(shared: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other machines, which the driver writes there, and all where the system shows no descriptors."""
    expected, answers = train(federation(), correct=lambda g: g), Answers(shared, monkeypatch)

    def elsewhere(g: torch.Tensor) -> torch.Tensor:
        from fedlab_runner.executors import _blocks

        if os.getpid() != here:
            _blocks._attached = lambda holder, target: None  # type: ignore[assignment]
        return g

    def same(g: torch.Tensor) -> torch.Tensor:
        return g

    here = os.getpid()
    for correct, sent in ((same, False), (elsewhere, False), (same, True)):
        if sent:
            monkeypatch.setattr(Blocks, "staged", lambda self, work: (None, None))
        result = train(federation(executor=shared), correct=correct)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))
        assert answers.of(Done) and all((answer.models is not None) == sent for answer in answers.of(Done))
        answers.clear()


def test_an_error_in_a_worker_is_the_callers(shared: Ray) -> None:
    here = os.getpid()  # where the operations of a step are counted

    def loss(model: Any, batch: Batch) -> torch.Tensor:
        if os.getpid() != here:
            raise ArithmeticError("no such loss")
        return batch.mean(losses(model(batch.inputs), batch.targets, None))

    with pytest.raises(ArithmeticError, match=r"^no such loss\nraised in a worker:\n(?s:.*), in loss\n") as raised:
        train(federation(executor=shared), loss=loss)
    assert str(raised.value) == "no such loss" and "\x1b" not in raised.value.__notes__[0]


@pytest.mark.slow  # new workers take seconds to start
def test_a_part_whose_worker_dies_is_carried_out_again(
    shared: Ray, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, mark, update = os.getpid(), tmp_path / "died", FedAvg.client_update

    def deadly(self: FedAvg, state: Any, cohort: Any) -> Any:
        if os.getpid() != here and not mark.exists():
            mark.touch()
            os._exit(1)
        return update(self, state, cohort)

    rule, method = aggregator("mean", sum_every=2), algorithm("fedavg")
    expected = run(method, federation(rule=rule), 2)
    fed = federation(executor=shared, rule=rule)
    monkeypatch.setattr(type(method), "_sent", lambda self, state, cohort: deadly(self, state, cohort))
    job = partial(deadly, method)
    monkeypatch.setattr("fedlab_runner.core.algorithm.partial", lambda sent, state: partial(job, state))
    result = run(method, fed, 2)
    assert torch.equal(result.params, expected.params) and mark.exists()
    assert "a worker is lost, its share of 2 clients goes to others" in caplog.text


@pytest.mark.slow  # new workers take seconds to start
def test_clients_that_kill_their_workers_end_the_run(shared: Ray, caplog: pytest.LogCaptureFixture) -> None:
    here = os.getpid()  # where a step's operations are counted

    def correct(g: torch.Tensor) -> torch.Tensor:
        return g if os.getpid() == here else os._exit(1)

    fed = federation(executor=shared)
    with pytest.raises(
        RunFailed, match=r"^executor=ray has lost the workers of the same share of 1 clients again and again"
    ):
        fed.cohort(np.array([3])).train(fed.family.init(0), correct=correct)
    assert "a worker is lost, its share of 1 clients goes to others" in caplog.text


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    with pytest.raises(UserError, match=r"^executor.address 127.0.0.1:9 cannot be reached: nothing answers there; is"):
        ray("127.0.0.1:9").bind_run(tmp_path, 1)


@pytest.mark.slow  # starts three clusters
def test_a_cluster_of_ones_own_is_a_new_one_wherever_another_is_or_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself goes to the one that the environment names, or else to the last one of this machine."""
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    folder = tempfile.mkdtemp(prefix="ray")  # a short name: sockets lie in it
    (Path(folder) / "ray").mkdir()
    (Path(folder) / "ray" / "ray_current_cluster").write_text("127.0.0.1:9")  # the mark of a cluster that has ended
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("HOME", f"{folder}/nobody/can/write/here")  # Ray itself puts a token into it
    for named in (None, "127.0.0.1:9"):
        monkeypatch.setenv("RAY_ADDRESS", named) if named else monkeypatch.delenv("RAY_ADDRESS", raising=False)
        cluster = ray()
        try:
            cluster._session  # noqa: B018  # connects
        finally:
            if opened := cluster.__dict__.get("_session"):
                opened.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow  # Ray tries for twenty seconds
def test_a_cluster_that_wants_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    with _cluster() as nodes:
        executor = ray(nodes.address)
        executor.bind_run(tmp_path, 1)
        executor._session.close()
        monkeypatch.delenv("RAY_AUTH_TOKEN")
        monkeypatch.setenv("HOME", str(tmp_path))
        for mode in ("token", "disabled"):
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
            with pytest.raises(UserError, match=rf"^the Ray cluster at executor.address {nodes.address} wants its tok"):
                ray(nodes.address).bind_run(tmp_path, 1)


PROGRAM = ("algorithm=scaffold", "rounds=100000", "evaluation.every=1000", "checkpoint.rounds=5")


def start(folder: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "fedlab_runner.train", *PROGRAM, *more]
    command += [f"hydra.run.dir={folder}", "logger=none", "model=logistic", "num_clients=20", "device=cpu"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder.parent)


def rounds_done(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow  # a minute and more
def test_nodes_come_and_go_and_a_head_is_started_again(tmp_path: Path) -> None:
    """A run continues without a node, takes a new one, ends with a checkpoint when the head is lost, and continues with
    a new cluster, and then without any: the same bytes as a run that never saw a cluster.
    """
    folder = tmp_path / "run"

    def lost(nodes: _cluster, *nodes_before: str) -> int:
        """The rounds of a run that loses the head after the other changes."""
        process = start(folder, "executor=ray", f"executor.address={nodes.address}")

        def reach(rounds: int) -> None:
            while rounds_done(folder) < rounds:
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.01)

        for node in (*nodes_before, "head"):
            reach(rounds_done(folder) + 5)
            nodes.tell(node)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1, errors
        line = errors.strip().splitlines()[-1]
        assert line.startswith(f"error: the Ray cluster at {nodes.address} is lost (its "), errors  # head or driver
        done = rounds_done(folder) - 1
        assert (folder / "checkpoints" / f"round_{done:06d}.pt").exists()
        return done

    with _cluster() as nodes:
        first = lost(nodes, "other", "more")
    with _cluster() as nodes:
        done = lost(nodes)
    assert done > first
    for each in (folder, tmp_path / "whole"):
        last = start(each, "executor=loop", f"rounds={done + 2}")
        _, errors = last.communicate(timeout=120)
        assert last.returncode == 0, errors
    assert files(folder) == files(tmp_path / "whole")


@pytest.mark.slow  # starts clusters of its own
def test_fractions_of_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a GPU that the other node says it has: two workers share it, and the cohort is divided among them."""
    monkeypatch.setattr("fedlab_runner.executors._ray.session.GPU", "cpu")
    with _cluster("1") as nodes:
        executor, half = ray(nodes.address, 1.0), ray(nodes.address, 0.5)
        expected = train(federation())

        def correct(g: torch.Tensor) -> torch.Tensor:
            (tmp_path / f"{os.getpid()}").touch()
            return g

        for each in (executor, half):
            for _ in range(3):
                result = train(federation(executor=each), correct=correct)
                assert all(torch.equal(mine, theirs) for mine, theirs in zip(result, expected, strict=True))
            assert each._session._ready.workers == 1  # a core each
            each._session.close()
        assert len(list(tmp_path.iterdir())) == 3  # this process and two workers, which last
        with pytest.raises(
            UserError, match=r"^executor.num_gpus is 2, but no node of the Ray cluster has so many GPUs$"
        ):
            train(federation(executor=ray(nodes.address, 2.0)))


def test_a_node_that_lacks_a_module_is_one_line(shared: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    lonely = ModuleType("lonely")  # in no file: only this process has it
    exec("def correct(g):\n    return g\n", lonely.__dict__)
    monkeypatch.setitem(sys.modules, "lonely", lonely)
    with pytest.raises(UserError, match=r"^a node of the Ray cluster lacks the module lonely: install this"):
        train(federation(executor=shared), correct=lonely.correct)
