"""`executor=auto`: what it takes, what it remembers, and that a run goes on with what it began with."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.config import build as config_build
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.work import Work
from fedlab_runner.executors import auto
from fedlab_runner.executors._autotune import cache as autotune_cache
from fedlab_runner.executors._autotune.cache import Cost
from fedlab_runner.executors._autotune.measure import measure, sample
from fedlab_runner.executors.auto import REFERENCE, UNTIMED, Auto
from fedlab_runner.executors.compiled import has_compiler
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils import checksummed_json
from tests.executors.test_contract import dropping
from tests.helpers.composed import composed
from tests.helpers.toy import RAGGED, federation, local, mlp, normed

PROCESSES = "processes executor.workers=2"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "fedlab" / "executors.json"


def work_of(fed: Federation, **how: Any) -> Work:
    """What a cohort of all clients gives to its executor."""
    caught: list[Work] = []

    class Catching(Loop):
        def train(self, work: Work) -> Any:
            caught.append(work)
            return super().train(work)

    fed.trainer.executor = Catching(compile=False)
    fed.cohort(np.arange(fed.num_clients)).train(fed.family.init(0), **how)
    return caught[0]


def costs(**a_step: float) -> dict[str, Cost]:
    names = {"loop": REFERENCE, "vectorized": UNTIMED, "processes": PROCESSES}
    return {names[name]: Cost(0.0, seconds) for name, seconds in a_step.items()}


def chosen(folder: Path) -> list[str]:
    noted = json.loads((folder / "executor.json").read_text())
    return list(noted[autotune_cache.machine()].values())


def test_short_work_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(auto, "measure", None)
    for build, name in ((mlp, UNTIMED), (dropping, REFERENCE)):
        executor = Auto(30.0, 2, compile=True).bind_run(tmp_path / name, 100)
        executor.train(work_of(federation(build=build)))
        assert chosen(tmp_path / name) == [name]
    assert not cache.exists()


def test_the_fastest_is_kept_noted_and_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    measured: list[set[str]] = []

    def fake(work: Work, executors: Any) -> dict[str, Cost]:
        measured.append(set(executors))
        return costs(loop=0.03, vectorized=0.02, processes=0.01)

    monkeypatch.setattr(auto, "measure", fake)
    work = work_of(federation())
    Auto(0.0, 2, compile=True).bind_run(tmp_path / "first", 10).train(work)
    assert measured == [{REFERENCE, UNTIMED, PROCESSES}] and chosen(tmp_path / "first") == [PROCESSES]
    assert f"a round with executor={PROCESSES}" in caplog.text and "for the next 10 rounds" in caplog.text

    Auto(0.0, 2, compile=True).bind_run(tmp_path / "second", 10).train(work)
    assert len(measured) == 1, "remembered for the machine"
    assert chosen(tmp_path / "second") == [PROCESSES]

    cache.unlink()
    monkeypatch.setattr(auto, "measure", None)
    Auto(0.0, 2, compile=True).bind_run(tmp_path / "first", 10).train(work)  # noted in the run's folder


def test_other_code_measures_anew_and_has_its_own_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    work = work_of(federation())
    here, elsewhere = autotune_cache.place(), f"another-{autotune_cache.place()}"
    for code in ("old", "new"):
        monkeypatch.setattr(autotune_cache, "place", lambda code=code: f"{autotune_cache.machine()}-{code}")
        slow = {"old": 0.01, "new": 0.09}[code]
        monkeypatch.setattr(auto, "measure", lambda *_, slow=slow: costs(loop=0.05, vectorized=0.06, processes=slow))
        Auto(0.0, 2, compile=True).bind_run(tmp_path / code, 10).train(work)
        known = json.loads(cache.read_text())
        if code == "old":
            cache.write_text(checksummed_json.text({key: known[key] for key in known if "-" in key} | {elsewhere: {}}))
    assert chosen(tmp_path / "old") == [PROCESSES] and chosen(tmp_path / "new") == [REFERENCE]
    assert set(json.loads(cache.read_text())) == {f"{autotune_cache.machine()}-new", elsewhere, "format", "sha256"}
    assert here.startswith(f"{autotune_cache.machine()}-")


def test_jobs_of_one_process_with_other_threads_do_not_share_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    for threads in (1, 2, 1):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        places.append(autotune_cache.place())
        assert places[-1].startswith(f"{autotune_cache.machine()}-")
    assert places[0] == places[2] != places[1]


def test_compiled_steps_are_measured_beside_the_best_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine may have become slower since the others were measured, and compiled steps would seem to be."""
    slow, measured = iter((1.0, 3.0)), list[list[str]]()

    def fake(work: Work, executors: Any) -> dict[str, Cost]:
        measured.append(list(executors))
        now = next(slow)
        bare = {name: 0.5 if "processes" in name else 1.0 for name in executors}
        return {name: Cost(0.0, now * cost / (2 if "compile" in name else 1)) for name, cost in bare.items()}

    monkeypatch.setattr(auto, "measure", fake)
    monkeypatch.setattr(auto, "has_compiler", lambda: True)
    monkeypatch.setattr("fedlab_runner.executors.processes.Processes.train", lambda self, work: None)  # no compiler
    Auto(0.0, 2, compile=True).bind_run(tmp_path, 10_000).train(work_of(federation()))
    assert measured[1][:2] == [REFERENCE, PROCESSES] and all("compile" in name for name in measured[1][2:])
    assert chosen(tmp_path) == [f"{PROCESSES} executor.inner.compile=true"]


