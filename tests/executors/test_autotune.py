"""What `executor=auto` measures on a GPU: remembered once for a type of machine, never beside other work."""

import logging
import multiprocessing
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlab_runner.augment.crop_flip import CropFlip
from fedlab_runner.core.additions import Proximal, Pull
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.work import Work, own_loss
from fedlab_runner.executors import auto
from fedlab_runner.executors._autotune import measure as measuring
from fedlab_runner.executors._autotune import memory, timed
from fedlab_runner.executors._autotune.measure import Cost
from fedlab_runner.executors._autotune.memory import remember, remembered
from fedlab_runner.executors._autotune.ways import REFERENCE, SIDE_BY_SIDE, Way
from fedlab_runner.executors._chunks import ChunkedExecutor
from fedlab_runner.executors.auto import Auto
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from tests.executors.test_contract import dropping
from tests.helpers.toy import federation, local
from tests.helpers.work import work_of

WAYS = [REFERENCE, SIDE_BY_SIDE, Way(None), Way(None, compile=True)]
LOOP, CHUNKS, WHOLE, COMPILED = (way.words for way in WAYS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fedlab" / "executors"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names in each measurement, on a quiet machine: the loop takes 3 s a step, each further way less."""
    found: list[list[str]] = []
    seconds = {LOOP: 3.0, CHUNKS: 2.0, WHOLE: 1.0, COMPILED: 0.5}

    def fake(work: Work, executors: Mapping[str, Executor]) -> dict[str, Cost]:
        found.append(list(executors))
        return {name: Cost(0.0, seconds[name]) for name in executors}

    monkeypatch.setattr(timed, "measure", fake)
    monkeypatch.setattr(timed, "is_busy", lambda device: False)
    monkeypatch.setattr(timed, "agrees", lambda *_: True)
    return found


def test_the_fastest_is_measured_once(measured: list[list[str]], caplog: pytest.LogCaptureFixture, cache: Path) -> None:
    caplog.set_level(logging.INFO)
    work = work_of(federation())
    assert timed.fastest(work, WAYS, 1) == Way(None)
    assert f"a round with executor={WHOLE}" in caplog.text and "for the next 1 rounds" in caplog.text
    assert "about" not in caplog.text, "about less than 1 s"
    assert timed.fastest(work, WAYS, 1) == Way(None) and measured == [[LOOP, CHUNKS, WHOLE]]
    assert timed.fastest(work, WAYS, 1000) == Way(None, compile=True)
    # Beside the reference and the best of the others: the machine may be slower now than it was.
    assert measured[1:] == [[LOOP, WHOLE, COMPILED]]
    assert timed.fastest(work, WAYS, 1) == Way(None) and len(measured) == 2, "a short run does not compile"
    assert len(list(cache.glob("*/*.json"))) == 2


@pytest.mark.parametrize("readings", [[True], [False, True]])
def test_a_measurement_beside_other_work_is_not_kept(
    readings: list[bool],
    measured: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cache: Path,
) -> None:
    caplog.set_level(logging.INFO)
    work, said = work_of(federation()), iter(readings)
    monkeypatch.setattr(timed, "is_busy", lambda device: next(said))
    assert timed.fastest(work, WAYS, 1) is None and not cache.exists()
    assert "other processes use this machine: executor=auto measures nothing and follows its rule" in caplog.text
    said = iter([False, False, True])
    assert timed.fastest(work, WAYS, 1000) == Way(None), "of what was measured before"
    assert "measures no compiled steps" in caplog.text


def test_costs_are_those_of_a_step_and_what_the_first_turn_takes_more() -> None:
    work = work_of(federation())
    steps = int(work.num_steps.sum())
    assert measuring.expected_seconds(work) == pytest.approx(steps * measuring.STEP_SECONDS), "of a small model"
    assert measuring._cost(work, 5.0, [2.0, 1.0]) == Cost(4.0, 1.0 / steps)


def test_a_gpu_shared_with_others_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda, used = torch.device("cpu"), torch.device("cuda"), [0]
    monkeypatch.setattr(measuring, "busy_cores", lambda: 0.1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**34 - used[0], 2**34))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2**30)
    used[0] = 2**30 + 2**29
    assert not measuring.is_busy(cpu) and not measuring.is_busy(cuda)
    used[0] = 2**32
    assert not measuring.is_busy(cpu) and measuring.is_busy(cuda)
    monkeypatch.setattr(measuring, "busy_cores", lambda: 1.1)
    assert measuring.is_busy(cpu)


