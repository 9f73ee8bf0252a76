"""Whole runs in a folder: what they leave, how they continue, how they fail."""

import hashlib
import json
import logging
import os
import random
import shutil
import signal
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from fedlab_runner.algorithms import center
from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.algorithms.shared.averaging import Params
from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.analyses.none import NoAnalysis
from fedlab_runner.checkpoints.store import CheckpointStore
from fedlab_runner.config import build as config_build
from fedlab_runner.config.build import build, fingerprint
from fedlab_runner.core.client_state import ClientStateStore
from fedlab_runner.core.federation import Federation
from fedlab_runner.executors.loop import Loop
from fedlab_runner.experiment.loop import Simulation
from fedlab_runner.experiment.run import run_in, run_whole
from fedlab_runner.experiment.setup import prepare
from fedlab_runner.server_optimizers.sgd import ServerSGD
from fedlab_runner.tracking.recorder import Recorder, with_digest, write_summary
from fedlab_runner.utils import signals
from fedlab_runner.utils.errors import Diverged, Interrupted, UserError
from tests.helpers.composed import composed, files
from tests.helpers.kinds import by_kind
from tests.helpers.toy import ALGORITHMS, FEW_ROUNDS, SMALLER, tensors

EVERY = "evaluation.every=1"


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def final(folder: Path, *overrides: str) -> tuple[int, Any]:
    """What the newest checkpoint has, and the rows that it names; without what is no function of the config."""
    saved = CheckpointStore(folder, 2).load(fingerprint(composed(*overrides)))
    assert saved is not None
    round, payload = saved
    payload.pop("wall")
    clients = ClientStateStore(folder, torch.device("cpu"), read_only=True)
    clients.load_state_dict(payload["federation"].pop("client_state"))  # slots depend on when rows were written
    return round, clients.named(payload)


def assert_same_run(one: Path, other: Path, *overrides: str) -> None:
    assert files(one) == files(other)
    (round, payload), (other_round, other_payload) = final(one, EVERY, *overrides), final(other, EVERY, *overrides)
    assert round == other_round
    mine, theirs = tensors(payload), tensors(other_payload)
    assert len(mine) == len(theirs) and all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.pictures
