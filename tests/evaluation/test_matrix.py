"""The evaluation matrix: cells against plain loops, in every executor; spreads; whole runs, resumed; refusals."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.metric_names import cell_of, is_share
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation import matrix
from fedlab_runner.evaluation.client_models import ClientModels
from fedlab_runner.evaluation.matrix import CellScores, Matrix, check_matrix, spread
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.run import run_in
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.utils.errors import UserError
from tests.evaluation.test_evaluator import evaluation
from tests.helpers.composed import composed
from tests.helpers.mixed import KINDS
from tests.helpers.toy import algorithm, federation, local, normed, run

SIZES = (6, 3, 19, 1, 12, 8, 5, 7)
TESTED = (4, 0, 9, 2, 30, 1, 3, 11)  # own test examples
ALL_DATA = ("global", "own", "unseen", "validation", "train")
EXECUTORS = [Loop(compile=False), Vectorized(3, compile=False), Vectorized(None, compile=False)]


class Own(FedAvg):
    """FedAvg whose clients use models of their own: the server's, moved by their number."""

    def client_models(self, state: Any, fed: Federation, ids: np.ndarray) -> torch.Tensor:
        return state.params + 0.3 * torch.from_numpy(ids).to(state.params).unsqueeze(1).sin()


def toy(**how: Any) -> Federation:
    """Clients with own tests and validation examples, two of them held out."""
    how = {"participation": UniformParticipation(4, None, 2)} | how
    fed = federation(SIZES, **how)
    data = fed.client_data
    parts = np.split(np.arange(60), np.cumsum(TESTED)[:-1])
    rng = np.random.default_rng(3)
    targets = torch.from_numpy(rng.integers(3, size=60))
    inputs = torch.from_numpy(rng.normal(size=(60, data.inputs.shape[1]))) + 2 * F.one_hot(targets, 5).double()
    fed.client_tests = ClientData(inputs, targets, parts, data.inputs.device)
    fed.validation = ClientData(data.inputs, data.targets, [data.members(i)[:2] for i in range(8)], inputs.device)
    return fed


def judge(built: Any, fed: Federation, *cells: str, **changes: Any) -> Matrix:
    asked = evaluation(matrix=list(cells), **changes)
    check_matrix(asked, built, fed)
    test = Examples(fed.client_data.inputs, fed.client_data.targets, fed.client_data.targets, None)
    return Matrix(asked, built, fed, test, ClientModels(asked, fed, test))


def plain(
    fed: Federation, data: str, models: dict[int, tuple[ModelFamily, torch.Tensor]]
) -> dict[int, tuple[float, float, int]]:
    """(accuracy, loss, examples) of each client of a column, one after the other."""
    found, examples = {}, {"validation": fed.validation, "train": fed.client_data}.get(data, fed.client_tests)
    out = fed.held_out.tolist()
    for client, (family, w) in models.items():
        assert examples is not None
        rows = np.arange(len(fed.client_data.targets)) if data == "global" else examples.members(client)
        source = fed.client_data if data == "global" else examples
        if len(rows) and (client in out) == (data == "unseen"):
            logits = family.predict(w, source.inputs[rows])
            right = float((logits.argmax(1) == source.targets[rows]).double().mean())
            weight = len(fed.client_data.members(client)) if data == "global" else len(rows)
            found[client] = right, float(F.cross_entropy(logits, source.targets[rows])), weight
    return found


def agree(scores: CellScores, expected: dict[int, tuple[float, float, int]]) -> None:
    assert scores.ids.tolist() == list(expected)
    right, loss, weights = zip(*expected.values(), strict=True)
    np.testing.assert_allclose(scores.accuracy, right, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scores.loss, loss, rtol=0, atol=1e-12)
    assert scores.weights.tolist() == list(weights)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", ["server", "client"])
