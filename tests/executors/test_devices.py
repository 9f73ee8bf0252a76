"""Where algorithms, executors and whole runs have their tensors on a GPU, by one that is pretended (`pretended.py`)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from fedlab_runner.core import trainer
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.losses import WSM
from fedlab_runner.executors import cuda_graph
from fedlab_runner.executors.cuda_graph import CudaGraph
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.run import run_in
from tests.executors.test_contract import SETTINGS, dropping, train
from tests.helpers import pretended, tape
from tests.helpers.composed import composed
from tests.helpers.kinds import by_kind, in_turns
from tests.helpers.pretended import Mixed
from tests.helpers.toy import ALGORITHMS, algorithm, evaluate, federation, mlp, normed, run, tensors

CPU = torch.device("cpu")
SIDE_BY_SIDE, LOOP = Vectorized(2, compile=False), Loop(compile=False)
WRONG: dict[str, Callable[[torch.device], object]] = {
    "operands": lambda gpu: torch.ones(3, device=gpu) + torch.ones(3),
    "of numpy": lambda gpu: torch.ones(3, device=gpu) * torch.from_numpy(np.ones(3)),
    "module": lambda gpu: torch.nn.Linear(3, 1)(torch.ones(1, 3, device=gpu)),
    "under vmap": lambda gpu: torch.vmap(lambda x: x + torch.ones(3))(torch.ones(2, 3, device=gpu)),
    "written to": lambda gpu: torch.tensor(1.0).add_(torch.ones((), device=gpu)),
    "joined": lambda gpu: torch.cat([torch.ones(2, device=gpu), torch.ones(1)]),
    "rows": lambda gpu: torch.ones(3, device=gpu).index_select(0, torch.tensor([1])),
    "indexed from the GPU": lambda gpu: torch.ones(3)[torch.tensor([1], device=gpu)],
    "weights": lambda gpu: torch.bincount(torch.ones(2, dtype=torch.int64, device=gpu), torch.ones(2)),
    "product": lambda gpu: torch.tensordot(torch.ones(2), torch.ones(2, 3, device=gpu), 1),
    "loss": lambda gpu: torch.nn.functional.cross_entropy(torch.ones(2, 3, device=gpu), torch.tensor([0, 1])),
    "to numpy": lambda gpu: np.asarray(torch.ones(3, device=gpu)),
    "generator": lambda gpu: torch.rand(3, device=gpu, generator=torch.Generator()),
}
RIGHT: dict[str, Callable[[torch.device], torch.Tensor]] = {
    "moved": lambda gpu: torch.ones(3).to(gpu) + torch.from_numpy(np.ones(3)).to(gpu, torch.float32),
    "a number": lambda gpu: torch.ones(3, device=gpu) * torch.tensor(2.0),
    "like another": lambda gpu: torch.zeros_like(torch.ones(3, device=gpu)) + torch.as_tensor([1.0], device=gpu),
    "indexed from the CPU": lambda gpu: torch.ones(3, device=gpu)[torch.tensor([1])],
    "copied": lambda gpu: torch.empty(3, device=gpu).copy_(torch.ones(3)),
    "module": lambda gpu: torch.nn.Linear(3, 1).to(gpu)(torch.ones(1, 3, device=gpu)),
    "gradient": lambda gpu: torch.func.grad(lambda x: (x * torch.ones(3, device=x.device)).sum())(
        torch.ones(3, device=gpu)
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cuda_refuses_is_refused(what: str) -> None:
    with pretended.gpu() as device, pytest.raises(Mixed):
        WRONG[what](device)


@pytest.mark.parametrize("what", RIGHT)
def test_what_cuda_does_is_done(what: str) -> None:
    with pretended.gpu() as device:
        made = RIGHT[what](device)
        assert made.device == device and made.cpu().device == CPU
        made.detach().cpu().numpy()


def _outcome(name: str, executor: Executor, device: torch.device) -> tuple[list[torch.Tensor], dict[str, float]]:
    fed = federation((8, 3, 12, 5, 9, 20), cohort=3, std=1.0, executor=executor, device=device)
    built = algorithm(name)
    # A checkpoint puts all tensors of a State on the device, wherever the algorithm had them.
    resumed = tree_map(lambda each: each.to(device) if isinstance(each, torch.Tensor) else each, run(built, fed, 2))
    state = run(built, fed, 1, first=2, state=resumed)
    return tensors(state), evaluate(built, state, fed) | fed.collect()


def _same_on_a_gpu(name: str, executor: Executor, reference: Executor) -> None:
    here = _outcome(name, reference, CPU)
    with pretended.gpu() as device:
        there = _outcome(name, executor, device)
    for mine, theirs in zip(there[0], here[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-8)
    assert there[1] == pytest.approx(here[1], abs=1e-8)


@pytest.mark.parametrize("name", by_kind(ALGORITHMS))
def test_every_algorithm_has_its_tensors_on_the_gpu(name: str) -> None:
    """And comes to what it comes to on the CPU."""
    _same_on_a_gpu(name, SIDE_BY_SIDE, SIDE_BY_SIDE)


@pytest.mark.slow  # as many again
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_them_there_in_the_loop_too(name: str) -> None:
    _same_on_a_gpu(name, LOOP, LOOP)


@pytest.mark.parametrize(("setting", "executor"), in_turns(SETTINGS, [LOOP, SIDE_BY_SIDE]))
def test_every_optimizer_has_its_tensors_there(setting: str, executor: Executor) -> None:
    """With batch norm, and offsets for each client's classes."""
    how: dict[str, Any] = {"build": normed, "training": SETTINGS[setting], "loss_function": WSM(), "executor": executor}
    expected = train(federation(**how))
    with pretended.gpu() as device:
        found = train(federation(**how, device=device))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("executor", [LOOP, SIDE_BY_SIDE], ids=["loop", "vectorized"])
