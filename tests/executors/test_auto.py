"""`executor=auto`: what it takes on a CPU whatever the load, and that a run continues with what it began with."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import workloads
from fedlab_runner.config import build as config_build
from fedlab_runner.core.work import Work
from fedlab_runner.executors import _run_notes, auto
from fedlab_runner.executors._autotune import rule
from fedlab_runner.executors._autotune.measure import agrees, measure, sample
from fedlab_runner.executors._autotune.ways import WAYS, Way, fitting
from fedlab_runner.executors.auto import EXECUTORS, PROCESSES, Auto
from fedlab_runner.executors.graphs import has_compiler
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils import checksummed_json, system
from tests.executors.test_contract import dropping
from tests.helpers.composed import composed, files
from tests.helpers.toy import CLASSES, FEATURES, RAGGED, federation, local, mlp, normed
from tests.helpers.work import work_of

SHARED, WHOLE = "processes", "vectorized executor.chunk_size=null"
CHUNKS = "processes +executor@executor.inner=vectorized"
SHORT = Auto(seconds=1e9, workers=2, compile=True)  # every run is short to it


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@contextmanager
def busy() -> Iterator[None]:
    """Beside as many processes at work as there are cores."""
    program = "while True: sum(range(10000))"
    found = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(system.machine_cores())]
    try:
        yield
    finally:
        for each in found:
            each.kill()
            each.wait()


def chosen(folder: Path) -> list[str]:
    found: dict[str, str] = _run_notes.noted(folder)[EXECUTORS]
    return list(found.values())


def wide(width: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, CLASSES))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 8, FEATURES), nn.Flatten(), nn.Linear(8, CLASSES))


def pictures(*norm: nn.Module) -> nn.Module:
    """Convolutions whose operations take milliseconds."""
    layers = (nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 256, 5, padding=2), nn.Conv1d(256, 256, 5, padding=2))
    return nn.Sequential(*layers, *norm, nn.Flatten(), nn.Linear(256 * FEATURES, CLASSES))


def by_rule(work: Work, rounds: int, cores: int = 2, threads: int = 1, compile: bool = False) -> str:
    way, _ = rule.best(work, fitting(work, compile=compile), rounds, cores, threads)
    return way.words


def test_the_rule_looks_at_the_model() -> None:
    cohort = (20,) * 50
    for threads in (1, 8):
        assert by_rule(work_of(federation(cohort)), 100, threads=threads) == WHOLE, "small models: all in one call"
    assert by_rule(work_of(federation(cohort, build=wide(30_000))), 100) == SHARED, "large ones: one by one"
    assert by_rule(work_of(federation(cohort, build=pictures)), 100) == SHARED
    assert by_rule(work_of(federation((20,), build=pictures)), 100, threads=8) == "loop", "one client has all threads"
    assert by_rule(work_of(federation((20,), build=mlp)), 100, threads=8) == SHARED, "small steps are slower with them"
    assert by_rule(work_of(federation((20, 20), build=pictures)), 100, cores=16, threads=8) == "loop"
    for build in (dropping, pictures):
        each = fitting(work_of(federation(build=build)), compile=True)
        assert all(way.chunk_size == 1 for way in each), "never side by side"


def test_few_steps_are_not_worth_a_fork() -> None:
    def workers(build: Callable[[], nn.Module], **how: Any) -> int:
        return rule.best(work_of(federation(build=build), **how), [Way(1, processes=True)], 10, 2, 1)[1]

    assert workers(mlp) == 2 and workers(mlp, correct=lambda g: g) == 1, "for new workers in each round"
    assert workers(mlp, per_step=lambda work, rows, step: ()) == 1
    assert workers(pictures, correct=lambda g: g) == 2
    nine = work_of(federation((20,) * 9, build=pictures))
    assert rule.best(nine, [Way(8, processes=True)], 10, 2, 1)[1] == 2, "a chunk of eight and one of one"


@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_steps_are_compiled_where_what_is_left_pays_for_it() -> None:
    fed = federation((20,) * 50)
    work, corrected = work_of(fed), work_of(fed, correct=lambda g: g)
    assert by_rule(work, 100, compile=True) == WHOLE
    assert by_rule(work, 100_000, compile=True) == f"{WHOLE} executor.compile=true"
    assert by_rule(work, 100_000) == by_rule(corrected, 100_000, compile=True) == WHOLE
    many = work_of(federation((20,) * 50, build=wide(30_000)))
    assert by_rule(many, 100_000, compile=True) == f"{SHARED} executor.inner.compile=true"
    for norm, more in (
        (nn.Identity(), " executor.inner.compile=true"),
        (nn.BatchNorm1d(256), ""),
        (nn.GroupNorm(8, 256), ""),
    ):
        of_pictures = work_of(federation((20,) * 50, build=lambda norm=norm: pictures(deepcopy(norm))))
        assert by_rule(of_pictures, 100_000, compile=True) == SHARED + more


@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_the_servers_steps_are_compiled_where_what_is_left_pays_for_it(tmp_path: Path) -> None:
    family, few, many = federation().family, (1, 1e6), (1, 1e11)  # steps a round, and their operations
    auto = Auto(seconds=30.0, workers=2, compile=True)
    run = auto.bind_run(tmp_path / "run", 1000)
    assert run.compiles(family, "64 x 5", *many, 0) and not run.compiles(family, "8 x 5", *few, 0)
    assert run.compiles(family, "16 x 5", 1000, 1e6, 0), "small ones, of which a round has many"
    assert not run.compiles(family, "32 x 5", *many, 999), "for a single round"
    assert not run.compiles(family, "24 x 5", 1, 1e9, 0), "50 s in all, of which compiled steps save few"
    copy = tmp_path / "copy"
    copy.mkdir()
    auto.adopt(tmp_path / "run" / _run_notes.NOTES_FILE, copy)
    for folder in (tmp_path / "run", copy):  # what is noted stays, in whatever round a run continues
        again = auto.bind_run(folder, 1000)
        assert again.compiles(family, "64 x 5", *few, 999) and not again.compiles(family, "8 x 5", *many, 0)
    assert [rule.compiling_pays(family, 1, 5e9, 1000, threads) for threads in (1, 8)] == [True, False]
    never = Auto(seconds=30.0, workers=2, compile=False)
    assert not never.bind_run(tmp_path / "other", 1000).compiles(family, "64 x 5", *many, 0)
    assert not auto.compiles(family, "64 x 5", *few, 0), "outside of a run"
    family.device = torch.device("cuda")
    assert not auto.bind_run(tmp_path / "gpu", 1000).compiles(family, "64 x 5", *many, 0)


def test_the_rule_counts_the_rounds_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []
    monkeypatch.setattr(rule, "best", lambda work, ways, rounds, *_: (left.append(rounds), (ways[0], 1))[1])
    work = replace(work_of(federation()), round=7)
    run = SHORT.bind_run(tmp_path, 10)
    run.train(work)
    run.train(replace(work, correct=lambda g: g))
    SHORT.train(work)
    assert left == [3, 3, 3, 3, 1, 1], "outside of a run the cohort's own"
    assert len(chosen(tmp_path)) == 2, "of each kind of work"


def test_short_runs_are_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(auto, "agrees", None)
    for build, name in ((mlp, WHOLE), (dropping, SHARED), (convolutional, SHARED)):
        SHORT.bind_run(tmp_path / build.__name__, 10).train(work_of(federation((9,) * 30, build=build)))
        assert chosen(tmp_path / build.__name__) == [name]
    assert not cache.exists()


def test_the_choice_and_the_bits_do_not_depend_on_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """With readings of a quiet machine, then beside busy processes and with readings of them."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    overrides = ("model=cnn_small", "local.epochs=null", "local.steps=3", "rounds=1", "algorithm=fedavg")

    def run(name: str, load: float) -> Path:
        monkeypatch.setattr(system, "_idle_ticks", lambda: 0 if load else 1e9)
        monkeypatch.setattr(system.os, "getloadavg", lambda: (load,) * 3)
        run_in(tmp_path / name, composed(*overrides, "executor=auto", "executor.seconds=0"))
        assert _run_notes.noted_count(tmp_path / name, "threads") == min(8, system.machine_cores())
        return tmp_path / name

    one = run("quiet", 0.0)
    with busy():
        other = run("busy", 64.0)
    assert files(one) == files(other)
    assert (one / "executor.json").read_bytes() == (other / "executor.json").read_bytes()
    assert not (cache / "fedlab" / "executors").exists(), "nothing is measured"