def test_a_job_of_a_sweep_draws_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether W&B shows it or not. Its tables are there; the same run asked for pictures draws them, also when it has
    finished.
    """
    monkeypatch.setenv("FEDLAB_SWEEP_FOLDER", str(tmp_path / "sweep"))
    overrides = ("rounds=2", "algorithm=fedavg")
    assert not build(composed("logger=wandb")).logger.draws
    objective = run_in(tmp_path, composed(*overrides))
    assert not (tmp_path / "plots").exists() and (tmp_path / "partition.csv").exists()
    before = files(tmp_path)
    assert run_in(tmp_path, composed(*overrides, "logger.pictures=true")) == objective
    assert {"curves.png", "partition.png"} <= {path.name for path in (tmp_path / "plots").iterdir()}
    assert files(tmp_path) == before
    shutil.rmtree(tmp_path / "plots")
    monkeypatch.delenv("FEDLAB_SWEEP_FOLDER")
    assert run_in(tmp_path, composed(*overrides)) == objective and not (tmp_path / "plots").exists()
    run_in(tmp_path / "other", composed("rounds=1", "algorithm=fedavg", "logger.pictures=false"))
    assert not (tmp_path / "other" / "plots").exists()


@pytest.mark.pictures
def test_a_run_leaves_its_folder(tmp_path: Path) -> None:
    objective = run_in(
        tmp_path,
        composed("rounds=7", "evaluation.every=3", "evaluation.per_class=true", "evaluation.matrix=[server/train]"),
    )
    assert {path.name for path in tmp_path.iterdir()} >= {
        "metrics.jsonl",
        "timings.jsonl",
        "summary.json",
        "config.yaml",
        "checkpoints",
        "plots",
        "partition.csv",
        "clients.csv",
        "partition.md",
    }
    names = ("partition", "curves", "staleness", "coefficients", "matrix")
    pictures = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {path.name for path in (tmp_path / "plots").iterdir()} == pictures
    assert [row["round"] for row in rows(tmp_path)] == list(range(8))
    assert [row["round"] for row in rows(tmp_path) if "test/accuracy" in row] == [0, 3, 6, 7]
    assert {"train/loss", "late/in_flight", "comm/upload_mb", "comm/download_mb", "local/lr"} <= set(rows(tmp_path)[1])
    assert {"test/accuracy_class/0", "server/train"} <= set(rows(tmp_path)[3])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (
        summary["objective"]
        == objective
        == max(row["test/accuracy"] for row in rows(tmp_path)[1:] if "test/accuracy" in row)
    )


@pytest.mark.parametrize("executor", ["loop", "vectorized"])
def test_a_minibatch_that_nobody_can_fill_costs_nothing(executor: str, tmp_path: Path) -> None:
    """A billion examples, planned for as they are asked for, would be eight gigabytes of indices a step."""
    how = ("algorithm=fedavg", "server_data=none", "rounds=2", f"executor={executor}")
    largest = int(prepare(build(composed(*how))).simulation.fed.client_data.num_examples.max())
    for size in (largest, 10**9):
        run_in(tmp_path / str(size), composed(*how, f"local.batch_size={size}"))
    one, other = (rows(tmp_path / str(size)) for size in (largest, 10**9))
    assert one == other


@pytest.mark.parametrize("name", by_kind(ALGORITHMS))
def test_a_stopped_run_goes_on_to_the_same_bytes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped by a signal inside round 4's training, with clients in flight; the second half runs in another
    process's place.
    """
    overrides = (f"algorithm={name}", "rounds=6", EVERY, "delay.std=3", "server_data=in_domain", "server_data.size=60")
    overrides += tuple(f"algorithm.{key}={value}" for key, value in (FEW_ROUNDS | SMALLER).get(name, {}).items())
    overrides += ("executor=loop",)
    if name == "fedwalk":
        overrides += ("model=mlp", "server_data@auxiliary_data=in_domain", "auxiliary_data.size=60")
    if name in ("fedma", "gamf"):  # which match hidden neurons
        overrides += ("model=mlp", "model.hidden=[8]")
    run_in(tmp_path / "whole", composed(*overrides))
    train, batches = Loop.train, server_batches

    def stop(self: Loop, work: Any) -> Any:
        if work.round == 3:
            raise Interrupted(15)
        return train(self, work)

    def stop_server(fed: Federation, *args: Any, **how: Any) -> Any:
        if fed.round == 3:
            raise Interrupted(15)
        return batches(fed, *args, **how)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Loop, "train", stop)
        patch.setattr(center, "server_batches", stop_server)  # whose clients do not train
        run_in(tmp_path / "stopped", composed(*overrides))
    assert not (tmp_path / "stopped" / "summary.json").exists()
    assert final(tmp_path / "stopped", *overrides)[0] == 3, "the last whole round is checkpointed"
    run_in(tmp_path / "stopped", composed(*overrides))
    assert_same_run(tmp_path / "whole", tmp_path / "stopped", *overrides)


def test_what_draws_from_global_generators_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user's server step may. The generators of the caller are not moved."""
    step = FedAvg.server_step

    def drawing(self: FedAvg, state: Params, arrivals: Any, fed: Federation) -> Params:
        noise = torch.randn(()) + np.random.normal() + random.gauss(0, 1)
        return Params(step(self, state, arrivals, fed).params + 0.01 * noise)

    monkeypatch.setattr(FedAvg, "server_step", drawing)
    how = ("algorithm=fedavg", "server_data=none", EVERY)
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    run_in(tmp_path / "whole", composed(*how, "rounds=4"))
    for rounds in (2, 4):
        run_in(tmp_path / "parts", composed(*how, f"rounds={rounds}"))
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    numpys, pythons = np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    assert torch.equal(before[0], torch.random.get_rng_state()) and before[1:] == (numpys, pythons)


def test_a_run_that_is_stopped_before_its_first_evaluation_has_nothing_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = ("algorithm=fedavg", "rounds=2", EVERY, "executor=loop")

    def stop(*_: Any) -> Any:
        raise Interrupted(15)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Simulation, "_first_evaluation", stop)
        run_in(tmp_path / "stopped", composed(*overrides))
    assert "could not be saved" not in caplog.text
    run_in(tmp_path / "stopped", composed(*overrides))
    run_in(tmp_path / "whole", composed(*overrides))
    assert_same_run(tmp_path / "whole", tmp_path / "stopped", *overrides)


