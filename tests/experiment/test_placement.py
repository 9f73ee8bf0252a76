"""The device of a run, and the GPUs of a machine among the jobs of a sweep."""

from typing import Any

import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from fedlab_runner.experiment.placement import device_of


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how many GPUs the machine has."""

    def there(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return there


def placed(monkeypatch: pytest.MonkeyPatch, asked: str, job: int, mode: RunMode = RunMode.MULTIRUN) -> str:
    """The device of a job with this number."""
    cfg = OmegaConf.create({"hydra": {"mode": mode, "job": {"num": job}}})
    monkeypatch.setattr(HydraConfig.instance(), "cfg", cfg)
    return str(device_of(asked))


def test_jobs_of_a_sweep_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch, gpus: Any) -> None:
    gpus(3)
    for asked in ("auto", "cuda"):
        found = [placed(monkeypatch, asked, job) for job in range(7)]
        assert found == [f"cuda:{i}" for i in (0, 1, 2, 0, 1, 2, 0)]


def test_a_named_device_is_taken_at_its_word(monkeypatch: pytest.MonkeyPatch, gpus: Any) -> None:
    gpus(3)
    assert [placed(monkeypatch, asked, 1) for asked in ("cpu", "cuda:2")] == ["cpu", "cuda:2"]


def test_a_run_of_its_own_takes_the_first_gpu_or_the_cpu(monkeypatch: pytest.MonkeyPatch, gpus: Any) -> None:
    gpus(3)
    assert placed(monkeypatch, "auto", 2, RunMode.RUN) == "cuda"
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)  # of a program
    assert str(device_of("auto")) == "cuda"
    gpus(1)
    assert placed(monkeypatch, "auto", 2) == "cuda", "each job of a cluster sees one"
    gpus(0)
    assert placed(monkeypatch, "auto", 2) == "cpu"