def test_steps_are_recorded_on_a_gpu_alone_and_never_with_dropout() -> None:
    def candidates(build: Any, device: str, *, compiled: bool) -> set[str]:
        work = work_of(federation(build=build))
        work.family.device = torch.device(device)
        found = auto._Choosing(Auto(0.0, 2, compile=True), autotune_cache.Memory())._fit(work, compiled=compiled)
        return {name for name in found if name.startswith("cuda_graph")}

    one_by_one, together = "cuda_graph executor.chunk_size=1", "cuda_graph executor.chunk_size=null"
    assert candidates(mlp, "cuda", compiled=False) == {one_by_one, together}
    assert candidates(normed, "cuda", compiled=False) == {one_by_one, together}
    assert candidates(dropping, "cuda", compiled=False) == set()
    assert candidates(mlp, "cpu", compiled=False) == set() == candidates(mlp, "cpu", compiled=True)
    assert has_compiler() == bool(candidates(mlp, "cuda", compiled=True))


def test_what_chooses_an_executor_on_the_command_line_builds_it() -> None:
    for name, candidate in auto._Choosing(Auto(0.0, 2, compile=True), autotune_cache.Memory())._candidates().items():
        first, *more = name.split()
        config = composed(f"executor={first}", *more)
        assert config_build.build(config).executor == candidate.executor


def test_a_run_begun_on_another_machine_chooses_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_of(federation())
    monkeypatch.setattr(auto, "measure", lambda *_: costs(loop=0.01, vectorized=0.02, processes=0.03))
    with monkeypatch.context() as patch:
        patch.setattr(autotune_cache, "machine", lambda: "another")
        Auto(0.0, 2, compile=True).bind_run(tmp_path, 10).train(work)
    Auto(0.0, 2, compile=True).bind_run(tmp_path, 10).train(work)
    noted = json.loads((tmp_path / "executor.json").read_text())
    assert set(noted) == {"another", autotune_cache.machine(), "format", "sha256"} and chosen(tmp_path) == [REFERENCE]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 1}', f'{{"{autotune_cache.machine()}": []}}', "\xff"])
