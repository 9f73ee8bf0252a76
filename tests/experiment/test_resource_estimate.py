"""What a run will take is said before its first round; one that cannot fit is refused with the remedy."""

import gc
import logging
import re
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.gpu_check import memory
from benchmarks.gpu_check.finding import Setting
from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.footprint import models_at_once
from fedlab_runner.core.round_cost import local_operations
from fedlab_runner.evaluation import scoring
from fedlab_runner.executors._fork import buffers
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment import resource_estimate
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils.durations import duration
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.kinds import in_turns
from tests.helpers.peak import peak_bytes
from tests.helpers.toy import (
    ALGORITHMS,
    FEATURES,
    RAGGED,
    aggregator,
    algorithm,
    default_home,
    federation,
    few_rounds,
    local,
    run,
)

N = len(RAGGED)
SIDE_BY_SIDE = Vectorized(None, compile=False)
QUICK: dict[str, dict[str, Any]] = {"fedcda": {"warmup": 2}, "gamf": {"max_iterations": 3}}
LAYERWISE = {"layerwise": True, "late_policy": "discard"}


def needs(name: str, how: Any = None, rounds: int = 10, **overrides: Any) -> dict[str, float]:
    """The bytes in memory, by what they are for."""
    fed, built = federation(**(how or {})), algorithm(name, **overrides)
    built.check(fed)
    found = resource_estimate._needs(built, fed, rounds)
    return {need.what: need.bytes for need in found if need.bytes and need.place != "disk"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_can_be_estimated(name: str, tmp_path: Path) -> None:
    fed, built = federation(cohort=4, std=1.0), algorithm(name)
    before = fed.state_dict()["clock"]["due"]
    assert resource_estimate.check_needs(built, fed, 10, tmp_path, 3).startswith("peak memory about ")
    assert bool((fed.state_dict()["clock"]["due"] == before).all()), "the clock was only asked"


def test_client_rows_count_where_they_lie_in_memory() -> None:
    family = federation().family
    rows = {"ca2fl": ("store_on", family.size), "scaffold": ("store_on", family.num_params)}
    for name, (field, values) in rows.items():
        assert needs(name)["the clients' rows (algorithm.store_on)"] == N * values * 8
        assert "the clients' rows (algorithm.store_on)" not in needs(name, **{field: "disk"})
    assert needs("ca2fl", {"cohort": 2}, rounds=3)["the clients' rows (algorithm.store_on)"] == 3 * 2 * family.size * 8
    assert needs("fedcda", {"cohort": 2}, rounds=3)["the clients' rows (algorithm.store_on)"] == 3 * 2 * family.size * 8
    assert needs("fedcda")["the clients' rows (algorithm.store_on)"] == algorithm("fedcda").memory * N * family.size * 8  # type: ignore[attr-defined]


def test_cohorts_late_updates_and_clients_in_training() -> None:
    model = federation().family.size * 8
    assert needs("fedavg")[f"the models of {N} clients"] == N * model
    assert needs("fedbe")[f"{N} updates that are merged"] == 4 * N * model, "while the server trains"
    late = needs("fedavg", {"std": 3.0})
    (flying,) = (int(what.split()[0]) for what, size in late.items() if "late updates" in what)
    assert 0 < flying <= N and late[f"{flying} late updates"] == flying * model
    for executor, clients in ((Vectorized(3, compile=False), 3), (Processes(2, Loop(compile=False)), 2)):
        assert needs("fedavg", {"executor": executor})[f"{clients} clients in training"] == 3 * clients * model
        more = algorithm("fedprox").step_copies
        assert (
            needs("fedprox", {"executor": executor})[f"{clients} clients in training"] == (3 + more) * clients * model
        )


def test_only_the_largest_part_of_a_round_counts() -> None:
    """What training needs is gone when the server trains or merges."""
    training, serving = "1 clients in training", "training on the server"
    assert serving in needs("center") and training not in needs("center")
    assert serving in needs("fedft") and training not in needs("fedft")
    together = needs("fedft", {"executor": SIDE_BY_SIDE})
    assert serving not in together and f"{N} clients in training" in together
    assert "comparing their neurons" in needs("gamf") and training not in needs("gamf")


def test_activations_are_counted_from_one_minibatch() -> None:
    """Of the small MLP: its input [8, 5], what tanh gives [8, 6], log-softmax [8, 3]; labels and few scalars."""
    fed = federation()
    least = 8 * (5 + 6 + 3) * 8
    assert least <= resource_estimate._saved_bytes(fed.family, fed) <= 2 * least


def wide() -> nn.Module:
    width = 260  # a model of more than vectorized.MAX_PLAIN_PARAMS
    return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))