def test_a_signal_whose_exception_is_lost_stops_the_run_after_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Destructors and some callbacks of libraries print an exception and continue."""
    overrides = ("algorithm=fedavg", "rounds=9", EVERY, "executor=loop")
    train = Loop.train

    def swallow(self: Loop, work: Any) -> Any:
        if work.round == 4:
            with suppress(Interrupted):
                os.kill(os.getpid(), signal.SIGTERM)
        return train(self, work)

    with monkeypatch.context() as patch, signals.raised(), pytest.raises(Interrupted):
        patch.setattr(Loop, "train", swallow)
        run_in(tmp_path, composed(*overrides))
    assert final(tmp_path, *overrides)[0] == 5, "the round in which it came was whole"
    run_in(tmp_path, composed(*overrides))
    assert len(rows(tmp_path)) == 10, "a signal of before does not stop the next run"


@pytest.mark.parametrize("error", [False, True])
def test_what_comes_with_a_row_leaves_the_checkpoint_of_a_whole_round(
    error: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal waits for the end of the round; an error, as of a full disk, loses the round and not the run."""
    overrides = ("algorithm=fedavg", "rounds=6", EVERY, "executor=loop")
    log = Recorder.log

    def ending(self: Recorder, round: int, *more: Any) -> None:
        log(self, round, *more)
        if round == 4 and error:
            raise OSError
        if round == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch, signals.raised(), pytest.raises(OSError if error else Interrupted):
        patch.setattr(Recorder, "log", ending)
        run_in(tmp_path, composed(*overrides))
    assert final(tmp_path, *overrides)[0] == 4 - error and len(rows(tmp_path)) == 5
    run_in(tmp_path, composed(*overrides))
    assert [row["round"] for row in rows(tmp_path)] == list(range(7))


class Dying:
    def __init__(self, asks: bool) -> None:
        self.asks = asks

    def __del__(self) -> None:
        if self.asks:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("callback", [False, True])
def test_a_signal_that_comes_in_a_destructor_is_raised_again_at_once(
    callback: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python prints the exception of a destructor, or of a weak reference's callback, and continues."""
    dying = Dying(not callback)
    seen = weakref.ref(dying, lambda _: os.kill(os.getpid(), signal.SIGTERM)) if callback else None
    with signals.raised():
        del dying
        with pytest.raises(Interrupted):
            time.sleep(30)
    del seen
    signals.check()  # nothing is left of it
    assert capfd.readouterr() == ("", "")


def test_a_signal_that_comes_while_a_lost_one_is_looked_at_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it is raised again before the hook that found it has ended."""
    start, late = threading.Timer.start, list[bool]()

    def start_and_wait(timer: threading.Timer) -> None:
        start(timer)
        if not late:
            late.append(True)
            time.sleep(0.2)

    monkeypatch.setattr(threading.Timer, "start", start_and_wait)
    dying = Dying(True)
    with signals.raised():
        del dying
        with pytest.raises(Interrupted):
            time.sleep(30)
    assert late


def test_rounds_since_the_last_checkpoint_are_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill leaves metrics, half a line and clients' rows beyond the checkpoint: they are cut off and come back the
    same, and no row of the checkpoint was written over.
    """
    how = ("algorithm=ditto", "algorithm.store_on=disk", "server_data=none", "participation.cohort_size=12")
    how += ("delay=none", EVERY, "checkpoint.rounds=2", "checkpoint.seconds=null")
    run_in(tmp_path / "whole", composed("rounds=8", *how))
    folder, save = tmp_path / "killed", CheckpointStore.save
    run_in(folder, composed("rounds=2", *how))

    for last, count in ((2, 5), (6, 9)):  # the last checkpoint that is written, and the rows that are there

        def killed(self: CheckpointStore, round: int, *what: Any, last: int = last) -> Path:
            if round > last:
                raise OSError
            return save(self, round, *what)

        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(CheckpointStore, "save", killed)
            run_in(folder, composed("rounds=8", *how))
        lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(lines[:-1]) + lines[-1][:20])
        assert len(lines) == count
    run_in(folder, composed("rounds=8", *how))
    assert "damaged" not in caplog.text
    assert_same_run(tmp_path / "whole", folder, *how)