def test_short_and_unmeasured_runs_go_by_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "fastest", lambda *_: None)
    for settings in (Auto(1e9, 2, compile=False), Auto(0.0, 2, compile=False)):
        choosing = auto._Choosing(settings, None, 1)
        assert choosing._on_gpu(work_of(federation()), 1) == SIDE_BY_SIDE
        assert choosing._on_gpu(work_of(federation(build=dropping)), 1) == REFERENCE
    monkeypatch.setattr(auto, "obstacle", lambda work: "its loss waits for a number")
    assert auto._Choosing(Auto(1e9, 2, compile=False), None, 1)._on_gpu(work_of(federation()), 1) == REFERENCE


def test_the_training_that_is_left_decides_whether_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "fastest", lambda *_: Way(None))
    monkeypatch.setattr(auto, "expected_seconds", lambda work: 1.0)
    choosing = auto._Choosing(Auto(5.0, 2, compile=False), None, 9)
    assert [choosing._on_gpu(work_of(federation()), rounds) for rounds in (4, 5)] == [SIDE_BY_SIDE, Way(None)]


def test_what_a_way_takes_once_counts_once(monkeypatch: pytest.MonkeyPatch, measured: list[list[str]]) -> None:
    work = work_of(federation())
    steps = int(work.num_steps.sum())
    monkeypatch.setattr(timed, "measure", lambda *_: {LOOP: Cost(10.0 * steps, 1.0), CHUNKS: Cost(0.0, 3.0)})
    assert [timed.fastest(work, WAYS[:2], rounds) for rounds in (4, 6)] == [SIDE_BY_SIDE, REFERENCE]


def test_what_is_measured_again_replaces_what_was_known(
    monkeypatch: pytest.MonkeyPatch, measured: list[list[str]]
) -> None:
    """The machine is slower than before, for all ways alike."""
    later = {LOOP: Cost(0.0, 30.0), WHOLE: Cost(0.0, 10.0), COMPILED: Cost(0.0, 5.0)}
    first = {LOOP: Cost(0.0, 3.0), WHOLE: Cost(0.0, 1.0)}
    monkeypatch.setattr(timed, "measure", lambda _, executors: later if COMPILED in executors else first)
    assert timed.fastest(work_of(federation()), [REFERENCE, Way(None), Way(None, compile=True)], 1000) == WAYS[3]


def test_ways_that_fail_are_not_ranked(monkeypatch: pytest.MonkeyPatch, measured: list[list[str]]) -> None:
    costs = {LOOP: Cost(0.0, 3.0), CHUNKS: Cost(9.0, None), WHOLE: Cost(0.0, None)}
    monkeypatch.setattr(timed, "measure", lambda *_: costs)
    assert timed.fastest(work_of(federation()), WAYS[:3], 1) == REFERENCE
    assert remembered(memory.shape_of(work_of(federation())), "eager") == costs


@pytest.mark.parametrize(
    ("fails", "error", "chosen"),
    [
        (Loop, torch.OutOfMemoryError("CUDA out of memory"), None),
        (Loop, ValueError("the loss has a typo"), None),
        (Vectorized, torch.OutOfMemoryError("CUDA out of memory"), REFERENCE),
    ],
)
def test_a_failure_that_may_pass_is_not_kept(
    fails: type[ChunkedExecutor],
    error: Exception,
    chosen: Way | None,
    monkeypatch: pytest.MonkeyPatch,
    cache: Path,
) -> None:
    def fail(self: ChunkedExecutor, work: Work) -> Any:
        raise error

    monkeypatch.setattr(timed, "is_busy", lambda device: False)
    with monkeypatch.context() as patch:
        patch.setattr(fails, "train", fail)
        assert timed.fastest(work_of(federation()), WAYS[:2], 1) == chosen
    assert not cache.exists()
    assert timed.fastest(work_of(federation()), WAYS[:2], 1) is not None and cache.exists()


