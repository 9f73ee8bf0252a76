"""The key `deterministic`: the same bits from a GPU in each run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedlab_runner.executors._lasting import packed, unpacked
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils.determinism import repeat_exactly, repeats_exactly
from tests.helpers import pretended
from tests.helpers.composed import composed
from tests.helpers.toy import federation

RUN = ("algorithm=fedavg", "dataset=synthetic", "rounds=1", "logger=none", "num_clients=3", "executor=loop")
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.delenv(WORKSPACE, raising=False)
    yield
    repeat_exactly(False)


def test_a_run_on_a_gpu_repeats_exactly_unless_it_need_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("fedlab_runner.experiment.setup.repeat_exactly", asked.append)
    run_in(tmp_path / "cpu", composed(*RUN, "device=cpu"))
    assert asked == [], "a CPU does so by itself"
    with pretended.gpu():
        run_in(tmp_path / "gpu", composed(*RUN, "device=cuda"))
        run_in(tmp_path / "fast", composed(*RUN, "device=cuda", "deterministic=false"))
    assert asked == [True, False]


def test_what_it_sets_and_takes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    repeat_exactly(True)
    assert repeats_exactly() and torch.backends.cudnn.deterministic and os.environ[WORKSPACE] == ":4096:8"
    assert torch.is_deterministic_algorithms_warn_only_enabled(), "a layer without such a kernel stops no run"
    repeat_exactly(False)
    assert not repeats_exactly() and not torch.backends.cudnn.deterministic
    monkeypatch.setenv(WORKSPACE, ":16:8")
    repeat_exactly(True)
    assert os.environ[WORKSPACE] == ":16:8", "the user's"


@pytest.mark.parametrize("on", [True, False])
def test_a_process_on_another_device_computes_as_the_run_does(on: bool) -> None:
    repeat_exactly(on)
    content = packed(federation().family)
    repeat_exactly(not on)
    unpacked(content, torch.device("cpu"))
    assert repeats_exactly() == on


def test_a_process_that_need_not_repeat_does_not_import_the_compiler() -> None:
    lines = f"import sys; from {repeat_exactly.__module__} import repeat_exactly; repeat_exactly(False)"
    done = subprocess.run([sys.executable, "-c", f"{lines}; sys.exit('torch._dynamo' in sys.modules)"], check=False)
    assert done.returncode == 0


def test_it_may_change_when_a_run_is_continued(tmp_path: Path) -> None:
    run_in(tmp_path, composed(*RUN, "device=cpu"))
    run_in(tmp_path, composed(*RUN, "rounds=2", "device=cpu", "deterministic=false"))
