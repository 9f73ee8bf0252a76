"""A finished run whose command is given again is read before torch is imported, or else looked at in full."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from fedlab_runner.experiment.finished import objective_of_same
from fedlab_runner.experiment.lock import RunLock
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed

WORDS = ("rounds=2", "evaluation.every=1")
AGAIN = """
import sys
from fedlab_runner import train

sys.argv[0] = "fedlab"
code = train.main()
assert "torch" not in sys.modules
sys.exit(code)
"""


def change(folder: Path, name: str, **values: Any) -> None:
    """Sets top-level values of a YAML or JSON file."""
    path = folder / name
    kept = yaml.safe_load(path.read_text()) | values
    path.write_text(json.dumps(kept))


def test_a_finished_run_is_read_without_torch(tmp_path: Path) -> None:
    """By the same command and by a sweep that has it as a job."""
    words = [*WORDS, "logger=none", "logger.pictures=false", "device=cpu", "local.lr=1e-3"]

    def ended(*command: str) -> str:
        done = subprocess.run([sys.executable, *command, *words], cwd=tmp_path, capture_output=True, text=True)
        assert not done.returncode, done.stderr
        return done.stdout

    ended("-m", "fedlab_runner")
    judged = r"[\d.]+ % \(test/accuracy, best of the last evaluations\)"
    assert re.search(rf"is finished already: {judged}; a page of the results: fedlab-report ", ended("-c", AGAIN))
    assert "job 1/1 finished before: " in ended("-c", AGAIN, "-m")


def test_a_run_of_no_rounds_has_no_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cfg = composed("algorithm=fedavg", "rounds=0")
    run_in(tmp_path, cfg)
    with caplog.at_level(logging.INFO):
        run_in(tmp_path, cfg)
    assert "is finished already: no evaluation counts (test/accuracy, " in caplog.text


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedcda", "dfml"])
def test_it_is_what_the_run_gave(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    cfg = composed(*WORDS, f"algorithm={name}")
    first = run_in(tmp_path, cfg)
    with caplog.at_level(logging.INFO):
        assert objective_of_same(tmp_path, cfg) == first and "finished already" in caplog.text


@pytest.mark.parametrize("before", [["logger=none"], ["logger=wandb", "logger.mode=disabled"]], ids=str)
@pytest.mark.parametrize(
    ("more", "end"),
    [
        (["logger=tensorboard"], "delete {} to run again with logger=tensorboard, which has nothing of this one"),
        (["logger=wandb", "logger.mode=offline"], "with logger=wandb, which has nothing of this one"),
        (["logger=wandb", "logger.mode=disabled"], "delete {} to run again"),
        (["logger=none", "logger.progress=false"], "delete {} to run again"),
    ],
)
def test_a_tracker_that_is_chosen_later_is_said_to_have_nothing(
    tmp_path: Path, before: list[str], more: list[str], end: str, caplog: pytest.LogCaptureFixture
) -> None:
    run_in(tmp_path, composed(*WORDS, *before))
    with caplog.at_level(logging.INFO):
        run_in(tmp_path, composed(*WORDS, *more))
    assert caplog.messages[-1].endswith(end.format(tmp_path))


def nothing(folder: Path) -> None:
    """Leaves a run as it is."""


OTHERS: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "fewer rounds": (nothing, {"rounds": 1}),
    "another value": (nothing, {"local.lr": 0.01}),
    "a value of another type": (nothing, {"seed": False}),
    "a file that is gone": (lambda folder: (folder / "config.yaml").unlink(), {}),
    "a file that is no YAML": (lambda folder: (folder / "config.yaml").write_text("a: [\x00"), {}),
    "a file that is no config": (lambda folder: (folder / "config.yaml").write_text("7"), {}),
    "other code": (lambda folder: change(folder, "summary.json", code_sha256="0" * 16), {}),
    "no summary": (lambda folder: (folder / "summary.json").unlink(), {}),
    "a damaged summary": (lambda folder: (folder / "summary.json").write_text("[]"), {}),
    "changed rows": (lambda folder: (folder / "metrics.jsonl").write_text('{"round": 0}\n' * 3), {}),
    "rounds that are no number": (lambda folder: change(folder, "config.yaml", rounds="many"), {"rounds": "many"}),
    "a class that is none": (
        lambda folder: change(folder, "config.yaml", algorithm={"_target_": 5}),
        {"algorithm": {"_target_": 5}},
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_anything_else_is_looked_at_in_full(tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture) -> None:
    """And the look in full tells of it, once."""
    run_in(tmp_path, composed(*WORDS))
    disturb, values = OTHERS[case]
    disturb(tmp_path)
    cfg = composed(*WORDS)
    for key, value in values.items():
        OmegaConf.update(cfg, key, value, merge=False)
    caplog.clear()
    assert objective_of_same(tmp_path, cfg) is None and not caplog.records


def test_fewer_rounds_give_what_a_run_of_so_many_gives_or_are_refused(tmp_path: Path) -> None:
    """A run is evaluated after its last round; a longer run was not evaluated there, unless `every` divides it."""

    def objective(folder: str, rounds: int) -> float:
        return run_in(tmp_path / folder, composed("evaluation.every=2", f"rounds={rounds}"))

    objective("longer", 5)
    assert objective("longer", 4) == objective("fresh", 4)
    said = r"^rounds=3: the run in \S+ has 5 rounds and no evaluation after round 3; give a multiple of evaluation\."
    with pytest.raises(UserError, match=said):
        objective("longer", 3)
    (tmp_path / "longer" / "summary.json").unlink()  # as a run leaves its folder that stopped
    with pytest.raises(UserError, match=r"^rounds must be >= 5, got 3: the run in \S+ has gone on so far"):
        objective("longer", 3)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    cfg = composed(*WORDS)
    run_in(tmp_path, cfg)
    with RunLock(tmp_path), pytest.raises(UserError, match=r"is in use by process \d+ on"):
        objective_of_same(tmp_path, cfg)