def test_busy_cores_are_seen() -> None:
    with busy():
        assert system.busy_cores(0.3) > 0.5 * len(os.sched_getaffinity(0))


def test_what_does_not_agree_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def agree(work: Work, name: str, *_: Any) -> bool:
        tried.append(name)
        return False

    monkeypatch.setattr(auto, "agrees", agree)
    work = work_of(federation((20,) * 50))
    Auto(0.0, 2, compile=False).bind_run(tmp_path, 10).train(work)
    assert tried == [WHOLE, CHUNKS] and chosen(tmp_path) == [SHARED]


def test_the_training_that_is_left_decides_whether_it_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(auto, "agrees", lambda work, name, *_: [tried.append(name)] != [])
    monkeypatch.setattr(rule, "seconds_a_round", lambda work, way, *_: 1.0 if way.words == WHOLE else 9.0)
    work = work_of(federation((20,) * 50))
    for rounds, names in ((4, []), (5, [WHOLE])):
        Auto(5.0, 2, compile=False).bind_run(tmp_path / str(rounds), rounds).train(work)
        assert tried == names


def test_long_runs_say_what_is_chosen_and_no_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Auto(0.0, 2, compile=False).bind_run(tmp_path, 10).train(work_of(federation((20,) * 50)))
    assert caplog.messages == [f"local training with executor={WHOLE}"], "the rule's seconds are no estimate of a run"
    caplog.clear()
    SHORT.bind_run(tmp_path / "short", 10).train(work_of(federation()))
    assert not caplog.records