def test_files_that_are_not_ours_are_no_obstacle(content: str, tmp_path: Path, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    for path in (cache, tmp_path / "executor.json"):
        path.write_text(content)
    fed = federation()
    work = work_of(fed)
    y, _ = Auto(0.0, 2, compile=True).bind_run(tmp_path, 2).train(work)
    torch.testing.assert_close(y, Loop(compile=False).train(work)[0], rtol=0, atol=1e-9)
    assert cache.exists() and len(chosen(tmp_path)) == 1


@pytest.mark.parametrize("damage", ["PROCESSES", "loop", "sha256", "format"])
def test_a_damaged_choice_is_said(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cache: Path
) -> None:
    """One letter is enough: without the sum the run would go on with another executor in silence."""
    monkeypatch.setattr(auto, "measure", lambda *_: costs(loop=0.03, vectorized=0.02, processes=0.01))
    work = work_of(federation())
    Auto(0.0, 2, compile=True).bind_run(tmp_path, 10).train(work)
    for path in (tmp_path / "executor.json", cache):
        whole = path.read_text()
        word = {"PROCESSES": PROCESSES, "loop": autotune_cache.machine()}.get(damage, damage)
        path.write_text(whole.replace(word, f"x{word[1:]}"))
        assert path.read_text() != whole
    Auto(0.0, 2, compile=True).bind_run(tmp_path, 10).train(work)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings[0].startswith(f"{tmp_path}/executor.json is damaged: executor=auto chooses anew")
    assert warnings[1] == f"{cache} is damaged: executor=auto measures anew" and len(warnings) == 2
    assert chosen(tmp_path) == [PROCESSES]
    caplog.clear()
    Auto(0.0, 2, compile=True).bind_run(tmp_path, 10).train(work)
    assert not caplog.records


def test_the_choice_of_an_earlier_attempt_is_kept(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = work_of(federation())
    noted = {autotune_cache.machine(): {autotune_cache.kind_of(work): PROCESSES}}
    (tmp_path / "executor.json").write_text(checksummed_json.text(noted))
    Auto(0.0, 2, compile=True).bind_run(tmp_path, 10).train(work)
    assert checksummed_json.read(tmp_path / "executor.json") == noted and not caplog.records and not cache.exists()


def test_a_choice_made_by_measuring_is_among_the_candidates(tmp_path: Path, cache: Path) -> None:
    work = work_of(federation(build=normed), correct=lambda g: 0.5 * g)
    executor = Auto(0.0, 2, compile=True).bind_run(tmp_path, 5)
    executor.train(work)
    known = json.loads(cache.read_text())[autotune_cache.place()]
    (shape,) = known.values()
    assert set(shape) == {REFERENCE, UNTIMED, PROCESSES} and all(step > 0 for _, step in shape.values())
    assert chosen(tmp_path)[0] in shape


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
    assert "executor=wrong does not agree with loop" in caplog.text and "no memory" in caplog.text


def test_a_sample_is_the_work_of_some_clients() -> None:
    own = torch.arange(len(RAGGED) * 8, dtype=torch.float64)
    fed = federation(RAGGED * 8, training=local(epochs=1))
    seen: list[np.ndarray] = []

    def per_step(rows: np.ndarray, step: int) -> tuple[torch.Tensor]:
        seen.append(rows)
        return (own[torch.from_numpy(rows)],)

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
    long = work_of(federation(training=local(epochs=50)))
    assert sample(long, 1e3).num_steps.max() == 8


def test_a_stopped_run_goes_on_with_its_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a new measurement would say."""
    overrides = ("executor=auto", "executor.seconds=0", "executor.workers=2", "algorithm=fedavg", "evaluation.every=1")
    monkeypatch.setattr(auto, "measure", lambda *_: costs(loop=0.01, vectorized=0.02, processes=0.03))
    run_in(tmp_path / "whole", composed(*overrides, "rounds=6"))
    run_in(tmp_path / "parts", composed(*overrides, "rounds=3"))
    monkeypatch.setattr(auto, "measure", lambda *_: costs(loop=0.03, vectorized=0.02, processes=0.01))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    run_in(tmp_path / "parts", composed(*overrides, "rounds=6"))
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert chosen(tmp_path / "parts") == [REFERENCE]


def test_bad_values() -> None:
    with pytest.raises(ValueError, match=r"^seconds must be >= 0, got -1.0$"):
        Auto(-1.0, None, compile=True)
    with pytest.raises(ValueError, match=r"^workers must be >= 1, got 0$"):
        Auto(30.0, 0, compile=True)
