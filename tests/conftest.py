"""What every test needs: one thread a worker, W&B offline and out of the way, a clean environment."""

import gc
import getpass
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedlab_runner  # noqa: F401  # before torch, whose threads then wait as they do in a run
from tests.helpers import pictures
from tests.helpers.crash import Template
from tests.helpers.paths import ROOT

# Before anything imports torch, and inherited by subprocesses: the workers of `pytest -n` are the parallelism.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
# What tests start finds this package and `tests.helpers`, wherever it is started.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

# Shells start what runs in the background with these signals ignored, as do all its children; tests send them.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# What is compiled in one call of pytest is there in the next.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}")

_OURS = ("FEDLAB_SWEEP", "FEDLAB_SWEEP_FOLDER", "HYDRA_FULL_ERROR", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and test items stay to the end: Python's collector would look through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine() -> Iterator[None]:
    """Nothing that a test starts writes into the home folder or the repository, or asks a server."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as patch:
        for variable in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR"):
            path = Path(folder) / variable.lower()
            path.mkdir()
            patch.setenv(variable, str(path))
        patch.setenv("XDG_CACHE_HOME", str(Path(folder) / "cache"))
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        patch.setenv("MPLCONFIGDIR", str(Path(folder) / "matplotlib"))
        patch.setenv("MPLBACKEND", "Agg")
        for variable in (*_OURS, "COLUMNS", "LINES"):  # the last two are the size of the terminal that starts the tests
            patch.delenv(variable, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """No test loses power: `fsync` only looks at the descriptor. In processes that a test starts it is the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)
        yield


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    """A process that has imported everything, whose children do runs."""
    made = Template()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "pictures" not in request.keywords:
        pictures.leave_out(monkeypatch.setattr)


@pytest.fixture(autouse=True)
def _no_log_of_another_test() -> None:
    """Hydra gives the root logger a level and handlers for good: one run's lines would be in a later test's output."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in [each for each in root.handlers if not type(each).__module__.startswith("_pytest.")]:
        root.removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
