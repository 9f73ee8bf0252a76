"""Code that ends the process ends neither a run without a word nor a sweep."""

import argparse
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.experiment.resuming import FAILED, understood
from fedlab_runner.sweep import plots, records
from fedlab_runner.utils import exits
from fedlab_runner.utils.errors import RunFailed
from tests.helpers.crash import TINY
from tests.helpers.extending import Fedlab, fedlab

__all__ = ["fedlab"]  # a fixture


def leaves(*_: Any) -> None:
    raise SystemExit(0)


def asks(*_: Any) -> None:
    argparse.ArgumentParser().parse_args(["--help"])


def finds_no_file(*_: Any) -> None:
    sys.exit("no such file")


def named(module: str, source: str) -> dict[str, Any]:
    """The contents of a module with this name."""
    contents: dict[str, Any] = {"__name__": module}
    exec(source, contents)
    return contents


@pytest.fixture(params=[False, True], ids=["python", "wandb"])
def exit_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own `sys.exit`, and W&B's, which calls it."""
    if request.param:
        hooked = named("wandb.sdk.lib.exit_hooks", "def leave(code=None):\n    own(code)\n")
        hooked["own"] = sys.exit
        monkeypatch.setattr(sys, "exit", hooked["leave"])


@pytest.mark.usefixtures("exit_of")
@pytest.mark.parametrize(("way", "code"), [(leaves, "0"), (asks, "0"), (finds_no_file, "'no such file'")])
def test_the_line_names_the_code_that_leaves(way: Any, code: str) -> None:
    place = f"{__file__}, line {way.__code__.co_firstlineno + 1}"
    with pytest.raises(RunFailed, match=rf"^{place}, ends the program \(sys.exit, code {code}\)"), exits.refused():
        way()


@pytest.mark.usefixtures("exit_of")
def test_a_job_that_slurm_has_put_back_into_its_queue_ends() -> None:
    """submitit's signal handler leaves from wherever the run is, and the job must not count as failed."""
    of_submitit = named("submitit.core.job_environment", "import sys\ndef handler():\n    sys.exit(-1)\n")
    with pytest.raises(SystemExit), exits.refused():
        of_submitit["handler"]()


def test_a_job_that_has_timed_out_too_often_is_no_fault_of_its_checkpoint() -> None:
    """submitit's signal handler raises its error wherever the run is, as in the first round after a checkpoint."""
    source = "class UncompletedJobError(RuntimeError): pass\ndef handler():\n    raise UncompletedJobError()\n"
    of_submitit = named("submitit.core.utils", source)
    line = r"^the job timed out too many times: raise hydra\.launcher\.timeout_min or.*; the same command "
    with pytest.raises(RunFailed, match=line), exits.refused(), understood(3, FAILED):
        of_submitit["handler"]()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("submitit.UncompletedJobError()", r"^the job timed out too many times: raise hydra\.launcher\.timeout_min or"),
        ("CalledProcessError(-15, ['scontrol', 'requeue', '6'])", "'scontrol', 'requeue'"),
    ],
)
def test_no_code_on_the_way_keeps_what_ends_a_job(error: str, line: str) -> None:
    """As a trial of executors, which takes any error for one of the executor, and torch's compiler."""
    submitit = SimpleNamespace(
        UncompletedJobError=type("Error", (RuntimeError,), {"__module__": "submitit.core.utils"})
    )
    source = f"def handler(number, frame):\n    raise {error}\n"
    of_submitit = named("submitit.core.job_environment", source)
    of_submitit |= {"submitit": submitit, "CalledProcessError": subprocess.CalledProcessError}
    before = signal.signal(signal.SIGUSR2, of_submitit["handler"])
    try:
        with exits.refused(), pytest.raises((RunFailed, subprocess.CalledProcessError), match=line), exits.refused():
            with suppress(Exception):
                signal.raise_signal(signal.SIGUSR2)
            pytest.fail("the job continues")
        assert signal.getsignal(signal.SIGUSR2) is of_submitit["handler"]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_the_other_jobs_of_a_sweep_run(fedlab: Fedlab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "plot_sweep", lambda _: [])
    step = FedAvg.server_step
    monkeypatch.setattr(
        FedAvg, "server_step", lambda self, state, arrivals, fed: (leaves, step)[fed.seed](self, state, arrivals, fed)
    )
    code, said = fedlab("-m", "seed=0,1", "algorithm=fedavg", "server_data=none", *TINY, "rounds=1")
    (folder,) = Path("outputs/sweeps").iterdir()
    assert code == 1 and said.endswith("error: 1 of 2 jobs failed\n")
    assert sorted(job.status for row in records.read(folder) for job in row.jobs) == ["failed", "finished"]


def test_a_module_that_leaves_when_it_is_imported_is_one_line(fedlab: Fedlab) -> None:
    Path("mine/bimodal.py").write_text("import sys\n\nsys.exit()\n")
    code, said = fedlab("--config-dir=mine", "delay=bimodal", *TINY)
    assert code == 1 and said.startswith(f"error: {Path.cwd()}/mine/bimodal.py, line 3, ends the program")
