"""Evaluation where each client has a model of its own, validation splits, and mixes of architectures in whole runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_runner.config.build import run_id
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation import scoring
from fedlab_runner.evaluation.client_models import ClientModels
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.run import run_in
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.tracking.summary import summarise
from fedlab_runner.utils.errors import UserError
from tests.evaluation.test_evaluator import evaluation
from tests.helpers.composed import composed
from tests.helpers.mixed import distinct, mixed
from tests.helpers.peak import peak_bytes
from tests.helpers.toy import algorithm, federation, run


def examined(fed: Federation) -> Examples:
    inputs, targets = fed.client_data.inputs[:40], fed.client_data.targets[:40]
    return Examples(inputs, targets, targets, None)


def scores(fed: Federation, **changes: Any) -> dict[str, float]:
    return ClientModels(evaluation(**changes), fed, examined(fed)).evaluate(distinct(fed), {})


def plain(fed: Federation) -> list[float]:
    """The accuracy of each client's model."""
    models, test, count = distinct(fed), examined(fed), len(fed.families)
    logits = [fed.families[i % count].predict(w, test.inputs) for i, w in models.items()]
    return [float((z.argmax(-1) == test.targets).double().mean()) for z in logits]


@pytest.mark.parametrize("executor", [None, Vectorized(2, compile=False), Vectorized(None, compile=False)])
def test_metrics_are_means_over_clients_and_over_those_of_an_architecture(executor: Any) -> None:
    fed = mixed(**({} if executor is None else {"executor": executor}))
    found, each = scores(fed), plain(fed)
    assert found["test/accuracy"] == pytest.approx(np.mean(each))
    for a in range(3):
        assert found[f"test/accuracy_model/{a}"] == pytest.approx(np.mean(each[a::3]))
    assert not any(key.startswith("test/accuracy_model") for key in scores(federation([5] * 4)))
    classes = scores(fed, per_class=True)
    counts = torch.bincount(examined(fed).targets)
    weighted = sum(classes[f"test/accuracy_class/{c}"] * int(counts[c]) for c in range(3)) / 40
    assert weighted == pytest.approx(found["test/accuracy"])


def test_clients_that_never_train_do_not_count() -> None:
    """Those that are held out, and those without examples (`drop_empty=false`)."""
    fed = mixed((9, 0, 6, 12, 7, 0, 8, 5, 6), participation=UniformParticipation(2, None, 2))
    found, each, ids = scores(fed), np.array(plain(fed)), fed.participants
    assert 5 <= len(ids) <= 7 and not np.isin(ids, [1, 5, *fed.held_out]).any()
    assert found["test/accuracy"] == pytest.approx(each[ids].mean())
    for a in range(3):
        assert found[f"test/accuracy_model/{a}"] == pytest.approx(each[ids[ids % 3 == a]].mean())


@pytest.mark.parametrize("executor", [None, Vectorized(2, compile=False)])
def test_only_models_that_changed_are_evaluated_and_equal_ones_once(executor: Any, monkeypatch: Any) -> None:
    fed = mixed(**({} if executor is None else {"executor": executor}))
    asked: list[int] = []
    score = ClientModels._score

    def spy(self: ClientModels, family: ModelFamily, models: torch.Tensor) -> Any:
        asked.append(len(models))
        return score(self, family, models)

    monkeypatch.setattr(ClientModels, "_score", spy)
    judge, models = ClientModels(evaluation(), fed, examined(fed)), distinct(fed)
    judge.evaluate(models, {"others": (fed.families, models)})
    assert asked == [3, 2, 2]
    asked.clear()
    changed = models | {3: models[3] + 1}
    after = judge.evaluate(changed, {})
    assert asked == [1]
    fresh = ClientModels(evaluation(), fed, examined(fed)).evaluate(changed, {})
    assert after == fresh, "to the bit: a resumed run evaluates all again"
    asked.clear()
    same = {i: models[i % 3].clone() for i in models}
    ClientModels(evaluation(), fed, examined(fed)).evaluate(same, {})
    assert asked == [1, 1, 1]


