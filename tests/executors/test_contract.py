"""The loop equals a plain PyTorch loop over modules; every other executor equals the loop."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.losses import WSM
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.work import Work
from fedlab_runner.executors import vectorized
from fedlab_runner.executors.auto import Auto
from fedlab_runner.executors.compiled import width
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers.added import ADDED, data
from tests.helpers.kinds import by_pairs, in_turns
from tests.helpers.paths import ROOT
from tests.helpers.toy import CLASSES, FEATURES, RAGGED, asked, federation, home, local, mlp, normed

EVERYONE = np.arange(len(RAGGED))
SETTINGS: dict[str, LocalTraining] = {
    "sgd": local(),
    "momentum": local(momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": local(optimizer="adam", lr=0.01, eps=1e-2, weight_decay=0.01),
    "adamw_steps": local(optimizer="adamw", lr=0.01, epochs=None, steps=5, weight_decay=0.1, eps=1e-2),
    "clipped": local(clip_norm=0.05),
    "tiny_batches": local(batch_size=3),
}
OTHERS: dict[str, Executor] = {
    "whole_cohort": Vectorized(chunk_size=None, compile=False),
    "chunks_of_3": Vectorized(chunk_size=3, compile=False),
    "chunks_of_1": Vectorized(chunk_size=1, compile=False),
    "processes": Processes(workers=2, inner=Loop(compile=False)),
    "auto": Auto(seconds=30.0, workers=2, compile=False),
}


def convolutional() -> nn.Module:
    """Batch norm and convolutions, read from feature vectors."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 5, 1)),
        nn.Conv2d(1, 3, (3, 1)),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(9, CLASSES),
    )


def by_instance() -> nn.Module:
    """Running statistics of all examples of a minibatch, as in batch norm, but also of a single one."""
    norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Unflatten(1, (2, 4)), norm, nn.Flatten(), nn.Linear(8, CLASSES))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "normed": normed,
    "by_instance": by_instance,
    "convolutional": convolutional,
}


def train(fed: Federation, ids: np.ndarray = EVERYONE, **how: Any) -> tuple[Tensor, Tensor]:
    cohort = fed.cohort(ids)
    y = cohort.train(how.pop("start", fed.family.init(0)), **how)
    assert cohort.last_loss is not None
    return y, cohort.last_loss


def plain_loop(fed: Federation, module: nn.Module, client: int, setting: LocalTraining) -> tuple[Tensor, float]:
    """What a user would write: a module, a torch optimiser, minibatches as the client's key gives them."""
    module.load_state_dict(
        fed.family.state_dict(fed.family.init(0)), strict=False
    )  # it has counters, which are no model's
    if fed.client_data.num_examples[client] == 1:
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
                part.eval()
    kinds = {
        "sgd": lambda p: torch.optim.SGD(p, setting.lr, setting.momentum, 0, setting.weight_decay, setting.nesterov),
        "adam": lambda p: torch.optim.Adam(p, setting.lr, eps=setting.eps, weight_decay=setting.weight_decay),
        "adamw": lambda p: torch.optim.AdamW(p, setting.lr, eps=setting.eps, weight_decay=setting.weight_decay),
    }
    optimizer = kinds[setting.optimizer](list(module.parameters()))
    plan = fed.client_data.plan(np.array([client]), setting, seed=0, round=0, drop_single=fed.family.has_batch_norm)
    losses, weights = [], []
    for t, size in enumerate(plan.sizes[0].tolist()):
        rows = plan.indices[0, t, :size]
        loss = nn.functional.cross_entropy(module(fed.client_data.inputs[rows]), fed.client_data.targets[rows])
        optimizer.zero_grad()
        loss.backward()
        if setting.clip_norm:
            nn.utils.clip_grad_norm_(module.parameters(), setting.clip_norm)
        optimizer.step()
        if t >= plan.last_epoch[0]:
            losses.append(loss.item() * size)
            weights.append(size)
    return fed.family.vector(module), sum(losses) / sum(weights)


@pytest.mark.parametrize(("setting", "model"), in_turns(SETTINGS, MODELS))
def test_the_loop_is_a_plain_pytorch_loop(setting: str, model: str) -> None:
    fed = federation(build=MODELS[model], training=SETTINGS[setting])
    y, losses = train(fed)
    for client in EVERYONE.tolist():
        vector, loss = plain_loop(fed, MODELS[model]().double(), client, SETTINGS[setting])
        torch.testing.assert_close(y[client], vector, rtol=0, atol=2e-6 if SETTINGS[setting].clip_norm else 1e-10)
        assert losses[client].item() == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(("setting", "model", "executor"), by_pairs(SETTINGS, MODELS, OTHERS))