def test_more_rounds_continue_a_finished_run(tmp_path: Path) -> None:
    run_in(tmp_path / "whole", composed("rounds=8", EVERY))
    run_in(tmp_path / "longer", composed("rounds=3", EVERY))
    run_in(tmp_path / "longer", composed("rounds=8", EVERY))
    assert_same_run(tmp_path / "whole", tmp_path / "longer")


def test_a_finished_run_is_only_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    how = ("rounds=6", EVERY, "evaluation.target=0.2")
    first = run_in(tmp_path, composed(*how))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}
    with caplog.at_level(logging.INFO):
        again = run_in(tmp_path, composed(*how))
    assert again == first and "finished already" in caplog.text
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.name != ".lock"}


def test_a_finished_run_with_a_number_that_is_not_finite_is_read_too(tmp_path: Path) -> None:
    """And its summary, which does not fit the rows, is written again."""
    first = run_in(tmp_path, composed("rounds=2", EVERY))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"test/loss": None, "test/accuracy": None})
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    summary = json.loads((tmp_path / "summary.json").read_text())
    digest = hashlib.sha256((tmp_path / "metrics.jsonl").read_bytes()).hexdigest()
    write_summary(tmp_path, with_digest(summary, digest))
    assert run_in(tmp_path, composed("rounds=2", EVERY)) == first
    assert summary["mean_of_last"] is not None
    assert json.loads((tmp_path / "summary.json").read_text())["mean_of_last"] is None


def test_fewer_rounds_of_a_finished_run_give_what_they_gave(tmp_path: Path) -> None:
    """Also where the last one of them is no multiple of evaluation.every, and without the weights after it."""
    how = ("algorithm=fedavg", "server_data=none", "delay=none", "evaluation.every=2")
    how += ("evaluation.summary=mean_of_last", "evaluation.last=9")
    first, longer = (run_in(tmp_path, composed(f"rounds={rounds}", *how)) for rounds in (3, 6))
    assert run_in(tmp_path, composed("rounds=3", *how, "logger.save_model=true")) == first
    assert run_in(tmp_path, composed("rounds=6", *how)) == longer
    tested = {row["round"]: row["test/accuracy"] for row in rows(tmp_path) if "test/accuracy" in row}
    assert list(tested) == [0, 2, 3, 4, 6] and first == pytest.approx((tested[2] + tested[3]) / 2)
    assert longer == pytest.approx((tested[2] + tested[4] + tested[6]) / 3) and tested[3] != longer


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize("run", [run_in, run_whole])
@pytest.mark.parametrize("kept", [2, 0], ids=["checkpoints", "none"])
def test_a_folder_of_another_config_is_refused_by_key_and_left_as_it_is(run: Any, kept: int, tmp_path: Path) -> None:
    run_in(tmp_path, composed("rounds=2"))
    for checkpoint in sorted((tmp_path / "checkpoints").iterdir())[kept:]:
        checkpoint.unlink()
    before = contents(tmp_path)
    with pytest.raises(UserError, match=rf"local\.lr \(0\.05 there, 0\.1 here\): delete {tmp_path} to"):
        run(tmp_path, composed("rounds=2", "local.lr=0.1", "threads=2"))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("run", [run_in, run_whole])