def test_steps_are_recorded_on_a_gpu_alone_and_never_with_dropout() -> None:
    def recorded(build: Any, device: str) -> set[str]:
        work = work_of(federation((9,) * 30, build=build))
        work.family.device = torch.device(device)
        return {way.words for way in fitting(work, compile=False) if way.recorded}

    assert (
        recorded(mlp, "cuda")
        == recorded(normed, "cuda")
        == {
            "cuda_graph executor.chunk_size=1",
            "cuda_graph executor.chunk_size=null",
        }
    )
    assert recorded(dropping, "cuda") == recorded(mlp, "cpu") == set()


def test_cohorts_of_many_values_do_not_train_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_of(federation((9,) * 30))
    for most, whole in ((30 * work.family.size, True), (30 * work.family.size - 1, False)):
        monkeypatch.setattr("fedlab_runner.executors._autotune.ways.MAX_WHOLE_VALUES", most)
        assert (Way(None) in fitting(work, compile=False)) == whole
    for clients, whole in ((10, False), (11, True)):
        work = work_of(federation((9,) * clients))
        work.family.device = torch.device("cuda")
        assert (Way(None) in fitting(work, compile=False)) == whole, "ten are a chunk"


def test_a_way_runs_where_there_is_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu, compiler in ((False, False), (False, True), (True, False)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        monkeypatch.setattr("fedlab_runner.executors._autotune.ways.has_compiler", lambda compiler=compiler: compiler)
        ways = Way(1), Way(1, recorded=True), Way(1, compile=True)
        assert [way.runs_here() for way in ways] == [True, gpu, compiler]


def test_what_chooses_an_executor_on_the_command_line_builds_it() -> None:
    assert len(WAYS) == len({way for way in WAYS.values()}) == 13
    for words, way in WAYS.items():
        first, *more = words.split()
        assert config_build.build(composed(f"executor={first}", *more)).executor == way.executor(None)


def test_a_run_on_another_type_of_machine_chooses_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_of(federation((20,) * 50))
    with monkeypatch.context() as patch:
        patch.setattr(_run_notes, "machine_type", lambda: "another")
        Auto(1e9, 1, compile=False).bind_run(tmp_path, 10).train(work)
    SHORT.bind_run(tmp_path, 10).train(work)
    noted = checksummed_json.read(tmp_path / "executor.json")
    assert set(noted) == {"another", _run_notes.machine_type()}
    assert noted["another"][PROCESSES] == 1 and noted[_run_notes.machine_type()][PROCESSES] == 2


def test_machines_of_one_type_share_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    here = _run_notes.machine_type.__wrapped__
    before = here()
    monkeypatch.setattr("platform.node", lambda: "another-node")
    assert here() == before
    monkeypatch.setattr(_run_notes, "machine_cores", lambda: 3)
    assert here() != before


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}', "\xff", "own"])
def test_files_that_are_not_ours_are_no_obstacle(content: str, tmp_path: Path) -> None:
    if content == "own":
        content = checksummed_json.text({_run_notes.machine_type(): {EXECUTORS: ["loop"], PROCESSES: "all"}})
    (tmp_path / "executor.json").write_text(content)
    work = work_of(federation())
    y, _ = SHORT.bind_run(tmp_path, 2).train(work)
    torch.testing.assert_close(y, Loop(compile=False).train(work)[0], rtol=0, atol=1e-9)
    assert len(chosen(tmp_path)) == 1