@pytest.mark.parametrize("batch_size", [2, 7, 500])
def test_each_cell_is_a_plain_loop_over_clients(kind: str, executor: Any, batch_size: int, monkeypatch: Any) -> None:
    fed, built = toy(executor=executor, build=normed), Own("delta", "size", 1.0)
    monkeypatch.setattr("fedlab_runner.evaluation.scores.MAX_VALUES", 3 * fed.family.size)  # three models at once
    assert len(fed.held_out) == 2 and fed.client_tests is not None
    state = run(built, fed, 2)
    own = built.client_models(state, fed, np.arange(8))
    models = {i: (fed.family, state.params if kind == "server" else own[i]) for i in range(8)}
    columns = [data for data in ALL_DATA if (kind, data) != ("server", "global")]
    found = judge(built, fed, *(f"{kind}/{data}" for data in columns), batch_size=batch_size).by_client(state, 2)
    assert list(found) == [f"{kind}/{data}" for data in columns]
    for data in columns:
        agree(found[f"{kind}/{data}"], plain(fed, data, models))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_clients_models_of_several_architectures(executor: Any) -> None:
    fed, built = toy(executor=executor, builds=KINDS), algorithm("dec_fedavg")
    state = run(built, fed, 3)
    models = {i: (fed.families[i % 3], state.models[i]) for i in range(8)}
    found = judge(built, fed, *(f"client/{data}" for data in ALL_DATA)).by_client(state, 3)
    for data in ALL_DATA:
        agree(found[f"client/{data}"], plain(fed, data, models))