def test_a_stopped_run_that_has_gone_further_is_refused_and_left_as_it_is(run: Any, tmp_path: Path) -> None:
    run_in(tmp_path, composed("rounds=3", EVERY))
    (tmp_path / "summary.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(UserError, match=rf"^rounds must be >= 3, got 2: the run in {tmp_path} has gone on so far"):
        run(tmp_path, composed("rounds=2", EVERY))
    assert contents(tmp_path) == before


def test_a_truncated_checkpoint_falls_back_to_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        run_in(folder, composed("rounds=6", EVERY, "checkpoint.rounds=2", "checkpoint.seconds=null"))
    newest = sorted((cut / "checkpoints").glob("*.pt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    (cut / "summary.json").unlink()
    run_in(cut, composed("rounds=6", EVERY, "checkpoint.rounds=2", "checkpoint.seconds=null"))
    assert f"{newest} is damaged" in caplog.text and "the run continues after round 4" in caplog.text
    assert_same_run(whole, cut)


def test_checkpoints_come_every_so_many_rounds(tmp_path: Path) -> None:
    run_in(tmp_path, composed("rounds=7", "checkpoint.rounds=3", "checkpoint.seconds=null", "checkpoint.keep=9"))
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*.pt")) == [
        f"round_{round:06d}.pt" for round in (3, 6, 7)
    ]


def test_a_diverged_run_names_its_round_and_keeps_the_last_good_one(tmp_path: Path) -> None:
    overrides = ("rounds=20", EVERY, "local.lr=1e38", "delay=none")
    with pytest.raises(Diverged, match=r"diverged in round \d+ .*local\.lr"):
        run_in(tmp_path, composed(*overrides))
    round, payload = final(tmp_path, *overrides)
    assert len(rows(tmp_path)) == round + 1
    assert all(torch.isfinite(t).all() for t in tensors(payload["state"]))
    assert not (tmp_path / "summary.json").exists()


def test_an_algorithm_that_writes_into_its_state_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FedAvg.server_step

    def writing(self: FedAvg, state: Params, arrivals: Any, fed: Federation) -> Params:
        state.params[:2].copy_(step(self, state, arrivals, fed).params[:2])  # through a view
        return state

    monkeypatch.setattr(FedAvg, "server_step", writing)
    with pytest.raises(UserError, match=r"^FedAvg\.round writes into its State"):
        run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", "rounds=2"))
    assert not CheckpointStore(tmp_path, 2).rounds()


@pytest.mark.parametrize("stopped", [False, True])
def test_an_optimiser_that_writes_into_the_model_leaves_no_checkpoint(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor if Ctrl-C comes then; and no algorithm is blamed for it."""

    def step(self: ServerSGD, x: torch.Tensor, delta: torch.Tensor, moments: Any, t: int) -> Any:
        x.add_(delta)
        if stopped:
            raise Interrupted(signal.SIGINT)
        return x, moments

    monkeypatch.setattr(ServerSGD, "step", step)
    with pytest.raises(UserError, match=r"^ServerSGD\.step writes into x or the moments"):
        run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", "server_optimizer=sgd", "rounds=2"))
    assert not CheckpointStore(tmp_path, 2).rounds()


@pytest.mark.parametrize("rounds", [1, 2])
def test_an_analysis_that_writes_leaves_no_checkpoint_of_the_round(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has its memory from the first round on, or writes into the State."""

    def observe(self: NoAnalysis, memory: Any, state: Params, algorithm: Any, fed: Federation) -> Any:
        if rounds == 1:
            state.params.add_(1)
        elif fed.round:
            memory["n"].add_(1)
        return memory or {"n": torch.zeros(1)}, {}

    monkeypatch.setattr(NoAnalysis, "init", lambda self: {})
    monkeypatch.setattr(NoAnalysis, "observe", observe)
    with pytest.raises(UserError, match=r"^NoAnalysis\.observe writes into its memory or the State"):
        run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", "rounds=3"))
    assert not CheckpointStore(tmp_path, 2).rounds()


def test_an_analysis_that_fails_on_the_memory_of_a_checkpoint_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its code has changed since."""
    fedavg = ("algorithm=fedavg", "server_data=none", "checkpoint.same_code=false")
    run_in(tmp_path, composed(*fedavg, "rounds=1"))
    monkeypatch.setattr(NoAnalysis, "observe", lambda self, memory, *how: (memory.seen, {}))
    with pytest.raises(UserError, match=r"^the checkpoint after round 1 cannot be continued: .*AttributeError: "):
        run_in(tmp_path, composed(*fedavg, "rounds=2"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda x: x.double(), r"as params of the State .*, torch float32 \[650\] .*, got torch float64 \[650\] "),
        (lambda x: x[:10], r"as params of the State .*, torch float32 \[650\] .*, got torch float32 \[10\] "),
        (lambda x: Params(x), "a State with the fields, types and sizes"),
        (lambda x: None, "a State with the fields, types and sizes"),
        (lambda x: x.clone().requires_grad_() * 2, "a State of tensors without a gradient's history"),
    ],
    ids=["type", "size", "nested", "none", "gradient"],
)
def test_a_state_that_no_run_could_continue_from_ends_the_first_round(
    changed: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = FedAvg.server_step
    changing = lambda self, *how: Params(changed(step(self, *how).params))  # noqa: E731
    monkeypatch.setattr(FedAvg, "server_step", changing)
    monkeypatch.setattr(FedAvg, "cached", lambda self, state: 0)
    monkeypatch.setattr(Federation, "optimized", lambda self, before, after: after)
    with pytest.raises(UserError, match=rf"^FedAvg.round must give {words}"):
        run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", "rounds=2"))


class Listed(NamedTuple):
    params: torch.Tensor
    past: list[Any]


@pytest.mark.parametrize("delay", ["none", "constant"])
def test_a_state_with_namedtuples_that_no_field_names_ends_the_first_round_with_arrivals(
    delay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: FedAvg, state: Listed, arrivals: Any, fed: Federation) -> Listed:
        return state._replace(past=[Params(state.params)]) if len(arrivals) else state

    monkeypatch.setattr(FedAvg, "init", lambda self, fed: Listed(fed.family.init(fed.seed), []))
    monkeypatch.setattr(FedAvg, "server_step", step)
    for rounds in (2, 3):  # and where the run goes on from a checkpoint that no update had reached
        with pytest.raises(UserError, match=r"^FedAvg.round must give a State whose fields name the NamedTuples in"):
            run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", f"rounds={rounds}", f"delay={delay}"))


@pytest.mark.parametrize("given", [lambda rows: rows, lambda rows: {"rows": rows}, lambda rows: (rows[:1],)])
def test_what_clients_send_has_a_row_for_each(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = FedAvg.client_update
    monkeypatch.setattr(FedAvg, "client_update", lambda self, *how: given(update(self, *how)[0]))
    with pytest.raises(UserError, match=r"^FedAvg.client_update must give a NamedTuple of tensors \[\d+, ...\], got"):
        run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", "rounds=2"))


def test_known_fields_are_those_of_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "known", ("row",))
    with pytest.raises(UserError, match=r"^FedAvg.known must give fields of Update, got \['row'\]$"):
        run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", "rounds=2"))


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("server_optimizer=adam", "server_optimizer would do nothing, because FedAvg.round .*: call it, or set"),
        (
            "aggregator=median",
            "aggregator would do nothing, because the server's step of FedAvg takes no arrivals.mean",
        ),
        (
            "aggregator.sum_every=2",
            "aggregator would do nothing, because the server's step of FedAvg takes no arrivals.mean",
        ),
    ],
)
def test_an_own_step_passes_by_neither_aggregator_nor_server_optimiser(
    override: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: FedAvg, state: Params, arrivals: Any, fed: Federation) -> Params:
        return Params(state.params + arrivals.upload.rows.mean(0)) if len(arrivals) else state

    def whole(self: FedAvg, state: Params, fed: Federation) -> Params:
        cohort = fed.start_cohort(self.broadcast(state))
        return self.server_step(state, fed.deliver(cohort, partial(self.client_update, state)), fed)

    monkeypatch.setattr(FedAvg, "server_step", step)
    monkeypatch.setattr(FedAvg, "round", whole)
    run_in(tmp_path / "plain", composed("algorithm=fedavg", "server_data=none", "rounds=2", "delay=none"))
    with pytest.raises(UserError, match=f"^{line}"):
        run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", "rounds=2", "delay=none", override))


def test_a_state_that_no_checkpoint_can_hold_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counted(NamedTuple):
        params: torch.Tensor
        counts: np.ndarray

    monkeypatch.setattr(FedAvg, "init", lambda self, fed: Counted(fed.family.init(fed.seed), np.zeros(3)))
    with pytest.raises(
        UserError, match=r"^counts in the State that FedAvg.init gives must hold tensors, .* not numpy\.ndarray"
    ):
        run_in(tmp_path, composed("algorithm=fedavg", "server_data=none", "rounds=2"))


def test_label_noise_and_precision_reach_the_run(tmp_path: Path) -> None:
    clean = run_in(tmp_path / "clean", composed("rounds=10", "delay=none", "algorithm=fedavg", "precision=float64"))
    noisy = run_in(tmp_path / "noisy", composed("rounds=10", "delay=none", "algorithm=fedavg", "label_noise=1.0"))
    rounded = run_in(tmp_path / "rounded", composed("rounds=2", "precision=bfloat16"))
    assert noisy < clean - 0.2 and 0 <= rounded <= 1
    states = final(tmp_path / "clean", "precision=float64", "rounds=10", "delay=none", "algorithm=fedavg")[1]["state"]
    assert tensors(states)[0].dtype == torch.float64


def test_clients_without_examples_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    overrides = ["partition=dirichlet_unbounded", "partition.alpha=0.05", "num_clients=60", "rounds=2"]
    run_in(tmp_path / "dropped", composed(*overrides))
    assert "clients got no examples: the run leaves them out (" in caplog.text
    dropped = len((tmp_path / "dropped" / "partition.csv").read_text().splitlines()) - 1
    run_in(tmp_path / "kept", composed(*overrides, "drop_empty=false"))
    assert dropped < 60 and len((tmp_path / "kept" / "partition.csv").read_text().splitlines()) - 1 == 60


def test_methods_with_and_without_server_data_can_share_a_test_set() -> None:
    """The examples held out are those that in-domain server data takes, and more of them include the fewer."""

    def test_set(*overrides: str) -> set[bytes]:
        fed = prepare(config_build.build(composed("dataset=synthetic", "algorithm=fedavg", *overrides))).simulation
        return {example.numpy().tobytes() for example in fed.test.inputs}

    whole = test_set("server_data=none")
    without = test_set("server_data=none", "evaluation.held_out=100")
    assert len(without) == len(whole) - 100 and without < whole
    assert without == test_set("server_data=in_domain", "server_data.size=100")
    assert without == test_set("server_data=in_domain", "server_data.size=40", "evaluation.held_out=100")
    assert test_set("server_data=in_domain", "server_data.size=140", "evaluation.held_out=100") < without
    with pytest.raises(UserError, match=r"^evaluation\.held_out must be less than the test set's 500"):
        test_set("server_data=none", "evaluation.held_out=500")


@pytest.mark.parametrize("held_out", [0, 30, 60, 150])
def test_no_example_of_the_test_set_is_the_servers(held_out: int) -> None:
    """Several sets of the server are disjoint too, and share a test set with methods that have none of them."""
    taking = [f"server_data{node}=in_domain" for node in ("", "@auxiliary_data", "@probe_data")]
    taking += ["server_data.size=40", "auxiliary_data.size=35", "probe_data.size=25"]
    common = ("dataset=synthetic", "algorithm=fedavg")
    most = max(held_out, 100)
    simulation = prepare(build(composed(*common, *taking, f"evaluation.held_out={held_out}"))).simulation
    other = prepare(build(composed(*common, "server_data=none", f"evaluation.held_out={most}"))).simulation
    fed = simulation.fed
    sets = [
        {row.numpy().tobytes() for row in each.inputs}
        for each in (simulation.test, fed.server_data, fed.auxiliary_data, fed.probe_data, other.test)
        if each is not None
    ]
    assert [len(each) for each in sets] == [500 - most, 40, 35, 25, 500 - most]
    assert len(set().union(*sets[:4])) == sum(map(len, sets[:4])) and sets[0] == sets[4]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=resnet18", "local.batch_size=1"], r"^local\.batch_size must be > 1 for a model with batch norm"),
        (["num_clients=5000"], r"^num_clients"),
        (["executor=cuda_graph"], r"^executor=cuda_graph needs a GPU"),
        (["partition=natural"], r"^partition=natural needs"),
        (["dataset=fashion_mnist", "dataset.root=/nowhere"], r"/nowhere"),
        (["dataset=synthetic", "dataset.features=6", "model=cnn_small"], r"^model must take vectors"),
        (["evaluation.metric=test/acc"], r"^evaluation\.metric must be one of test/accuracy, test/loss, got test/acc$"),
        (["delay=from_file", "delay.path=/nowhere.csv"], r"^delay\.path"),
        (["model=timm", "model.name=resnet1000"], r"^model\.name .*resnet"),
        (["participation.cohort_size=50"], r"^participation\.cohort_size"),
        (
            [
                "partition=dirichlet_unbounded",
                "partition.alpha=0.001",
                "num_clients=60",
                "participation.cohort_size=60",
            ],
            r"^participation\.",
        ),
    ],
)
def test_what_does_not_fit_the_data_is_one_line_before_training(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as error:
        run_in(tmp_path, composed(*overrides))
    assert "\n" not in str(error.value) and not ((tmp_path / "metrics.jsonl").exists() and rows(tmp_path))


def test_the_default_experiment_runs_a_round(tmp_path: Path) -> None:
    objective = run_in(tmp_path, composed("rounds=1", "logger=none", small=False))
    assert 0 <= objective <= 1
