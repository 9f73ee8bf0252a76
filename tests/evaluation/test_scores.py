"""A score depends, to the last bit, on its model and its examples alone."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.executor import Executor
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation import scoring
from fedlab_runner.evaluation.scores import of_each, of_one, on_examples
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.run import run_in
from tests.evaluation.test_evaluator import evaluation
from tests.helpers.composed import composed
from tests.helpers.crash import FAMILIES, TINY
from tests.helpers.toy import model_family


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 5, 3), nn.Flatten(), nn.Linear(5 * 10 * 10, 37), nn.ReLU(), nn.Linear(37, 7))


def layers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 37), nn.ReLU(), nn.Dropout(), nn.Linear(37, 7))


def narrow() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(144, 9), nn.ReLU(), nn.Linear(9, 7))


@pytest.mark.parametrize("least", [0.0, float("inf")])
@pytest.mark.parametrize(
    "executor", [Loop(compile=False), Vectorized(3, compile=False), Vectorized(None, compile=False)]
)
@pytest.mark.parametrize(("build", "n", "batch_size"), [(convolutions, 17, 8), (layers, 17, 8), (narrow, 347, 1000)])
def test_a_models_place_among_others_does_not_matter(
    build: Callable[[], nn.Module],
    n: int,
    batch_size: int,
    executor: Executor,
    least: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products of few examples depend on where a model begins in memory, those of few neurons on where its activations
    begin.
    """
    monkeypatch.setattr(scoring, "MIN_ALONE_FLOPS", least)
    family = model_family(build, dtype=torch.float32)
    inputs, targets = torch.randn(n, 1, 12, 12), torch.arange(n) % 7
    client_data = ClientData(inputs, targets, [np.arange(n)] * 8, family.device)
    w, others = family.init(0), torch.stack([family.init(seed) for seed in range(1, 8)])
    found = set()
    for place in range(8):
        models = torch.cat([others[:place], w.unsqueeze(0), others[place:]])
        of_all = on_examples(executor, family, models, inputs, targets, batch_size).loss
        of_own = of_each(executor, family, models, client_data, np.arange(8), batch_size).loss
        found.add((float(of_all[place]), float(of_own[place])))
    assert len(found) == 1


@pytest.mark.parametrize("build", [convolutions, layers])
def test_models_that_work_alone_have_the_scores_of_those_that_do_not(
    build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On several threads too, where minibatches are smaller so that each thread has some."""
    family = model_family(build, dtype=torch.float32)
    inputs, targets = torch.randn(90, 1, 12, 12), torch.arange(90) % 7
    client_data = ClientData(inputs, targets, np.split(np.arange(90), [1, 50, 80]), family.device)
    models = torch.stack([family.init(seed) for seed in range(4)])
    executor, before, found = Vectorized(3, compile=False), torch.get_num_threads(), list[list[torch.Tensor]]()
    example = family.flops(family.normalize(inputs[:1], family.dtype)).forward
    for least, threads in ((float("inf"), 1), (0.0, 1), (0.0, 3), (20.0 * example, 1)):  # the last: of two clients
        monkeypatch.setattr(scoring, "MIN_ALONE_FLOPS", least)
        torch.set_num_threads(threads)
        family.mode(True)  # as training leaves it
        try:
            correct, loss = on_examples(executor, family, models, inputs, targets, 40)
            own = of_each(executor, family, models, client_data, np.arange(4), 40)
        finally:
            torch.set_num_threads(before)
        found.append([correct.double(), loss, torch.from_numpy(own.accuracy), torch.from_numpy(own.loss)])
    for together, alone, shared, some in zip(*found, strict=True):
        torch.testing.assert_close(alone, together, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(shared, alone, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(some, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["synchronous", "server_trained", "clients_only", "hybrid", "submodels"])
def test_a_run_has_the_same_scores_whether_its_models_work_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Networks that local training or its trial has used serve the evaluation too."""
    asked = ("evaluation.every=1", "evaluation.matrix=[client/global]")
    cfg, found = composed(*TINY, *FAMILIES[name].split(), *asked, small=False), []
    for least in (float("inf"), 0.0):
        monkeypatch.setattr(scoring, "MIN_ALONE_FLOPS", least)
        run_in(tmp_path / str(least), cfg)
        rows = map(json.loads, (tmp_path / str(least) / "metrics.jsonl").read_text().splitlines())
        found.append(
            [{key: value for key, value in row.items() if key.startswith(("test/", "client/"))} for row in rows]
        )
    together, alone = found
    assert len(alone) == 6 and all({"test/loss", "client/global_loss"} <= row.keys() for row in alone)
    assert [pytest.approx(row, rel=1e-5) for row in together] == alone


@pytest.mark.parametrize("least", [0.0, float("inf")])
def test_an_example_with_a_nan_logit_is_not_classified_correctly(least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a row's NaNs counts as its largest value, which would be class 0."""
    monkeypatch.setattr(scoring, "MIN_ALONE_FLOPS", least)
    family = model_family(layers, dtype=torch.float32)
    inputs, w, executor = torch.randn(40, 1, 12, 12), family.init(0), Loop(compile=False)
    targets = family.predict(w, inputs).argmax(-1)
    inputs[3:7], targets[3:7] = float("nan"), 0
    client_data, ids = ClientData(inputs, targets, [np.arange(40)], family.device), np.arange(1)
    found = [
        on_examples(executor, family, w[None], inputs, targets, 40).correct.double().mean(),
        of_one(family, w, client_data, ids, 40).accuracy[0],
        of_each(executor, family, w[None], client_data, ids, 40).accuracy[0],
        evaluation().evaluate(executor, family, w, Examples(inputs, targets, targets, None))["test/accuracy"],
    ]
    assert found == [pytest.approx(36 / 40)] * 4