def test_without_own_models_clients_have_the_servers_which_is_scored_once(monkeypatch: Any) -> None:
    fed, built = toy(), algorithm("fedavg")
    state = run(built, fed, 2)
    monkeypatch.setattr(matrix, "of_each", lambda *_: pytest.fail("one model, and not one for each client"))
    found = judge(built, fed, "server/own", "client/own", "client/global").by_client(state, 2)
    for mine, theirs in zip(found["client/own"], found["server/own"], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert len(set(found["client/global"].accuracy)) == 1


def test_a_clients_model_that_is_not_finite_is_named(caplog: pytest.LogCaptureFixture) -> None:
    fed, built = toy(), algorithm("fedavg")
    assert fed.client_tests is not None
    fed.client_tests.targets.zero_()
    poor = int(fed.held_out[0])
    fed.client_data.inputs[fed.client_data.members(poor)] = float("inf")
    state = built.init(fed)
    judged = judge(built, fed, "tuned/unseen")
    found = judged.by_client(state, 0)["tuned/unseen"]
    assert found.accuracy[found.ids == poor] == 0
    judged.by_client(state, 1)
    assert [record.getMessage() for record in caplog.records] == [
        f"round 0: tuned/unseen: the loss of 1 client ({poor}) is not finite: the model has diverged there, or the "
        "examples are too large"
    ]


@pytest.mark.parametrize("name", ["fedexp", "fedwalk"])
def test_server_cells_are_of_the_model_that_is_tested(name: str) -> None:
    """FedExP evaluates the mean of its last two models; FedWalk's clients have what its base's clients have."""
    fed, built = toy(), algorithm(name)
    state = run(built, fed, 2)
    assert torch.equal(built.client_models(state, fed, np.array([1, 4])), built.models(state).expand(2, -1))  # type: ignore[union-attr]


def test_server_global_is_the_test_metric() -> None:
    fed, built = toy(), algorithm("fedavg")
    found = judge(built, fed, "server/global").evaluate(
        built.init(fed), 0, {"test/accuracy": 0.25, "test/loss": 2.0, "test/accuracy_class/0": 0.5}
    )
    assert found == {"server/global": 0.25, "server/global_loss": 2.0}


# Tuned models.


def tuned(fed: Federation, state: Any, round: int = 2, **changes: Any) -> torch.Tensor:
    built = algorithm("fedavg")
    judging = judge(built, fed, "tuned/own", **changes)
    return judging._tuned(built.models(state), np.arange(fed.num_clients), round).clone()


def test_tuning_is_local_training_from_the_servers_model() -> None:
    """One epoch in one minibatch is a step along the client's mean gradient; batches do not matter then, nor how many
    steps a round has.
    """
    fed = toy(training=local(batch_size=100, epochs=None, steps=7))
    state = run(algorithm("fedavg"), fed, 1)
    fed.begin(1, 0.01)  # the schedule does not count
    found = tuned(fed, state)
    for client in range(8):
        leaf = state.params.clone().requires_grad_()
        rows = fed.client_data.members(client)
        logits = fed.family.forward(fed.family.views(leaf), fed.client_data.inputs[rows])
        (g,) = torch.autograd.grad(F.cross_entropy(logits, fed.client_data.targets[rows]), leaf)
        torch.testing.assert_close(found[client], state.params - 0.1 * g, rtol=0, atol=1e-12)


def test_tuning_is_keyed_by_round_has_streams_of_its_own_and_lasts_its_epochs() -> None:
    fed = toy(training=local(batch_size=2))
    state = run(algorithm("fedavg"), fed, 1)
    once = tuned(fed, state)
    assert torch.equal(once, tuned(fed, state)), "the same bits"
    assert not torch.equal(once, tuned(fed, state, round=3)) and not torch.equal(
        once, tuned(fed, state, fine_tune_epochs=2)
    )
    fed.begin(2, 1.0)
    trained = fed.cohort(np.arange(8), local=local(batch_size=2, epochs=1)).train(state.params)
    assert not torch.isclose(once[4], trained[4]).all(), "not the minibatches of the round"


@pytest.mark.parametrize("build", ["mlp", "normed"])
def test_tuning_is_the_same_in_every_executor(build: str, monkeypatch: Any) -> None:
    found = []
    for executor in EXECUTORS:
        fed = toy(executor=executor, **({"build": normed} if build == "normed" else {}))
        monkeypatch.setattr("fedlab_runner.evaluation.scores.MAX_VALUES", 3 * fed.family.size)
        built = algorithm("fedavg")
        judging = judge(built, fed, "tuned/own", "tuned/unseen", "tuned/global")
        found.append(judging.by_client(run(algorithm("fedavg"), fed, 1), 1))
    for other in found[1:]:
        for cell, scores in found[0].items():
            for mine, theirs in zip(scores, other[cell], strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9)
    assert (found[0]["tuned/own"].accuracy != found[0]["tuned/global"].accuracy[:1]).any()


# Spreads.


@pytest.mark.parametrize("clients", [1, 4, 10, 25])
def test_a_spread_is_that_of_as_many_equal_clients(clients: int) -> None:
    """A client with n examples counts like n clients; with 10 copies of each, the worst tenth is a whole number."""
    rng = np.random.default_rng(clients)
    accuracy, weights = rng.random(clients), rng.integers(1, 9, clients)
    found = spread("server/own", CellScores(np.arange(clients), accuracy, 2 * accuracy, weights))
    for key, copies in (("server/own", np.full(clients, 10)), ("server/own_weighted", 10 * weights)):
        each = np.sort(np.repeat(accuracy, copies))
        assert found[key] == pytest.approx(each.mean()) and found[f"{key}_loss"] == pytest.approx(2 * each.mean())
        assert found[f"{key}_std"] == pytest.approx(each.std())
        assert found[f"{key}_worst_decile"] == pytest.approx(each[: len(each) // 10].mean())
    assert found["server/own_worst"] == accuracy.min()
    assert all(cell_of(key) == "server/own" for key in found)


def test_keys_that_are_of_a_cell_and_that_are_shares() -> None:
    for key, cell in {
        "server/own": "server/own",
        "tuned/unseen_weighted_worst_decile": "tuned/unseen",
        "client/global_loss": "client/global",
    }.items():
        assert cell_of(key) == cell
    assert {cell_of(key) for key in ("server/own_mean", "server/test", "peer/own", "round", "test/loss")} == {None}
    assert is_share("server/own_std") and is_share("test/accuracy")
    assert not is_share("server/own_loss") and not is_share("server/own_weighted_loss") and not is_share("train/loss")


# Whole runs.

WHOLE = (
    *("algorithm=fedavg", "server_data=none", "client_split=redealt", "client_split.validation=0.1", "delay.std=1"),
    *("participation.held_out_clients=0.25", "evaluation.every=1", "evaluation.metric=tuned/own_worst_decile"),
    "evaluation.matrix=[server/own,client/own,tuned/own,server/unseen,tuned/unseen,server/train,client/validation]",
)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_has_its_cells_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    for name, rounds in (("a", (4,)), ("b", (2, 4)), ("c", (3, 4))):
        for end in rounds:
            executor = ("executor=loop",) if name == "c" else ()
            run_in(tmp_path / name, composed(*WHOLE, f"rounds={end}", *executor))
    files = ("metrics.jsonl", "clients.csv", "partition.csv")
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)
    for mine, theirs in zip(rows(tmp_path / "a"), rows(tmp_path / "c"), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-3), "other executors train other last bits"
    last, summary = rows(tmp_path / "a")[-1], json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["objective"] == max(row["tuned/own_worst_decile"] for row in rows(tmp_path / "a")[1:])
    with (tmp_path / "a/clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    with (tmp_path / "a/partition.csv").open() as file:
        partition = list(csv.DictReader(file))
    assert [row["held_out"] for row in clients] == [row["held_out"] for row in partition]
    assert sum(int(row["held_out"]) for row in clients) == 3
    for cell, out in (("server/own", "0"), ("tuned/unseen", "1")):
        there = [(i, float(row[cell])) for i, row in enumerate(clients) if row[cell]]
        assert last[cell] == pytest.approx(np.mean([accuracy for _, accuracy in there]))
        assert all(clients[i]["held_out"] == out for i, _ in there)
        weights = [int(partition[i]["test"]) for i, _ in there]
        assert last[f"{cell}_weighted"] == pytest.approx(np.average([each for _, each in there], weights=weights))


def test_evaluation_changes_nothing_that_it_looks_at(tmp_path: Path) -> None:
    run_in(tmp_path / "a", composed(*WHOLE, "rounds=3"))
    run_in(tmp_path / "b", composed(*WHOLE[:-2], "rounds=3", "evaluation.metric=test/accuracy", "evaluation.matrix=[]"))
    for mine, theirs in zip(rows(tmp_path / "a"), rows(tmp_path / "b"), strict=True):
        assert theirs.items() <= mine.items() and not any(map(cell_of, theirs))
    assert not (tmp_path / "b/clients.csv").exists()


NEEDS = "evaluation.matrix has {}, which needs "


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["evaluation.matrix=[server/owned]"],
            "evaluation.matrix must be a list of <model>/<data> with a model of server, client, tuned and data of "
            "global, own, unseen, validation, train, got server/owned",
        ),
        (["evaluation.matrix=[server/own_std]"], "evaluation.matrix must be a list of "),
        (["evaluation.fine_tune_epochs=0"], "evaluation.fine_tune_epochs must be >= 1, got 0"),
        (["evaluation.matrix=[server/own]"], NEEDS.format("server/own") + "test examples of each client: set "),
        (["evaluation.metric=client/own"], "evaluation.metric is of client/own, which needs test examples of each "),
        (
            ["evaluation.matrix=[server/unseen]", "client_split=redealt"],
            NEEDS.format("server/unseen") + "clients that never train: set participation.held_out_clients",
        ),
        (
            ["evaluation.matrix=[server/validation]"],
            NEEDS.format("server/validation") + "validation examples: set client_split.validation",
        ),
        (
            ["evaluation.matrix=[client/own]", "client_split.test=1e-9"],
            NEEDS.format("client/own") + "a client with own examples: raise the share in client_split",
        ),
        (
            ["evaluation.matrix=[server/train]", "algorithm=dfml"],
            NEEDS.format("server/train") + "a server's model, and algorithm=dfml has none: ask for client/train",
        ),
        (
            ["evaluation.matrix=[tuned/train]", "algorithm=standalone"],
            "evaluation.matrix has no tuned/... for algorithm=standalone, which has no server's model: ask for client/",
        ),
        (
            [
                *("evaluation.matrix=[server/train]", "algorithm=hyfem", "model=blocks_mlp", "partition=random_blocks"),
                *("partition.num_blocks=4", "partition.blocks_per_client=2"),
            ],
            NEEDS.format("server/train") + "clients that hold all feature blocks of the server's model: ask for client",
        ),
        (["evaluation.metric=server/own_mean"], "evaluation.metric must be one of test/accuracy, test/loss, got serv"),
    ],
)
def test_a_cell_that_cannot_be_is_one_line_before_training(
    overrides: list[str], message: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Vectorized, "train", lambda *_: pytest.fail("it trains"))
    with pytest.raises(UserError) as error:
        run_in(tmp_path, composed("server_data=none", "algorithm=fedavg", *overrides))
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "warned"),
    [
        (["home=head"], True),
        (["home=head", "evaluation.metric=server/own_std"], True),
        (["home=head", "evaluation.metric=client/own"], False),
        (["home=head", "algorithm=dpsgd"], False),
        (["home=head", "algorithm=fedrep", "model=mlp"], True),
        (["home=head", "algorithm=fedbabu", "model=mlp"], False),
        (["home=none"], False),
    ],
)
def test_an_objective_of_a_model_with_a_part_that_never_changes_is_said(
    overrides: list[str], warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = ("algorithm=fedavg", "rounds=0", "server_data=none", "model=logistic", "client_split.test=0.2")
    run_in(tmp_path, composed(*base, *overrides))
    assert ("in which the part that stays at home never changes: client/own is of" in caplog.text) == warned