@pytest.mark.parametrize("damage", [WHOLE, "sha256", "format"])
def test_a_damaged_choice_is_said(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One letter is enough: without the sum the run would continue with another executor in silence."""
    work, path = work_of(federation((20,) * 50)), tmp_path / "executor.json"
    SHORT.bind_run(tmp_path, 10).train(work)
    whole = path.read_text()
    path.write_text(whole.replace(damage, f"x{damage[1:]}"))
    assert path.read_text() != whole
    SHORT.bind_run(tmp_path, 10).train(work)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"{path} is damaged: threads and executor=auto are chosen again")
    assert path.read_text() == whole


def test_a_continued_run_keeps_its_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the rule would say now, and in another share of the machine."""
    monkeypatch.setattr(system, "usable_cores", lambda: 4)
    monkeypatch.setattr(auto, "usable_cores", lambda: 4)
    free = Auto(1e9, None, compile=False)
    work = work_of(federation((20,) * 50))
    assert free.bind_run(tmp_path, 10).num_processes() == 4
    free.bind_run(tmp_path, 10).train(work)
    before = (tmp_path / "executor.json").read_bytes()
    monkeypatch.setattr(auto, "usable_cores", lambda: 1)
    monkeypatch.setattr(rule, "seconds_a_round", lambda work, way, workers, threads: float(way.chunk_size or 99))
    again = free.bind_run(tmp_path, 10)
    assert again.num_processes() == 4
    again.train(work)
    assert (tmp_path / "executor.json").read_bytes() == before
    assert Auto(1e9, 2, compile=False).bind_run(tmp_path, 10).num_processes() == 2, "what the config says counts"


def test_a_stopped_run_goes_on_with_its_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ("executor=auto", "executor.workers=2", "algorithm=fedavg", "evaluation.every=1")
    run_in(tmp_path / "whole", composed(*overrides, "rounds=6"))
    run_in(tmp_path / "parts", composed(*overrides, "rounds=3"))
    noted = chosen(tmp_path / "parts")
    monkeypatch.setattr(rule, "best", lambda work, ways, *_: (ways[0], 1))  # the loop, where all ways are left
    run_in(tmp_path / "parts", composed(*overrides, "rounds=6"))
    assert chosen(tmp_path / "parts") == noted != ["loop"]
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


def test_what_disagrees_or_fails_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    class Wrong(Loop):
        def train(self, work: Work) -> Any:
            y, losses = super().train(work)
            return y + 0.1 * (y - work.start), losses

    class Failing(Loop):
        def train(self, work: Work) -> Any:
            raise RuntimeError("no memory\nand more")

    work = work_of(federation())
    executors = {"loop": Loop(compile=False), "wrong": Wrong(compile=False), "failing": Failing(compile=False)}
    found = measure(work, {**executors, "vectorized": Vectorized(3, compile=False)})
    assert {name for name, cost in found.items() if cost.a_step is None} == {"wrong", "failing"}
    assert not agrees(work, "wrong", executors["wrong"], executors["loop"])
    assert agrees(work, "vectorized", Vectorized(3, compile=False), executors["loop"])
    assert "executor=wrong does not agree with loop" in caplog.text and "no memory" in caplog.text


def deep() -> nn.Module:
    """Whose batch norms make rounding grow from step to step."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs in (64, *[24] * 15):
        layers += [nn.Linear(inputs, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(24, workloads.CLASSES))


def test_rounding_that_training_amplifies_is_no_other_result() -> None:
    class Wrong(Loop):
        def train(self, work: Work) -> Any:
            y, losses = super().train(work)
            return y + 0.1 * (y - work.start), losses

    work = workloads.work_of(workloads.Shape(4, 40, 4, 8, side=8).federation(deep))  # in float32
    loop, others = Loop(compile=False), Vectorized(4, compile=False)
    (y, _), (z, _) = loop.train(work), others.train(work)
    assert (y - z).norm() > 0.02 * (y - work.start).norm()
    assert agrees(work, "vectorized", others, loop) and not agrees(work, "wrong", Wrong(compile=False), loop)


def test_a_sample_is_the_work_of_some_clients() -> None:
    own = torch.arange(len(RAGGED) * 8, dtype=torch.float64)
    fed = federation(RAGGED * 8, training=local(epochs=1))
    seen: list[np.ndarray] = []

    def per_step(work: Work, rows: np.ndarray, step: int) -> tuple[torch.Tensor]:
        seen.append(work.ids[rows])
        return (own[torch.from_numpy(work.ids[rows])],)

    def correct(g: torch.Tensor, mine: torch.Tensor, again: torch.Tensor) -> torch.Tensor:
        assert torch.equal(mine, again)
        return g

    work = work_of(fed, correct=correct, per_client=(own,), per_step=per_step)
    assert sample(work, 0.5) is work
    part = sample(work, 2.5)
    assert 20 <= len(part.ids) < len(work.ids) and {1, 40} <= set(fed.client_data.num_examples[part.ids].tolist())
    y, _ = Loop(compile=False).train(part)
    whole, _ = Loop(compile=False).train(work)
    assert torch.equal(y, whole[torch.from_numpy(part.ids)])
    long = work_of(federation(RAGGED * 8, training=local(epochs=50)))
    assert sample(long, 1e3).num_steps.max() == 8
    half = sample(long, 2 * long.num_steps.max() / 8)
    assert len(half.ids) == len(long.ids) // 2, "of 8 steps each, in a second"


def test_bad_values() -> None:
    with pytest.raises(ValueError, match=r"^seconds must be >= 0, got -1.0$"):
        Auto(-1.0, None, compile=True)
    with pytest.raises(ValueError, match=r"^workers must be >= 1, got 0$"):
        Auto(30.0, 0, compile=True)
