"""What must fit on one machine: slow tests with wide margins."""

import os
import subprocess
import sys
import time
from pathlib import Path

import hydra.utils
import numpy as np
import pytest
from omegaconf import OmegaConf

from fedlab_runner.config import conf_dir
from fedlab_runner.rng import Purpose, generator


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iid", "dir_client", "dir_plain", "shards", "quantity_skew"])
def test_a_million_examples_are_dealt_out_in_seconds(name: str) -> None:
    labels = np.random.default_rng(0).integers(10, size=1_000_000)
    partition = hydra.utils.instantiate(OmegaConf.load(conf_dir() / "partition" / f"{name}.yaml"), _convert_="all")
    began = time.process_time()
    split = partition.split(labels, None, 100_000, generator(0, Purpose.PARTITION))
    assert time.process_time() - began < 20
    assert len(split) == 100_000 and np.unique(np.concatenate(split)).size == 1_000_000


PEAK = """
import resource, sys
from fedlab_runner import train
code = train.main()
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
sys.exit(code)
"""
MANY = "num_clients=100000 dataset.num_train=1000000 participation.cohort_size=1000 model=mlp local.epochs=1"
LARGE = (
    "num_clients=1000 dataset.num_train=4000 dataset.num_test=20 dataset.channels=3 dataset.image_size=32 "
    "participation.cohort_size=10 model=resnet18 local.epochs=null local.steps=1 local.batch_size=4"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "gigabytes"),
    [
        (f"algorithm=fedavg {MANY} executor=vectorized delay=none", 4),
        (f"algorithm=fedbuff {MANY} executor=vectorized delay.std=3", 4),
        (f"algorithm=ca2fl algorithm.updates_on=disk {LARGE} executor=loop delay=none", 4),
    ],
)
def test_memory_is_bounded(words: str, gigabytes: float, tmp_path: Path) -> None:
    """With 100,000 clients, and with a table of ResNet-18s of which in memory only the cohort's are."""
    always = [
        "dataset=synthetic",
        "partition=iid",
        "rounds=2",
        "logger=none",
        "device=cpu",
        f"hydra.run.dir={tmp_path}",
    ]
    process = subprocess.run(
        [sys.executable, "-c", PEAK, *words.split(), *always],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stderr
    assert int(process.stdout.split("peak ")[-1]) < gigabytes * 1e9
