"""Analyses: what they measure, that they change nothing, and that they continue after a stop."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedlab_runner.analyses.none import NoAnalysis
from fedlab_runner.analyses.update_cosines import UpdateCosines
from fedlab_runner.config.build import build
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.experiment.loop import Simulation
from fedlab_runner.experiment.run import prepare, run_in
from fedlab_runner.plots.diagnostics import PICTURES, plot_diagnostics
from fedlab_runner.utils.errors import Interrupted, UserError
from tests.helpers.composed import composed, files
from tests.helpers.toy import ALGORITHMS, RAGGED, algorithm, federation, local, run, server_data

SERVERS = [name for name in ALGORITHMS if isinstance(algorithm(name), ServerAlgorithm)]
SIZES = [6, 3, 9, 4, 12]


def measure(name: str, every: int = 1, clients: int | None = None, rounds: int = 3, **how: Any) -> list[dict[str, Any]]:
    """What is seen before each round."""
    fed, built, analysis = federation(SIZES, **{"cohort": 2, **how}), algorithm(name), UpdateCosines(every, clients)
    state, memory, seen = built.init(fed), analysis.init(), []
    for round in range(rounds):
        fed.begin(round, 1.0)
        memory, metrics = analysis.observe(memory, state, built, fed)
        seen.append(metrics)
        state = run(built, fed, 1, first=round, state=state)
    return seen


def test_the_cosines_are_those_of_the_updates_of_a_round_in_which_all_take_part() -> None:
    """With everyone in the cohort, the true update is FedAvg's own step."""
    (seen,) = measure("fedavg", rounds=1, cohort=len(SIZES))
    fed, built = federation(SIZES), algorithm("fedavg")
    before = built.init(fed)
    fed.begin(0, 1.0)
    updates = fed.start_cohort((before.params,)).train(before.params) - before.params
    step = run(built, federation(SIZES), 1).params - before.params
    cosines = F.cosine_similarity(updates, step, dim=1)
    assert seen["analysis/update_cosine_mean"] == pytest.approx(float(cosines.mean()), abs=1e-12)
    assert seen["analysis/update_cosine_min"] == pytest.approx(float(cosines.min()), abs=1e-12)
    assert seen["analysis/update_cosine_max"] == pytest.approx(float(cosines.max()), abs=1e-12)
    assert seen["analysis/update_cosine_negative"] == float((cosines < 0).double().mean())


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("fedavg", {}),
        ("fedprox", {}),
        ("ditto", {}),
        ("apfl", {"weighting": "size"}),
        ("fedala", {}),
        ("fedma", {"first_models": "own", "matched": False}),
    ],
)
def test_the_true_update_is_the_servers_step(name: str, keys: dict[str, Any]) -> None:
    """If everyone takes part and the server averages; also where clients start from other models than the server's."""
    fed, built, analysis = federation(SIZES), algorithm(name, **keys), UpdateCosines(1, None)
    state, memory = built.init(fed), analysis.init()
    for round in range(2):
        fed.begin(round, 0.5)
        memory, _ = analysis.observe(memory, state, built, fed)
        before, state = built.models(state), run(built, fed, 1, first=round, state=state, factor=0.5)
        torch.testing.assert_close(memory[round + 1], built.models(state) - before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SERVERS)
def test_it_works_beside_every_server_algorithm(name: str) -> None:
    for seen in measure(name, std=2.0):
        low, mean, high = (seen[f"analysis/update_cosine_{what}"] for what in ("min", "mean", "max"))
        assert -1 <= low <= mean <= high <= 1 + 1e-12 and high > 0


def test_a_true_update_is_compared_with_all_earlier_ones() -> None:
    seen = measure("fedavg", every=2, rounds=5)
    assert [sorted(key for key in row if "true_cosine" in key) for row in seen] == [
        [],
        [],
        ["analysis/true_cosine/1"],
        [],
        ["analysis/true_cosine/1", "analysis/true_cosine/3"],
    ]
    assert seen[1] == {} and all(-1 <= value <= 1 for row in seen for value in row.values())


def test_the_true_update_has_all_clients_however_many_are_measured() -> None:
    few, all_ = (measure("fedavg", clients=clients) for clients in (2, None))
    for mine, theirs in zip(few, all_, strict=True):
        for key in (key for key in theirs if "true_cosine" in key):
            assert mine[key] == theirs[key]
        assert theirs["analysis/update_cosine_min"] <= mine["analysis/update_cosine_min"]
        assert mine["analysis/update_cosine_max"] <= theirs["analysis/update_cosine_max"]
    assert few[0] != all_[0] and few == measure("fedavg", clients=2)