@pytest.mark.parametrize(("name", "executor"), in_turns(ALGORITHMS, [Loop(compile=False), SIDE_BY_SIDE]))
def test_a_round_takes_what_was_estimated(name: str, executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is allocated in some rounds of models that are far larger than their activations, at the highest."""
    takes_what_was_estimated(name, executor, monkeypatch)


@pytest.mark.parametrize("sum_every", [1, 4])
@pytest.mark.parametrize("name", ["fedavg", "fednova"])
def test_sums_of_updates_are_estimated(name: str, sum_every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take less than the models of the whole cohort."""
    whole = takes_what_was_estimated(name, SIDE_BY_SIDE, monkeypatch)
    assert takes_what_was_estimated(name, SIDE_BY_SIDE, monkeypatch, sum_every) < whole


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each != "standalone")) for each in ALGORITHMS]
)
def test_a_whole_run_takes_what_was_estimated(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its evaluation, as `make gpu-check` measures it on a GPU."""
    as_torchs_memory(monkeypatch)
    monkeypatch.setattr(scoring, "MIN_ALONE_FLOPS", np.inf)  # a GPU evaluates models side by side
    few = (
        "dataset.num_train=240",
        "dataset.num_test=20",
        "local.epochs=1",
        "local.batch_size=4",
        "model.hidden=[128,64]",
    )
    checked, estimated = memory.run_and_estimate(tmp_path, Setting(torch.device("cpu"), tiny=False), name, *few)
    held = peak_bytes(checked.go)
    assert memory.LEAST * estimated < held < memory.MOST * estimated, f"{held / estimated:.2f} of the estimate"


def test_each_process_elsewhere_holds_a_part() -> None:
    class Three(Loop):
        def num_processes(self) -> int:
            return 3

        def carry_out(self, job: Any, clients: Any) -> Any: ...

    far, near = (
        federation(executor=kind(compile=False), rule=aggregator("mean", sum_every=2)) for kind in (Three, Loop)
    )
    assert [models_at_once(far, n) for n in (1, 5, 20)] == [1, 5, 6] and models_at_once(near, 20) == 2
    assert models_at_once(federation(), 20) == 20


def as_torchs_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that processes could share is torch's own, which is measured."""
    for blocks in (buffers.PRIVATE, buffers.ONE):
        monkeypatch.setattr(blocks, "take", lambda rows, columns, dtype: torch.empty(rows, columns, dtype=dtype))


def takes_what_was_estimated(
    name: str, executor: Executor, monkeypatch: pytest.MonkeyPatch, sum_every: int | None = None
) -> float:
    """The models that rounds hold at the highest, where the estimate is near."""
    as_torchs_memory(monkeypatch)
    cohort, rounds = 10, 6
    rule = aggregator("mean", sum_every=sum_every)
    how: dict[str, Any] = {"build": wide, "cohort": cohort, "std": 2.0, "executor": executor, "rule": rule}
    fed = federation(
        [8, 9] * 10, training=local(epochs=1), **how
    )  # one or two steps, so that a chunk has another order
    built = few_rounds(name, **QUICK.get(name, {}))
    built.check(fed)
    model = fed.family.size * 8
    asked = [need for need in resource_estimate._needs(built, fed, rounds) if need.place != "disk"]
    estimated = sum(need.bytes for need in asked) / model
    held = peak_bytes(lambda: run(built, fed, rounds)) / model
    assert 0.85 * estimated < held < 1.15 * estimated, f"{held:.1f} models, estimated {estimated:.1f}"
    return held


def test_own_models_count_once_clients_have_taken_part() -> None:
    model, few = federation().family.size * 8, {"cohort": 2}
    rows, last = "the clients' rows (algorithm.store_on)", "the models in the last matching"
    assert needs("standalone")[rows] == needs("heterofl", few)[rows] == N * model
    assert needs("dfml", few)[rows] == 2 * N * model
    assert needs("heterofl", few, rounds=2)[rows] == 2 * 3 * model, "the senders and the aggregator"
    assert needs("def_kt", few, rounds=1)[rows] == 4 * model and needs("dpsgd", few, rounds=2)[rows] == 4 * model
    shared = int((1 + 1 / 2 + 1 / 3) / 3 * N * model / 8) * 8
    assert needs("dec_fedavg", few)[rows] == shared, "those that met have one row until they meet again"
    assert rows not in needs("dec_fedavg", few, store_on="disk")
    assert last not in needs("fedma") and needs("fedma", {"cohort": 3}, **LAYERWISE)[last] == 3 * model
    assert rows not in needs("hyfem") and needs("hyfem", keep_own=True)[rows] == N * model


def test_it_leaves_nothing_behind() -> None:
    """Autograd's graph of the minibatch that was looked at is gone with the model."""
    fed = federation()
    layer = weakref.ref(next(fed.family.module.parameters()))
    resource_estimate._saved_bytes(fed.family, fed)
    del fed
    gc.collect()
    assert layer() is None


def test_a_gpu_has_its_own_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client rows on the host do not count there. Nobody computes on the device: it only has another name."""
    monkeypatch.setattr(resource_estimate, "MIN_REFUSED_BYTES", 0)
    monkeypatch.setattr(resource_estimate, "gpu_bytes", lambda device: (10**9, 2 * 10**9))
    monkeypatch.setattr(resource_estimate, "_saved_bytes", lambda family, fed: 1000)
    fed = federation()
    fed.family.device = torch.device("cuda:1")
    said = resource_estimate.check_needs(algorithm("ca2fl", store_on="host"), fed, 10, Path(), 3)
    of_host, of_gpu = said.split("; ")
    assert of_host.startswith("peak memory about ") and of_gpu == "peak memory of the GPU about 1.5 GB (2.0 GB free)"
    table = N * fed.family.size * 8
    found = {place: algorithm("ca2fl", store_on=place) for place in ("device", "host")}
    on_host = {
        place: sum(n.bytes for n in resource_estimate._needs(each, fed, 10) if n.place == "host")
        for place, each in found.items()
    }
    assert on_host == {"device": 0, "host": 2 * table}, "a round makes all rows anew"
    monkeypatch.setattr(resource_estimate, "gpu_bytes", lambda device: (10**9, 1000))
    with pytest.raises(UserError, match=r"^the run needs 0\.0 GB more of the GPU \(.*, and 0\.0 GB are free: "):
        resource_estimate.check_needs(found["device"], fed, 10, Path(), 3)


def test_a_run_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_estimate, "MIN_REFUSED_BYTES", 0)
    monkeypatch.setattr(resource_estimate, "memory_bytes", lambda: 1000)
    fed = federation()
    with pytest.raises(UserError) as refused:
        resource_estimate.check_needs(algorithm("ca2fl"), fed, 10, Path(), 3)
    line = str(refused.value)
    assert line.startswith("the run needs 0.0 GB more (") and "0.0 GB are free" in line and "\n" not in line
    assert "set algorithm.store_on=disk" in line and "lower participation.cohort_size" in line
    for sum_every, way in (
        (None, "lower participation.cohort_size or set aggregator.sum_every"),
        (2, "lower aggregator.sum_every"),
    ):
        summed = federation(rule=aggregator("mean", sum_every=sum_every))
        with pytest.raises(UserError, match=rf"are free: ([^;]*; or )*{way}"):
            resource_estimate.check_needs(algorithm("fedavg"), summed, 10, Path(), 3)
    monkeypatch.setattr(resource_estimate, "memory_bytes", lambda: None)
    resource_estimate.check_needs(algorithm("ca2fl"), fed, 10, Path(), 3)


def bytes_on_disk(folder: Path) -> float:
    """Of the rows, and of the checkpoints while a third one is written beside two."""
    size = {
        name: sum(path.stat().st_blocks * 512 for path in folder.glob(f"{name}/*"))
        for name in ("checkpoints", "client_state")
    }
    return 3 / 2 * size["checkpoints"] + size["client_state"]


@pytest.mark.parametrize(
    "choice",
    ["fedavg", "fedbuff algorithm.buffer_size=3", "feddle"]
    + [
        f"{name} algorithm.store_on={place}"
        for name in ("fedcda", "ca2fl", "dec_fedavg", "heterofl")
        for place in ("device", "disk")
    ],
)
def test_the_disk_takes_what_was_estimated(
    choice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints with all that the State holds, or rows in a file beside smaller checkpoints."""
    monkeypatch.setattr(resource_estimate, "MIN_REPORTED_DISK_BYTES", 0)
    caplog.set_level(logging.INFO)
    decentralized = choice.startswith(("dec_", "heterofl"))
    overrides = [
        f"algorithm={choice.split()[0]}",
        *choice.split()[1:],
        f"delay={'none' if decentralized else 'half_normal'}",
    ]
    overrides += ["rounds=12", "num_clients=20", "participation.cohort_size=5", "executor=loop", "checkpoint.keep=2"]
    overrides += ["model=mlp", "model.hidden=[300]", "evaluation.every=12"]
    cfg = composed(*overrides)
    cfg.checkpoint.seconds, cfg.checkpoint.rounds = None, 4
    run_in(tmp_path, cfg)
    (said,) = re.findall(r"; disk about (\S+) GB \(\d+\.\d GB free\)", caplog.text)
    share = bytes_on_disk(tmp_path) / (float(said) * 1e9)
    assert 0.5 < share < 1.5, f"{share:.2f} of what was estimated"


def test_a_run_that_the_disk_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource_estimate, "MIN_REFUSED_BYTES", 0)
    free, fed = 1000, federation()
    monkeypatch.setattr(resource_estimate, "free_disk_bytes", lambda folder: free)
    with pytest.raises(UserError) as refused:
        resource_estimate.check_needs(algorithm("ca2fl", store_on="disk"), fed, 10, tmp_path, 3)
    line = str(refused.value)
    assert line.startswith("the run needs 0.0 GB more on disk (") and "0.0 GB are free" in line and "\n" not in line
    assert "the clients' rows (algorithm.store_on)" in line and "lower checkpoint.keep" in line
    (tmp_path / "client_state").mkdir()
    (tmp_path / "client_state" / "rows").write_bytes(bytes(10**6))
    resource_estimate.check_needs(algorithm("ca2fl", store_on="disk"), fed, 10, tmp_path, 3)  # a run that continues