@pytest.mark.parametrize("least", [0.0, np.inf], ids=["alone", "side by side"])
@pytest.mark.parametrize("executor", [Loop(compile=False), Vectorized(4, compile=False)], ids=["loop", "vectorized"])
def test_each_model_is_copied_once(executor: Executor, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MIN_ALONE_FLOPS", least)
    fed = federation([5] * 12, build=lambda: nn.Sequential(nn.Linear(5, 300), nn.Linear(300, 300)), executor=executor)
    models = {i: fed.family.init(i) for i in range(12)}
    of_models = ClientModels(evaluation(), fed, examined(fed))
    of_models.evaluate(dict.fromkeys(range(12), fed.family.init(12)), {})  # counts a model's operations
    held = peak_bytes(lambda: of_models.evaluate(models, {})) / (8 * fed.family.size)
    assert 12 < held < 14


def test_clients_by_architecture() -> None:
    fed = mixed()
    ids = np.array([5, 0, 3, 4, 6])
    groups = fed.by_architecture(ids)
    assert [(g.architecture, g.ids.tolist()) for g in groups] == [(0, [0, 3, 6]), (1, [4]), (2, [5])]
    assert [g.family for g in groups] == list(fed.families)
    assert [g.architecture for g in fed.by_architecture(np.array([2, 5]))] == [2]


# Whole runs.

TWO = (
    "model=mix",
    "loss=wsm",
    "client_split.validation=0.2",
    "evaluation.matrix=[client/validation]",
    "server_data=none",
    "evaluation.every=2",
)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_mix_runs_and_says_how_each_architecture_does(tmp_path: Path) -> None:
    changes = ("algorithm=dfml", "algorithm.epochs=1", "rounds=2", "evaluation.target=0.01", "topology=ring")
    run_in(tmp_path, composed(*changes, *TWO, small=False))
    last = rows(tmp_path)[-1]
    parts = [last["test/accuracy_model/0"], last["test/accuracy_model/1"]]
    assert last["test/accuracy"] == pytest.approx(sum(parts) / 2) and 0 <= last["client/validation"] <= 1
    assert json.loads((tmp_path / "summary.json").read_text())["rounds_to_target"] == 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm=fedavg", "model=mix"], r"^algorithm=fedavg needs one architecture for all clients, got 2: "),
        (
            ["algorithm=dfml", "model=mix", "num_clients=1"],
            r"^(model\.models must be at most|participation\.cohort_size)",
        ),
        (["algorithm=dfml", "participation.cohort_size=12"], r"^participation must leave one of the 12 clients that "),
        (["algorithm=heterofl", "model=mix"], r"^algorithm=heterofl needs models that differ in width alone: "),
        (["algorithm=def_kt", "model=mix"], r"^algorithm=def_kt needs one architecture for all clients, got 2: "),
        (["algorithm=def_kt", "participation.cohort_size=7"], r"^participation must be at most half of the 12 clients"),
        (["algorithm=dec_fedavg", "topology=edge_list", "topology.path=/nowhere"], r"^topology\.path must be"),
        (["algorithm=dec_fedavg", "topology=random_regular", "topology.degree=12"], r"^topology\.degree must be less"),
        (["algorithm=dec_fedavg", "topology=star", "topology.center=12"], r"^topology\.center must be an id below"),
        (["algorithm=dfml", "algorithm.alpha_max=2"], r"^algorithm\.alpha_max must be in \[0, 1\], got 2\.0$"),
        (["model=mix", "model.models=[]"], r"^model\.models must be a list of models"),
        (
            ["model=dfml/h1_cnn", "model.models.0.image_size=28"],
            r"^model\.image_size must be null or 32 in models\[0\] as for all, got 28: set model\.image_size for all$",
        ),
        (
            ["model=dfml/h1_cnn", "model.image_size=null", "model.models.0.image_size=28"],
            r"^model\.image_size must be null in models\[0\] as for all, got 28: set model\.image_size for all$",
        ),
        (["algorithm=dfml", "model=dfml_cnn", "model.widths=[8,8,8,8]"], r"^model\.image_size must be >= 16 for 4 lay"),
        (["client_split.validation=1.0"], r"^client_split.validation must be in \[0, 1\), got 1\.0$"),
    ],
)
def test_what_cannot_be_is_one_line(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        run_in(tmp_path, composed("server_data=none", *overrides))
    assert "\n" not in str(error.value)


def test_more_architectures_than_clients(tmp_path: Path) -> None:
    few = ("algorithm=dfml", "model=mix", "num_clients=1", "participation.cohort_size=1", "server_data=none")
    with pytest.raises(UserError, match=r"^model\.models must be at most as many as the 1 clients, got 2$"):
        run_in(tmp_path, composed(*few))


def test_what_goes_unused_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run_in(tmp_path / "a", composed("algorithm=dec_fedavg", "rounds=0", "server_data=none"))
    assert "algorithm=dec_fedavg has no server, so that no client is late: the delay is not used" in caplog.text
    assert "topology: 12 clients, 66 links, 11 at each client" in caplog.text
    run_in(tmp_path / "b", composed("algorithm=fedavg", "rounds=0", "server_data=none", "topology=ring"))
    assert "algorithm=fedavg has a server: the topology is not used" in caplog.text


def test_new_keys_at_rest_leave_names_as_they_were_and_others_do_not() -> None:
    plain = run_id(composed())
    assert run_id(composed("topology=mesh", "loss=ce", "client_split.validation=0.0", "evaluation.target=0.5")) == plain
    for change in ("topology=ring", "loss=wsm", "client_split.validation=0.1"):
        assert run_id(composed(change)) != plain


def test_rounds_to_a_target() -> None:
    table = [{"round": r, "test/accuracy": a, "test/loss": 1 - a} for r, a in enumerate((0.9, 0.2, 0.5, 0.4, 0.7))]

    def first(metric: str, target: float) -> Any:
        return summarise(table, metric, "last", 1, 1, 4, target)["rounds_to_target"]

    assert [first("test/accuracy", t) for t in (0.1, 0.45, 0.7, 0.8)] == [1, 2, 4, None]
    assert first("test/loss", 0.5) == 2
    assert "rounds_to_target" not in summarise(table, "test/accuracy", "last", 1, 1, 4)


def test_server_algorithms_see_one_architecture_as_ever() -> None:
    fed = federation([5] * 4)
    assert fed.families == (fed.family,) and fed.neighbours(2).tolist() == [0, 1, 3]
    assert not algorithm("fedavg").heterogeneous and run(algorithm("fedavg"), fed, 1) is not None