def test_identical_clients_agree() -> None:
    """One gradient step over all examples of each of two clients that have the same examples."""
    fed = federation([20, 20], training=local(epochs=1, batch_size=20))
    fed.client_data.inputs[20:], fed.client_data.targets[20:] = (
        fed.client_data.inputs[:20],
        fed.client_data.targets[:20],
    )
    built = algorithm("fedavg")
    fed.begin(0, 1.0)
    _, seen = UpdateCosines(1, None).observe({}, built.init(fed), built, fed)
    assert seen["analysis/update_cosine_min"] == pytest.approx(1)


def test_what_is_remembered_is_not_written_into() -> None:
    fed, built, analysis = federation(RAGGED), algorithm("fedavg"), UpdateCosines(1, None)
    fed.begin(0, 1.0)
    memory, _ = analysis.observe({}, built.init(fed), built, fed)
    (before,) = (t.clone() for t in memory.values())
    fed.begin(1, 1.0)
    analysis.observe(memory, built.init(fed), built, fed)
    assert list(memory) == [1] and torch.equal(memory[1], before)


# Whole runs.

PROBED = "server_data@probe_data=in_domain"
MEASURED = ("analysis=update_cosines", "analysis.every=2", "evaluation.every=1", "algorithm=scaffold")


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_an_analysis_changes_nothing_else(tmp_path: Path) -> None:
    run_in(tmp_path / "with", composed("rounds=5", *MEASURED))
    run_in(tmp_path / "without", composed("rounds=5", "evaluation.every=1", "algorithm=scaffold"))
    seen = rows(tmp_path / "with")
    assert [row["round"] for row in seen if "analysis/update_cosine_mean" in row] == [1, 3, 5]
    assert "analysis/true_cosine/3" in seen[5]
    rest = [{key: value for key, value in row.items() if not key.startswith("analysis/")} for row in seen]
    assert rest == rows(tmp_path / "without")


@pytest.mark.parametrize("stop", [2, 3])
def test_a_stopped_run_goes_on_to_the_same_bytes(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in(tmp_path / "whole", composed("rounds=6", *MEASURED))
    one_round = Simulation._round

    def interrupted(self: Simulation, now: Any, a_round: Any) -> Any:
        if now.round == stop:
            raise Interrupted(15)
        return one_round(self, now, a_round)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Simulation, "_round", interrupted)
        run_in(tmp_path / "stopped", composed("rounds=6", *MEASURED))
    assert len(rows(tmp_path / "stopped")) == stop + 1
    run_in(tmp_path / "stopped", composed("rounds=6", *MEASURED))
    assert files(tmp_path / "stopped") == files(tmp_path / "whole")