def test_every_executor_equals_the_loop(setting: str, model: str, executor: str) -> None:
    """Ragged clients (1 to 40 examples), partial minibatches, batch norm statistics."""
    reference = train(federation(build=MODELS[model], training=SETTINGS[setting]))
    result = train(federation(build=MODELS[model], training=SETTINGS[setting], executor=OTHERS[executor]))
    for mine, theirs in zip(result, reference, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("executor", OTHERS)
def test_losses_and_corrections_get_what_belongs_to_each_client_and_step(executor: str) -> None:
    """A correction alone too, which follows the loop's gradient layer by layer."""
    ids = np.array([5, 2, 7])
    own = torch.linspace(0.1, 0.5, 3, dtype=torch.float64)

    def outcome(executor: Executor, **more: Any) -> Tensor:
        fed = federation(executor=executor)

        def of_step(work: Work, rows: np.ndarray, step: int) -> tuple[Tensor]:
            return (torch.from_numpy(work.ids[rows]) * own.new_tensor(0.05 * step),)

        added: dict[str, Any] = {"correct": lambda g, pull, now, x: g - (pull + now) * x, "per_step": of_step}
        return train(fed, ids, **added | {"per_client": (own,), "common": (fed.family.init(1),)} | more)[0]

    def loss(model: Any, batch: Any, pull: Tensor, now: Tensor, x: Tensor) -> Tensor:
        return model.family.loss(model, batch) + (pull - now) * (model.params - x).square().sum()

    loop = Loop(compile=False)
    for more in ({}, {"loss": loss}):
        mine, theirs = (outcome(each, **more) for each in (OTHERS[executor], loop))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
    of_step = outcome(loop, correct=lambda g, pull, now, x: g - now * x)
    assert torch.equal(of_step, outcome(loop, per_client=(), correct=lambda g, now, x: g - now * x)), "in this order"


@pytest.mark.parametrize(
    ("executor", "added", "setting"),
    by_pairs([name for name in OTHERS if name != "auto"], ADDED, ["sgd", "adam", "clipped"]),
)
def test_what_algorithms_add(executor: str, added: str, setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To steps of the loop, layer by layer or on vectors, and side by side: as on a vmapped objective of one client,
    and by vmapped gradients, as for large models.
    """
    found = []
    for each, most in ((Loop(compile=False), 0), (OTHERS[executor], 10**6), (OTHERS[executor], 0)):
        monkeypatch.setattr(vectorized, "MAX_PLAIN_PARAMS", most)
        fed = federation(build=normed, training=SETTINGS[setting], executor=each)
        found.append(train(fed, **ADDED[added], **data(fed, len(EVERYONE))))
        plain, _ = train(fed)
        assert not torch.allclose(found[-1][0], plain, atol=1e-6)
    for theirs, *mine in zip(*found, strict=True):
        for each in mine:
            torch.testing.assert_close(each, theirs, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("added", ["penalty", "correction", "all"])
def test_what_algorithms_add_is_compiled_once(added: str) -> None:
    from torch._dynamo.utils import counters

    for executor in (Loop(compile=True), Vectorized(chunk_size=None, compile=True)):
        fed, plain = federation(executor=executor), federation()
        for round in range(3):
            counters.clear()
            for each in (fed, plain):
                each.begin(round, 1.0 / (1 + round))
            how = [{**ADDED[added], **data(each, len(EVERYONE), 0.1 + round)} for each in (fed, plain)]
            for mine, theirs in zip(train(fed, **how[0]), train(plain, **how[1]), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
            assert bool(counters["stats"]) == (round == 0)


@pytest.mark.parametrize("frozen", [("0.weight", "0.bias"), ("2.bias",), tuple(k for k in federation().family.layout)])
@pytest.mark.parametrize("setting", ["sgd", "momentum", "adam"])
def test_what_is_frozen_stays(setting: str, frozen: tuple[str, ...]) -> None:
    fed = federation(training=SETTINGS[setting])
    alone, _ = train(fed, frozen=frozen)
    again, _ = train(federation(training=SETTINGS[setting], executor=OTHERS["chunks_of_3"]), frozen=frozen)
    torch.testing.assert_close(alone, again, rtol=0, atol=1e-10)
    start = fed.family.init(0).expand_as(alone)
    for name, (begin, shape) in fed.family.layout.items():
        place = slice(begin, begin + shape.numel())
        still = torch.equal(alone[:, place], start[:, place])
        assert still == (name in frozen)


@pytest.mark.parametrize("executor", OTHERS)
def test_clients_may_start_from_models_of_their_own(executor: str) -> None:
    starts = torch.stack([federation().family.init(seed) for seed in range(len(RAGGED))])
    result, _ = train(federation(executor=OTHERS[executor]), start=starts)
    reference, _ = train(federation(), start=starts)
    torch.testing.assert_close(result, reference, rtol=0, atol=1e-10)
    alone, _ = train(federation(), np.array([3]), start=starts[3])
    assert torch.equal(alone[0], reference[3])


@pytest.mark.parametrize(("kept", "executor"), in_turns(["head", "norm"], OTHERS))
def test_clients_may_start_with_values_of_their_own(kept: str, executor: str) -> None:
    """As from whole models; what they send has the received values in place of their own."""
    fed, other = (federation(executor=each, build=normed, home=home(kept)) for each in (None, OTHERS[executor]))
    mask, w = fed.home.mask(fed.family), fed.family.init(0)
    for round in range(2):
        fed.begin(round, 1.0)
        other.begin(round, 1.0)
        cohort = asked(fed, EVERYONE.tolist())
        expected = cohort.alone().train(cohort.starts(w)).clone()
        sent = cohort.train(w).clone()
        assert torch.equal(sent, torch.where(mask, w, expected)) and not torch.equal(sent, expected)
        assert torch.equal(fed.home.starts(w, EVERYONE), torch.where(mask, expected, w))
        torch.testing.assert_close(asked(other, EVERYONE.tolist()).train(w), sent, rtol=0, atol=1e-9)
        w = sent.mean(0)


@pytest.mark.parametrize("executor", [Loop(compile=False), *OTHERS.values()])
def test_training_leaves_its_inputs_and_the_global_generator_alone(executor: Executor) -> None:
    fed = federation(executor=executor, build=normed)
    start = fed.family.init(0)
    kept, generator = start.clone(), torch.random.get_rng_state()
    train(fed, start=start)
    assert torch.equal(start, kept) and torch.equal(torch.random.get_rng_state(), generator)


@pytest.mark.parametrize("executor", [Loop(compile=False), *OTHERS.values()])
def test_nobody_may_train(executor: Executor) -> None:
    y, losses = train(federation(executor=executor), np.empty(0, np.int64))
    assert y.shape == (0, federation().family.size) and losses.shape == (0,)


def dropping() -> nn.Module:
    return nn.Sequential(mlp(), nn.Dropout(0.5), nn.Linear(CLASSES, CLASSES))


@pytest.mark.parametrize("executor", [Loop(compile=False), *OTHERS.values()])
def test_dropout_is_a_function_of_the_key(executor: Executor) -> None:
    fed = federation(build=dropping, executor=executor)
    first, again = train(fed)[0], train(fed)[0]
    fed.begin(1, 1.0)
    assert torch.equal(first, again) and not torch.allclose(first[7], train(fed)[0][7])


def of_other_generators(model: FunctionalModel, batch: Batch) -> Tensor:
    return (1 + np.random.rand() + random.random()) * model.family.loss(model, batch)


@pytest.mark.parametrize("executor", [Loop(compile=False), *OTHERS.values()])
def test_draws_of_numpy_and_python_in_a_step_are_a_function_of_the_key(executor: Executor) -> None:
    fed, states = federation(executor=executor), (str(np.random.get_state()), random.getstate())
    first = train(fed, loss=of_other_generators)[0]
    assert (str(np.random.get_state()), random.getstate()) == states
    np.random.rand()
    random.random()
    again = train(fed, loss=of_other_generators)[0]
    assert torch.equal(first, again) and not torch.allclose(first[7], train(fed)[0][7])


def with_noise(g: Tensor) -> Tensor:
    return g + 0.01 * torch.randn_like(g)


@pytest.mark.slow  # compiles
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_noise_in_a_step_is_a_function_of_the_key(compile: bool) -> None:
    fed = federation(executor=Loop(compile=compile))
    first, again = train(fed, correct=with_noise)[0], train(fed, correct=with_noise)[0]
    fed.begin(1, 1.0)
    assert torch.equal(first, again) and not torch.allclose(first[7], train(fed, correct=with_noise)[0][7])


COMPILED: list[Executor] = [
    Loop(compile=True),
    Vectorized(chunk_size=None, compile=True),
    Vectorized(chunk_size=3, compile=True),
    Processes(workers=2, inner=Loop(compile=True)),
]


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["sgd", "momentum", "adam", "adamw_steps", "clipped"])
@pytest.mark.parametrize("executor", COMPILED, ids=["loop", "cohort", "chunks", "processes"])
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
def test_compiled_equals_eager(executor: Executor, setting: str) -> None:
    """Ragged clients, partial minibatches, a learning rate that changes, and models that differ at the start."""
    fed, plain = (federation(training=SETTINGS[setting], executor=e) for e in (executor, Loop(compile=False)))
    starts = torch.stack([fed.family.init(seed) for seed in range(len(RAGGED))])
    for round, factor in enumerate((1.0, 0.5, 0.1)):
        for each in (fed, plain):
            each.begin(round, factor)
        for how in ({}, {"start": starts}):
            for mine, theirs in zip(train(fed, **how), train(plain, **how), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_what_is_compiled_side_by_side_is_the_loops_step(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is compiled: padding spares the compiler a graph, and must not reach batch norm."""
    monkeypatch.setattr("fedlab_runner.executors.graphs.graph_of", lambda step, **_: step)
    monkeypatch.setattr("fedlab_runner.executors.vectorized.in_layers", lambda work: False)
    reference = train(federation(build=MODELS[model]))
    compiled = train(federation(build=MODELS[model], executor=Vectorized(chunk_size=3, compile=True)))
    for mine, theirs in zip(compiled, reference, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_steps_know_the_supervision_signal_and_the_layout_of_images() -> None:
    def images() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, 5, 1)), nn.Conv2d(1, 3, (3, 1)), nn.Flatten(), nn.Linear(9, CLASSES))

    how = {"build": images, "loss_function": WSM()}
    reference = train(federation(**how))
    for executor in (Loop(compile=True), Vectorized(chunk_size=3, compile=True)):
        for mine, theirs in zip(train(federation(**how, executor=executor)), reference, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_graph_serves_all_rounds_and_each_task_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    for _ in range(10):  # more than the compiler's limit for one function
        fed = federation(executor=Loop(compile=True))
        train(fed)
        counters.clear()
        for round in (1, 2):
            fed.begin(round, 1.0 / (1 + round))
            train(fed)
        assert not counters["stats"], "nothing is compiled in later rounds"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_are_never_left_to_compile(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that comes to a cohort or a chunk of a new size can wait for ever for the compiler's threads."""
    from torch._dynamo.utils import counters

    train_chunk, here = Vectorized.train_chunk, os.getpid()

    def watched(self: Vectorized, *how: Any) -> None:
        time.sleep(0.3 * (os.getpid() == here))  # the worker takes its share
        counters.clear()
        train_chunk(self, *how)
        assert os.getpid() == here or not counters["stats"], "compiled in a worker"

    monkeypatch.setattr(Vectorized, "train_chunk", watched)
    training = local(epochs=None, steps=3)  # what is asked for in later rounds is plain work: workers stay
    inner = Vectorized(chunk_size=3, compile=True)
    fed = federation(executor=Processes(workers=2, inner=inner), training=training)
    alone, ragged = federation(executor=inner, training=training), federation(executor=Processes(2, inner))
    for round, ids in enumerate((EVERYONE, EVERYONE[:5], EVERYONE[:1], EVERYONE[2:], EVERYONE)):
        for each in (fed, alone, ragged):
            each.begin(round, 1.0)
        for mine, theirs in zip(train(fed, ids), train(alone, ids), strict=True):
            assert torch.equal(mine, theirs)
        train(ragged, ids)
    given_up = [record for record in caplog.records if record.name.startswith("fedlab_runner")]
    assert not given_up


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_chunks_need_few_graphs() -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    fed = federation(executor=Vectorized(chunk_size=None, compile=True))
    for size in (len(RAGGED), len(RAGGED) - 1, len(RAGGED)):
        train(fed, EVERYONE[:size])
    assert counters["stats"]["unique_graphs"] == len({width(len(RAGGED)), width(len(RAGGED) - 1)})


STEPS = """
from fedlab_runner.executors.loop import Loop
from tests.executors.test_contract import federation, train
print(train(federation(executor=Loop(compile=True)))[0].sum().item())
"""


@pytest.mark.slow  # compiles in two processes
def test_what_a_killed_compiler_has_left_is_compiled_anew(tmp_path: Path) -> None:
    """Each library in its cache is empty, as after a SIGKILL between making and writing it."""
    variables = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run() -> "subprocess.CompletedProcess[str]":
        return subprocess.run([sys.executable, "-c", STEPS], env=variables, capture_output=True, text=True, check=True)

    whole = run()
    libraries = list(tmp_path.rglob("*.main.so"))
    assert libraries
    for each in libraries:
        each.write_bytes(b"")
    again = run()
    assert again.stdout == whole.stdout and "is damaged: it is compiled again" in again.stderr
    assert all(each.stat().st_size for each in libraries)


def test_chunks_of_like_size_share_a_graph() -> None:
    assert all(width(n) == n for n in range(16))
    assert [width(n) for n in (16, 17, 31, 33, 50, 100, 1000)] == [16, 18, 32, 36, 52, 104, 1024]