def test_it_is_said_before_the_first_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    overrides = ("algorithm=fedavg", "executor=loop", "evaluation.every=1")
    run_in(tmp_path, composed(*overrides, "rounds=2"))
    assert re.search(
        "2 rounds are left: one after another, clients and server compute for .* s; evaluation less than 1 s; ",
        caplog.text,
    )
    assert not re.search(r"\b0 s\b", caplog.text), "no promise of no time at all"
    caplog.clear()
    run_in(tmp_path, composed(*overrides, "rounds=3"))
    assert "1 round is left" in caplog.text


def passing(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that lets seconds pass for the run's clock."""
    passed: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(passed))
    monkeypatch.setattr("fedlab_runner.experiment.loop.time", clock)
    return passed.append


def test_what_rounds_take_is_said_when_one_has_shown_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    overrides = ("algorithm=fedavg", "model=logistic", "executor=loop", "evaluation.every=2")
    run_in(tmp_path / "short", composed(*overrides, "rounds=4"))
    assert "that are left" not in caplog.text, "seconds are not worth a line"
    monkeypatch.setattr("fedlab_runner.experiment.loop.MIN_REPORTED_SECONDS", 0.0)
    run_in(tmp_path / "long", composed(*overrides, "rounds=5"))
    assert re.search(r"round 1 took .* s: at most .* s for the 4 that are left", caplog.text)
    assert re.search(r"round 2 took .* s: (?!at most).* s for the 3 that are left", caplog.text)
    train, pass_seconds = Loop.train, passing(monkeypatch)

    def slow(self: Loop, work: Any) -> Any:
        pass_seconds(1.2 if work.round < 2 else 0.0)
        return train(self, work)

    monkeypatch.setattr(Loop, "train", slow)
    run_in(tmp_path / "slow", composed(*overrides, "rounds=4"))
    assert re.search(r"round 2 took 1 s: [23] s for the 2 that are left", caplog.text)