def test_another_analysis_is_another_run() -> None:
    from fedlab_runner.config.build import run_id

    plain = composed(small=False)
    names = {run_id(plain), *(run_id(composed(choice, small=False)) for choice in (MEASURED[0], PROBED))}
    assert len(names) == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["analysis=update_cosines", "analysis.every=0"], "analysis.every must be >= 1, got 0"),
        (["analysis=update_cosines", "analysis.clients=0"], "analysis.clients must be >= 1, got 0"),
        (
            ["analysis=update_cosines", "algorithm=center", "server_data=in_domain", "server_data.size=50"],
            "analysis=update_cosines needs clients that start from a server's model, not center's",
        ),
        ([PROBED, "probe_data.size=0"], "probe_data.size must be >= 1, got 0"),
        (
            [PROBED, "probe_data.size=1000", "algorithm=fedavg", "server_data=none"],
            "probe_data.size must leave some of the test set's 359 examples, got 1000",
        ),
        (
            ["server_data@probe_data=image_folder", "probe_data.root=/nowhere"],
            "probe_data.root must be a folder of one folder a class, got /nowhere, which does not exist",
        ),
    ],
)
def test_bad_input_is_one_line_before_training(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        run_in(tmp_path, composed(*overrides))
    assert str(error.value) == message and not (tmp_path / "metrics.jsonl").exists()


def test_no_analysis_sees_nothing() -> None:
    assert NoAnalysis().observe(None, None, algorithm("fedavg"), federation()) == (None, {})


# Probe data: Feddle's directions (Figures 7 and 9).


def test_probe_examples_leave_the_test_set_and_are_none_of_the_servers() -> None:
    sizes = ("server_data=in_domain", "server_data.size=50", PROBED, "probe_data.size=30")
    prepared = prepare(build(composed(*sizes)))
    fed, whole = (
        prepared.simulation.fed,
        prepare(build(composed("algorithm=fedavg", "server_data=none"))).simulation.test,
    )
    assert fed.server_data is not None and fed.probe_data is not None
    parts = (fed.server_data.inputs, fed.probe_data.inputs, prepared.simulation.test.inputs)
    assert [len(part) for part in parts] == [50, 30, len(whole.targets) - 80]
    flat = [part.flatten(1).double() for part in parts]
    assert torch.equal(torch.cat(flat).sort(0).values, whole.inputs.flatten(1).double().sort(0).values)


def test_with_the_servers_own_examples_as_probe_the_directions_are_one() -> None:
    fed, built = federation(RAGGED, cohort=3), algorithm("feddle", epochs=1)
    fed.probe_data = fed.server_data
    run(built, fed, 3)
    seen = fed.collect()
    assert seen["algorithm/probe_cosine_first"] == pytest.approx(1)
    assert seen["algorithm/probe_cosine_last"] == pytest.approx(1)


@pytest.mark.parametrize("num_classes", [3, 7])
@pytest.mark.parametrize("fallback", ["fedbuff", "zero"])
def test_looking_at_a_probe_changes_nothing_else(num_classes: int, fallback: str) -> None:
    seen, models = [], []
    for probe in (None, server_data(40, seed=5)):
        fed = federation(RAGGED, cohort=3, std=1.0, server=server_data(60, num_classes=num_classes))
        fed.probe_data = probe
        built = algorithm("feddle", epochs=2, fallback=fallback)
        models.append(built.models(run(built, fed, 4)))
        seen.append(fed.collect())
    assert torch.equal(*models)
    cosines = {key: seen[1].pop(key) for key in ("algorithm/probe_cosine_first", "algorithm/probe_cosine_last")}
    assert seen[0] == seen[1] and all(-1 <= value <= 1 for value in cosines.values())


@pytest.mark.parametrize("num_classes", [3, 7])
def test_the_direction_is_the_gradient_of_the_coefficients(num_classes: int) -> None:
    """Against autograd through the sum (Eq 7), at the start of the search, with minibatches of 25, 25 and 10 examples.
    Of other classes the server's classifier tells, when it has learnt.
    """
    fed = federation([8] * 4, server=server_data(60, num_classes=num_classes))
    fed.probe_data = server_data(60, seed=5)
    state = run(algorithm("feddle", epochs=2, batch_size=25), fed, 1)
    weight, bias = torch.split(state.head, [len(state.head) // 7 * 6, len(state.head) // 7])  # of 7 classes, or empty
    theta = {"2.weight": weight.view(7, 6), "2.bias": bias} if len(bias) else {}
    anchors, scales = state.atlas.anchors, state.atlas.scales(True)
    gradients = []
    for data, head in ((fed.server_data, theta), (fed.probe_data, {})):
        assert data is not None
        c = (1 / len(anchors) / scales).requires_grad_()
        omega = fed.family.init(0) + (c * scales) @ anchors
        loss = F.cross_entropy(fed.family.evaluate(omega, omega[:0], data.inputs, head), data.targets)
        gradients.append(torch.autograd.grad(loss, c)[0])
    cosine = float(F.cosine_similarity(*gradients, dim=0))
    assert fed.collect()["algorithm/probe_cosine_first"] == pytest.approx(cosine, abs=1e-10)


def test_probe_data_must_be_in_domain() -> None:
    fed = federation()
    fed.probe_data = server_data(20, num_classes=7)
    with pytest.raises(UserError, match="algorithm=feddle compares gradients on in-domain data"):
        algorithm("feddle").check(fed)


# Pictures.


def logged(count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"round": 0, "test/accuracy": 0.1}]
    for r in range(1, count + 1):
        row = {"min": -0.2, "q25": 0.0, "mean": 0.1, "q50": 0.1, "q75": 0.2, "max": 0.5, "negative": 0.3}
        found.append({"round": r, **{f"algorithm/coefficients_{key}": value / r for key, value in row.items()}})
        found[-1] |= {"algorithm/probe_cosine_first": 1 - 1 / r, "algorithm/probe_cosine_last": 1 / r}
        clients = {"client/own": 0.4, "client/own_std": 0.1 / r, "client/own_loss": 2.0}
        found[-1] |= {"test/accuracy": 0.5, **clients}
        if r % 3 == 1:
            found[-1] |= {f"analysis/update_cosine_{key}": value for key, value in row.items()}
            found[-1] |= {f"analysis/true_cosine/{earlier}": 0.5 for earlier in range(1, r, 3)}
    return found


@pytest.mark.parametrize("count", [1, 7, 200])
def test_each_picture_is_drawn_where_there_is_something_to_draw(count: int, tmp_path: Path) -> None:
    from PIL import Image

    drawn = plot_diagnostics(tmp_path, logged(count), "a run")
    assert [path.stem for path in drawn] == list(PICTURES)
    for path in drawn:
        with Image.open(path) as image:
            assert len(image.convert("RGB").getcolors(2**24) or []) > 50
    assert plot_diagnostics(tmp_path / "none", [{"round": 1, "test/accuracy": 0.5}], "a run") == []
    assert not (tmp_path / "none").exists()
