"""`executor=cuda_graph`, with a recorder that replays operations on the same memory; on a GPU where there is one."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.augment.base import Augment
from fedlab_runner.core.losses import WSM
from fedlab_runner.core.work import Work
from fedlab_runner.executors import cuda_graph
from fedlab_runner.executors.cuda_graph import CudaGraph
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.utils.errors import UserError
from tests.augment.test_augment import CROP_FLIP, CUTOUT, of_images
from tests.executors.test_contract import EVERYONE, MODELS, SETTINGS, dropping, train
from tests.helpers import tape
from tests.helpers.added import ADDED, data
from tests.helpers.kinds import by_kind, in_turns
from tests.helpers.toy import ALGORITHMS, RAGGED, algorithm, federation, local, mlp, normed, run, vectors


class Here(CudaGraph):
    """The same on a CPU."""

    check = Vectorized.check


WHOLE = Here(chunk_size=None, compile=False)


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One for each step that is recorded."""
    made: list[int] = []

    def record(launch: Callable[[], None], device: torch.device) -> Callable[[], None]:
        made.append(1)
        return tape.record(launch, device)

    monkeypatch.setattr(cuda_graph, "record", record)
    yield made


@pytest.mark.parametrize(("setting", "model", "chunk_size"), in_turns(SETTINGS, MODELS, (None, 3, 1)))
def test_replayed_steps_equal_the_loop(setting: str, model: str, chunk_size: int | None) -> None:
    """Ragged clients, partial minibatches, a rate that changes, models that differ at the start, batch norm."""
    how: dict[str, Any] = {"build": MODELS[model], "training": SETTINGS[setting]}
    fed, plain = federation(**how, executor=Here(chunk_size, compile=False)), federation(**how)
    starts = torch.stack([fed.family.init(seed) for seed in range(len(RAGGED))])
    for round, factor in enumerate((1.0, 0.5)):
        for each in (fed, plain):
            each.begin(round, factor)
        for start in (fed.family.init(3), starts):
            for mine, theirs in zip(train(fed, start=start), train(plain, start=start), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("chunk_size", [None, 3, 1])
@pytest.mark.parametrize("augment", [CROP_FLIP, CUTOUT])
def test_replayed_steps_see_each_rounds_views(augment: Augment, chunk_size: int | None) -> None:
    fed, plain = of_images(augment, Here(chunk_size, compile=False)), of_images(augment)
    for round in range(2):
        for each in (fed, plain):
            each.begin(round, 1.0)
        for mine, theirs in zip(train(fed), train(plain), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", by_kind(ALGORITHMS))
def test_every_algorithm_is_the_same(name: str) -> None:
    """Losses, corrections and perturbations of its own, and what changes from round to round."""
    ours, reference = (
        run(algorithm(name), federation((8, 3, 12, 5, 9, 20), cohort=3, std=1.0, executor=each), 4)
        for each in (WHOLE, Loop(compile=False))
    )
    torch.testing.assert_close(vectors(ours), vectors(reference), rtol=0, atol=1e-8)


def test_a_step_is_recorded_once_for_plain_work_and_anew_for_what_a_round_adds(recordings: list[int]) -> None:
    fed = federation(executor=WHOLE)
    for round in range(3):
        fed.begin(round, 1.0 / (1 + round))
        train(fed)
    assert len(recordings) == 1
    for round in range(3):
        fed.begin(round, 1.0)
        x = fed.family.init(round)
        train(fed, loss=lambda model, batch, x=x: fed.family.loss(model, batch) + (model.params - x).square().sum())
    assert len(recordings) == 4
    train(fed, EVERYONE[:3])
    assert len(recordings) == 5


@pytest.mark.parametrize("added", ADDED)
def test_what_algorithms_add_is_recorded_once(added: str, recordings: list[int]) -> None:
    fed, plain = federation(executor=WHOLE), federation()
    for round in range(3):
        how = [{**ADDED[added], **data(each, len(EVERYONE), 0.1 + round)} for each in (fed, plain)]
        for each in (fed, plain):
            each.begin(round, 1.0 / (1 + round))
        for mine, theirs in zip(train(fed, **how[0]), train(plain, **how[1]), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    assert len(recordings) == 1


def test_a_supervision_signal_by_class_and_a_client_with_one_example(recordings: list[int]) -> None:
    how: dict[str, Any] = {"loss_function": WSM(), "build": normed}
    fed, plain = federation(**how, executor=WHOLE), federation(**how)
    for mine, theirs in zip(train(fed), train(plain), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    assert len(recordings) == 2, "one of them for the client whose batch norm keeps its statistics"


@pytest.mark.parametrize("sizes", [(0, 3, 8), (0, 0)])
def test_clients_without_examples_keep_their_model(sizes: tuple[int, ...]) -> None:
    everyone = np.arange(len(sizes))
    ours, theirs = (train(federation(sizes, executor=each), everyone) for each in (WHOLE, Loop(compile=False)))
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-9)


def test_what_belongs_to_a_client_at_a_step(recordings: list[int]) -> None:
    table = torch.linspace(0.1, 0.9, len(RAGGED) * 10, dtype=torch.float64).view(len(RAGGED), 10)

    def of_step(work: Work, rows: np.ndarray, step: int) -> tuple[torch.Tensor, ...]:
        return (table[rows, step],)

    def loss(model: Any, batch: Any, pull: torch.Tensor) -> torch.Tensor:
        return fed.family.loss(model, batch) + pull * model.params.square().sum()

    for executor in (WHOLE, Loop(compile=False)):
        fed = federation(executor=executor)
        found = train(fed, loss=loss, per_step=of_step)
        if executor is WHOLE:
            ours = found
    for mine, theirs in zip(ours, found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    assert len(recordings) == 1


def test_dropout_is_left_to_launched_steps(recordings: list[int]) -> None:
    ours, theirs = (train(federation(build=dropping, executor=e)) for e in (WHOLE, Vectorized(None, compile=False)))
    assert torch.equal(ours[0], theirs[0]) and not recordings


def test_a_step_that_has_to_wait_for_the_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = federation(executor=WHOLE)

    def refused(launch: Callable[[], None], device: torch.device) -> Callable[[], None]:
        with cuda_graph.refusing():
            return tape.record(launch, device)

    monkeypatch.setattr(cuda_graph, "record", refused)
    with pytest.raises(UserError, match=r"cannot record this work: operation not permitted .*take executor=vectorized"):
        train(fed, correct=lambda g: g * float(torch.ones(())))


def test_without_a_gpu_it_says_what_to_take() -> None:
    fed = federation(executor=CudaGraph(chunk_size=None, compile=False))
    with pytest.raises(UserError, match=r"needs a GPU \(device=cuda\), got cpu: take loop, vectorized or processes"):
        train(fed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a GPU, and there is none")
@pytest.mark.parametrize("chunk_size", [None, 1])
@pytest.mark.parametrize("model", [mlp, normed])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_on_a_gpu(
    optimizer: str, model: Callable[[], Any], chunk_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    gpu = torch.device("cuda")
    training = local(optimizer=optimizer, lr=0.01, eps=1e-2 if optimizer == "adam" else None)
    ours, theirs = (
        train(federation(build=model, training=training, device=gpu, executor=each))
        for each in (CudaGraph(chunk_size, compile=False), Loop(compile=False))
    )
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records on a GPU, and there is none")
@pytest.mark.parametrize("augment", [CROP_FLIP, CUTOUT])
def test_augmented_on_a_gpu(augment: Augment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    gpu = torch.device("cuda")
    ours, theirs = (
        train(of_images(augment, each, device=gpu)) for each in (CudaGraph(None, compile=False), Loop(compile=False))
    )
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-8)