def test_what_an_algorithm_does_beside_local_training_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that no count of operations sees: the first round tells."""
    step = FedAvg.server_step

    seconds, pass_seconds = iter([1.5, 0.0, 0.0]), passing(monkeypatch)

    def slow(self: FedAvg, *how: Any) -> Any:
        pass_seconds(next(seconds))
        return step(self, *how)

    monkeypatch.setattr(FedAvg, "server_step", slow)
    monkeypatch.setattr("fedlab_runner.experiment.loop.MIN_REPORTED_SECONDS", 2.0)
    caplog.set_level(logging.INFO)
    run_in(tmp_path, composed("algorithm=fedavg", "executor=loop", "evaluation.every=3", "rounds=3"))
    assert re.search(r"round 1 took [2-9] s: at most [3-9] s for the 2 that are left", caplog.text)


def test_it_changes_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in(tmp_path / "with", composed("algorithm=fedavg", "rounds=2", "executor=loop"))
    monkeypatch.setattr("fedlab_runner.experiment.loop.seconds_a_round", lambda algorithm, fed: 0.0)
    monkeypatch.setattr("fedlab_runner.experiment.loop.check_needs", lambda *_: "")
    run_in(tmp_path / "without", composed("algorithm=fedavg", "rounds=2", "executor=loop"))
    assert (tmp_path / "with" / "metrics.jsonl").read_bytes() == (tmp_path / "without" / "metrics.jsonl").read_bytes()


def test_durations() -> None:
    assert [duration(s) for s in (0.0, 0.99, 1, 3, 99, 100, 7000, 7200)] == [
        "less than 1 s",
        "less than 1 s",
        "1 s",
        "3 s",
        "99 s",
        "2 min",
        "117 min",
        "2.0 h",
    ]


UNKNOWN = {"gamf"}  # what its matching costs nobody knows before it was done
# The estimate over what a run of the toy counts beside adding up the updates, where it is not 1: it leaves out what is
# small beside training in models that are not toys, such as a generator or the mean of a few models.
RATIOS = {"dec_fedavg": 0.994, "dec_fedprox": 0.994, "def_kt": 0.998, "dfml": 1.017, "dpsgd": 0.970, "fedala": 1.150}
RATIOS |= {"fedbabu": 1.188, "federated_dropout": 0.994, "fedgen": 0.559, "fedma": 0.750}
RATIOS |= {"fedrep": 0.714, "fedrolex": 0.994, "fedwalk": 0.900, "fml": 0.963, "heterofl": 0.994, "qfedavg": 0.964}
MORE: list[tuple[str, dict[str, Any], float]] = [  # other fields of an algorithm
    ("apfl", {"adaptive": True}, 1.0),
    ("dfml", {"mutual": False}, 1.206),
    ("fedcda", {"strategy": "newest"}, 1.0),
    ("fedcda", {"strategy": "optimal"}, 1.0),
    ("feddf", {"cache_teachers": False}, 1.0),
    ("fedft", {"max_steps": 2}, 1.174),
    ("fedlaw", {"max_steps": 2}, 1.0),
    ("fedwalk", {"unit": "step", "steps": 2}, 0.897),
    ("perfedavg", {"variant": "hessian_free"}, 1.0),
    ("scaffold", {"option": 1}, 1.0),
]


@pytest.mark.parametrize(
    ("name", "changes", "ratio"),
    [*((name, {}, RATIOS.get(name, 1.0)) for name in ALGORITHMS if name not in UNKNOWN), *MORE],
    ids=str,
)
def test_the_operations_of_a_round_are_known_before(name: str, changes: dict[str, Any], ratio: float) -> None:
    """They are those of a round of clients with as many examples each, in which all take part and nobody is late."""
    how = few_rounds(name, **changes)
    clients = 9 if how.decentralized and name != "def_kt" else 8  # one aggregates, or as many receive as send
    senders = 4 if how.decentralized else clients
    fed = federation([8] * clients, cohort=senders, training=local(epochs=2), home=default_home(name))
    state = how.init(fed)
    for round in range(3):  # a client does all that its method has from its third round on
        fed.begin(round, 1.0)
        state = how.round(state, fed)
    told = fed.collect()
    counted = 1e9 * (told.get("cost/client_gflops", 0.0) + told.get("cost/server_gflops", 0.0))
    added = 2 * told.get("comm/upload_mb", 0.0) * 1e6 / 4
    assert how.operations(fed, local_operations(fed)) / (counted - added) == pytest.approx(ratio, abs=1e-3)