def test_kept_costs_spare_no_comparison_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another function of the same shapes can be one that the fastest executor cannot do."""
    work, train = work_of(federation()), Vectorized.train
    remember(memory.shape_of(work), "eager", {LOOP: Cost(0.0, 3.0), CHUNKS: Cost(0.0, 1.0), WHOLE: Cost(0.0, 2.0)})

    def train_whole(self: Vectorized, work: Work) -> tuple[Tensor, Tensor]:
        y, losses = train(self, work)
        return (y if self.chunk_size is None else 2 * y), losses

    assert timed.fastest(work, WAYS[:3], 1) == SIDE_BY_SIDE
    monkeypatch.setattr(Vectorized, "train", train_whole)
    assert timed.fastest(work, WAYS[:3], 1) == Way(None)


def test_each_function_is_a_kind_of_its_own() -> None:
    def doubled(model: FunctionalModel, batch: Batch) -> Tensor:
        return 2 * own_loss(model, batch)

    plain = work_of(federation())
    work = [plain, *(replace(plain, loss=each) for each in (own_loss, doubled))]
    work += [replace(plain, penalty=each) for each in (Proximal(0.1), Pull())]
    work += [replace(plain, perturb=own_loss), replace(plain, frozen=("2.bias",))]
    work += [replace(plain, local=local(batch_size=4)), replace(plain, local=local(optimizer="adam"))]
    work += [(narrow := work_of(federation())), (mirrored := work_of(federation()))]
    narrow.family.autocast, mirrored.client_data.augment = torch.bfloat16, CropFlip(0, 0.5)
    assert len({memory.kind_of(each) for each in work}) == len(work)


def test_a_client_alone_is_a_kind_and_like_numbers_share_measurements() -> None:
    works = [work_of(federation((8,) * clients)) for clients in (1, 4, 7, 8)]
    kinds, shapes = ([of(each) for each in works] for of in (memory.kind_of, memory.shape_of))
    assert kinds[0] != kinds[1] == kinds[2] == kinds[3]
    shapes += [memory.shape_of(work_of(federation((8,) * 8, training=local(epochs=epochs)))) for epochs in (5, 6)]
    assert len(set(shapes)) == 4 and shapes[1] == shapes[2] and shapes[4] == shapes[5], "up to a factor of two"


def test_other_code_threads_and_machines_have_their_own(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    places = {memory._path("shape", "eager")}
    changes: list[tuple[Any, str, Any]] = [
        (torch, "get_num_threads", lambda: 17),
        (memory, "_code", lambda: "other"),
        (memory, "machine_type", lambda: "another"),
    ]
    for change in changes:
        with monkeypatch.context() as patch:
            patch.setattr(*change)
            places.add(memory._path("shape", "eager"))
            assert remembered("shape", "eager") == {}
            remember("shape", "eager", {LOOP: Cost(0.0, 1.0)})
    assert len(places) == 4 and len(list(cache.iterdir())) == 3


def test_what_nobody_adds_to_is_forgotten(cache: Path) -> None:
    for name, age in (("old", 2 * memory.KEPT_SECONDS), ("new", memory.KEPT_SECONDS / 2)):
        (cache / name).mkdir(parents=True)
        (cache / name / "x.json").touch()
        os.utime(cache / name, (time.time() - age,) * 2)
    remember("shape", "eager", {LOOP: Cost(0.0, 1.0)})
    assert {each.name for each in cache.iterdir()} == {"new", memory._path("shape", "eager").parent.name}


@pytest.mark.parametrize("content", ["", "[]", '{"x": 1}', "\xff", "damaged"])
def test_files_that_are_not_ours_are_replaced(content: str, caplog: pytest.LogCaptureFixture) -> None:
    costs, path = {LOOP: Cost(0.5, 1.0)}, memory._path("shape", "eager")
    remember("shape", "eager", costs)
    path.write_text(path.read_text().replace("1.0", "2.0") if content == "damaged" else content)
    assert remembered("shape", "eager") == {}
    assert caplog.messages == [f"{path} is damaged: executor=auto measures again"]
    assert remember("shape", "eager", costs) == costs == remembered("shape", "eager")


def test_a_cache_that_cannot_be_written_is_a_warning(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.mkdir(parents=True)
    cache.touch()
    costs = {LOOP: Cost(0.0, 1.0)}
    assert remember("shape", "eager", costs) == costs
    assert "the measurements cannot be written to" in caplog.text


def _write(number: int, shapes: int, answers: Any) -> None:
    for shape in range(shapes):
        remember(f"own-{number}-{shape}", "eager", {LOOP: Cost(0.0, float(number))})
    answers.put(remember("common", "eager", {LOOP: Cost(0.0, float(number))})[LOOP].a_step)


def test_writers_at_the_same_time_lose_nothing() -> None:
    """All entries are there, whole, and all writers of one entry continue with the same."""
    context = multiprocessing.get_context("fork")
    answers, writers, shapes = context.SimpleQueue(), 6, 10
    found = [context.Process(target=_write, args=(number, shapes, answers)) for number in range(writers)]
    for each in found:
        each.start()
    for each in found:
        each.join(60)
    said = {answers.get() for _ in found}
    kept = remembered("common", "eager")[LOOP].a_step
    assert said == {kept}
    for number in range(writers):
        for shape in range(shapes):
            assert remembered(f"own-{number}-{shape}", "eager") == {LOOP: Cost(0.0, float(number))}