def test_dropout_draws_where_the_model_is(executor: Executor) -> None:
    with pretended.gpu() as device:
        train(federation(build=dropping, executor=executor, device=device))


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step is replayed on the same memory, and may have nothing to do with the host's."""

    def record(launch: Callable[[], None], device: torch.device) -> Callable[[], None]:
        with pretended.capturing():
            return tape.record(launch, device)

    monkeypatch.setattr(cuda_graph, "record", record)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize(("setting", "model"), in_turns(SETTINGS, [mlp, normed]))
def test_a_recorded_step_has_nothing_of_the_host(setting: str, model: Callable[[], Any]) -> None:
    how: dict[str, Any] = {"build": model, "training": SETTINGS[setting], "loss_function": WSM()}
    expected = train(federation(**how))
    with pretended.gpu() as device:
        found = train(federation(**how, device=device, executor=CudaGraph(None, compile=False)))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.slow  # as many again
@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_adds_something_of_the_host_to_a_recorded_step(name: str) -> None:
    _same_on_a_gpu(name, CudaGraph(None, compile=False), SIDE_BY_SIDE)


@pytest.mark.usefixtures("captured")
@pytest.mark.parametrize(
    "correct",
    [lambda g: g * float(g.new_ones(())), lambda g: g + torch.ones(g.shape[-1]).to(g), lambda g: g * torch.tensor(2.0)],
    ids=["waits", "copies", "reads the host"],
)
def test_a_recorded_step_that_has(
    correct: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "try_additions", lambda work: None)  # would refuse the first one before it is recorded
    with pretended.gpu() as device, pytest.raises((Mixed, RuntimeError)):
        train(federation(device=device, executor=CudaGraph(None, compile=False)), correct=correct)


RUNS = {
    "default": "",
    "images": "algorithm=fedavg model=cnn_small evaluation.per_class=true client_split=redealt "
    "evaluation.matrix=[server/train,tuned/own,client/global]",
    # Small rates: batch norm over a few pixels doubles a difference in rounding with every step.
    "batch_norm": "algorithm=fedft model=resnet18 local.steps=1 local.epochs=null participation.cohort_size=2 "
    "local.lr=1e-5 algorithm.lr=1e-5",
    "on_disk": "algorithm=scaffold algorithm.store_on=disk delay.std=1",
    "on_host": "algorithm=fedcda algorithm.warmup=1 algorithm.store_on=host delay.std=1",
    "late": "algorithm=ca2fl delay.std=2 nonfinite=clip local.update_norm=0.1",
    "sums": "algorithm=fednova aggregator.sum_every=2 delay.std=1 num_clients=12 participation.cohort_size=5",
    "matched": "algorithm=fedma model=mlp model.hidden=[6]",
    "blocks": "algorithm=hyfem model=blocks_mlp partition=random_blocks partition.num_blocks=4 server_data=none "
    "algorithm.keep_own=true partition.blocks_per_client=2 partition.classes_per_client=2 "
    "evaluation.matrix=[client/global]",
    "several_models": "algorithm=dfml model=mix server_data=none client_split.validation=0.2 delay=none "
    "evaluation.matrix=[client/validation]",
    "submodels": "algorithm=heterofl model=mlp model.hidden=[8]",
    "signal": "algorithm=dec_fedprox loss=ace delay=none topology=ring",
    "analysis": "algorithm=fedavg analysis=update_cosines server_data@probe_data=in_domain probe_data.size=8",
}
TINY = (
    *("dataset=synthetic", "dataset.num_train=60", "dataset.num_test=40", "dataset.image_size=4", "num_clients=5"),
    *("partition=iid", "server_data.size=8", "evaluation.every=1", "executor=vectorized", "logger.save_model=true"),
)


@pytest.mark.slow  # every operation passes through Python
@pytest.mark.parametrize("what", RUNS)
def test_whole_runs(what: str, tmp_path: Path) -> None:
    """With their data, evaluation and files; stopped and continued; the numbers are the CPU's."""
    words = [*TINY, *RUNS[what].split()]
    if "server_data=none" in words:
        words.remove("server_data.size=8")
    if what == "blocks":
        words = ["dataset.image_size=8" if word == "dataset.image_size=4" else word for word in words]
        words.remove("partition=iid")

    def rows(folder: str, *more: str) -> list[dict[str, float]]:
        run_in(tmp_path / folder, composed(*words, *more))
        return [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]

    here = rows("here", "rounds=3")
    with pretended.gpu():
        there = rows("there", "rounds=3", "device=cuda")
        rows("stopped", "rounds=2", "device=cuda")
        rows("stopped", "rounds=3", "device=cuda")
    for mine, theirs in zip(there, here, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3)
    assert (tmp_path / "there/metrics.jsonl").read_bytes() == (tmp_path / "stopped/metrics.jsonl").read_bytes()
