"""`make bench-peers`, as far as it goes without a peer: what is trained, how it is timed, and what the times say."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import workloads
from benchmarks.peers import environments, ours, plain, run, task
from benchmarks.peers.table import Run, Turn, speeds, standings, table
from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.executors.loop import Loop
from fedlab_runner.utils.errors import UserError

HERE = Path(sys.executable)
TINY = task.Workload(clients=3, examples=4, cohort=3, batch=4)


def ran(contender: str, *seconds: float, others: float | None = None) -> Run:
    return Run(contender=contender, seconds=list(seconds), others=others)


def test_all_train_the_same_model_on_the_same_data() -> None:
    shapes = {"W1": workloads.W1, "W2": workloads.W2}
    assert {name: workloads.Shape(*workload) for name, workload in task.WORKLOADS.items()} == shapes
    peers, own = task.cnn().state_dict(), workloads.cnn().state_dict()
    assert {k: v.shape for k, v in peers.items()} == {k: v.shape for k, v in own.items()}
    assert sum(v.numel() for v in peers.values()) == 582_026
    population = workloads.Shape(*TINY).federation(workloads.cnn).client_data
    for k, dataset in enumerate(task.datasets(TINY)):
        rows = torch.from_numpy(population.members(k))
        inputs, targets = dataset.tensors
        assert torch.equal(inputs, population.inputs[rows]) and torch.equal(targets, population.targets[rows])


def test_a_round_of_the_plain_loop_is_a_round_of_fedavg() -> None:
    """With one minibatch a client and all clients, so that neither order nor choice of clients matters."""
    fed = workloads.Shape(*TINY).federation(workloads.cnn, Loop(compile=False))
    algorithm = FedAvg(late_policy="delta", weighting="size", server_lr=1.0)
    state = algorithm.init(fed)
    server = task.cnn()
    server.load_state_dict(fed.family.state_dict(state.params))
    before = torch.nn.utils.parameters_to_vector(server.parameters()).detach().clone()
    plain.train_round(server, task.datasets(TINY), TINY.batch)
    fed.begin(0, 1.0)
    own = fed.family.state_dict(algorithm.round(state, fed).params)
    after = torch.nn.utils.parameters_to_vector(server.parameters())
    assert (after - before).abs().max() > 1e-3
    for name, value in server.state_dict().items():
        torch.testing.assert_close(value, own[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("module", [plain, ours])
def test_a_contender_reports_each_round(
    module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(task.WORKLOADS, "W0", TINY)
    monkeypatch.setattr(sys, "argv", ["contender", "W0", "3"])
    module.main()
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 3
    assert len(run.seconds_in(shown)) == 2 and min(run.seconds_in(shown)) > 0


def test_peers_need_nothing_of_this_package() -> None:
    code = "import sys; sys.modules['fedlab_runner'] = None; from benchmarks.peers import fedlab, flower, pfl, plain"
    subprocess.run([HERE, "-c", code], cwd=run.ROOT, check=True)


def test_rounds_are_found_among_other_output() -> None:
    output = 'INFO: round 1\n{"seconds": 9.5}\n{"loss": 1}\n{"seconds": 0.25}\nthe end\n{"seconds": 0.5}\n'
    assert run.seconds_in(output) == [0.25, 0.5]
    assert run.seconds_in("nothing") == []


def test_speed_is_relative_to_the_plain_loop_before_and_after() -> None:
    turn: Turn = [ran("plain", 1.0, 1.0), ran("pfl", 1.0, 1.0, 7.0), ran("plain", 3.0, 3.0), ran("ours", 0.5)]
    assert speeds(turn[:3]) == {"pfl": 2.0}
    assert speeds([*turn, ran("plain", 1.0, 1.0)]) == {"pfl": 2.0, "ours": 4.0}
    assert speeds(turn[:1]) == {}


def three_turns() -> list[Turn]:
    """The machine is half as fast in the second turn; the third has no peer."""
    first = [ran("plain", 1.0, others=0.1), ran("ours", 0.5), ran("plain", 1.0), ran("pfl", 0.8), ran("plain", 1.0)]
    second = [ran(each["contender"], 2 * each["seconds"][0]) for each in first]
    return [first, second, [ran("plain", 1.0), ran("ours", 0.25), ran("plain", 1.0)]]


def test_ratios_are_taken_within_turns() -> None:
    found = standings(three_turns())
    assert list(found) == ["plain", "ours", "pfl"]
    assert found["plain"] == (1000.0, 1000.0, 1.0, 1.0, 1.0, 2.0, 4.0)
    assert found["ours"] == (500.0, 250.0, 2.0, 2.0, 4.0, 1.0, 1.0)
    assert found["pfl"] == pytest.approx((1200.0, 800.0, 1.25, 1.25, 1.25, 1.6, 3.2))


def test_the_table_tells_what_was_not_measured() -> None:
    here = {
        "processor": "A",
        "cores": [0, 1],
        "python": "3",
        "torch": "2",
        "peers": {"pfl": "pfl==1"},
        "commit": "a" * 40,
    }
    failed = {"W1 Flower": "W1 Flower: exit code 1"}
    text = table({"machine": here, "rounds": 1, "turns": {"W1": three_turns(), "W2": []}, "failed": failed})
    assert "| W1 | pfl | 1200 | 800 | 1.25 | 1.25 - 1.25 | 1.60 | 3.20 |" in text.splitlines()
    assert "not measured: W1 Flower: exit code 1" in text.splitlines()
    assert "A, 2 cores; Python 3, torch 2;\npfl==1; commit aaaaaaa;\nturns: W1 3; 1 rounds a process;" in text
    assert text.endswith("cores used by other processes: median 0.10, most 0.10")


def test_a_process_that_fails_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = run.Contender("missing", threads=1)
    with pytest.raises(
        UserError, match=r"^W1 pfl: exit code 1 after 0 rounds that count: .*No module named benchmarks.peers.missing$"
    ):
        run.timed("pfl", missing, HERE, "W1", 2)
    monkeypatch.setattr(run, "SECONDS", 0.05)
    with pytest.raises(UserError, match=r"^W1 plain: no end after 0 s$"):
        run.timed("plain", run.PLAIN, HERE, "W1", 2)


def test_the_cause_is_the_first_error() -> None:
    text = "File x.py\n  ValueError: bad shape\nlater\ntorch.distributed.ChildFailedError:\n====\n"
    assert environments.cause(text) == "ValueError: bad shape"
    assert environments.cause("No errors here\nKilled\n\n") == "Killed"
    assert environments.cause("\n") == "it says nothing"


def test_an_environment_that_cannot_be_made_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(name, value)
    line = r"^pfl: pfl\[pytorch\]==0\.6\.0 cannot be installed into .*/envs/pfl: ERROR: Could not find a version.*$"
    for _ in range(2):  # what was begun does not count as made
        with pytest.raises(UserError, match=line):
            environments.python_of("pfl", tmp_path / "envs")


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def install(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        made.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(environments.subprocess, "run", install)
    python = environments.python_of("pfl", tmp_path)
    assert environments.python_of("pfl", tmp_path) == python
    assert len(made) == 1 and made[0][-1] == "pfl[pytorch]==0.6.0"
    monkeypatch.undo()
    code = "import importlib.util; print(importlib.util.find_spec('torch').origin)"
    shown = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == torch.__file__
    monkeypatch.setattr(environments.subprocess, "run", install)
    monkeypatch.setitem(environments.PINNED, "pfl", "pfl==0.5.0")
    environments.python_of("pfl", tmp_path)
    assert len(made) == 2


def test_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain before and after each, a failing peer left out, a stopped run continues, and all of it in the table."""
    told: list[str] = []

    def timed(name: str, contender: run.Contender, python: Path, workload: str, rounds: int) -> Run:
        told.append(name)
        if name.startswith("Flower"):
            raise UserError("W1 Flower: no end")
        assert rounds == 4 and workload == "W1"
        return ran(name, *np.full(rounds, 1.0 if name == "plain" else 0.5))

    monkeypatch.setattr(run, "timed", timed)
    monkeypatch.setattr(run, "two_cores", lambda: [0, 1])
    monkeypatch.setattr(run, "python_of", lambda peer, folder: folder / peer)
    out = tmp_path / "out.json"
    command = ["run", "--folder", str(tmp_path), "--only", "W1 (Flower|pfl, 2 p)", "--rounds", "4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*command, "--repeat", "1"])
    assert run.main() == 1
    first = ["plain", "ours", "plain", "pfl, 2 processes", "plain", "Flower, 2 actors"]
    assert told == first
    assert "not measured: W1 Flower: no end" in capsys.readouterr().out.splitlines()
    (turn,) = json.loads(out.read_text())["turns"]["W1"]
    assert [each["contender"] for each in turn] == first[:-1]

    told.clear()
    monkeypatch.setattr(sys, "argv", [*command[:4], "W1 pfl, 2 p", *command[5:], "--repeat", "2"])
    assert run.main() == 0
    assert told == [
        "plain",
        "pfl, 2 processes",
        "plain",
        "ours",
        "plain",
    ]  # only the turn that was not there yet, begun with another contender
    assert (
        "| W1 | pfl, 2 processes | 500 | 500 | 2.00 | 2.00 - 2.00 | 1.00 | 1.00 |"
        in capsys.readouterr().out.splitlines()
    )


def test_a_plain_loop_that_fails_ends_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def timed(*_: Any) -> Run:
        raise UserError("W1 plain: no end after 300 s")

    monkeypatch.setattr(run, "timed", timed)
    monkeypatch.setattr(run, "two_cores", lambda: [0, 1])
    monkeypatch.setattr(sys, "argv", ["run", "--folder", str(tmp_path), "--only", "W1 ours$"])
    assert run.main() == 1
    shown = capsys.readouterr()
    assert shown.err == "error: W1 plain: no end after 300 s\n"
    assert "not measured: W1 plain: no end after 300 s" in shown.out.splitlines()
