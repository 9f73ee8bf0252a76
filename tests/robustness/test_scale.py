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

from fedlab_runner.config.build import conf_dir
from fedlab_runner.core.rng import Purpose, generator


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iid", "dirichlet_per_client", "dirichlet_unbounded", "shards", "quantity_skew"])
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
    "num_clients=1000 dataset.num_train=4000 dataset.num_test=20 dataset.channels=3 dataset.image_size=8 "
    "participation.cohort_size=10 model=resnet18 local.epochs=null local.steps=1 local.batch_size=4 executor=loop "
    "delay=none"
)
ROW = 4 * 11_173_962  # bytes of a ResNet-18


def peak(folder: Path, words: str, rounds: int) -> int:
    """The most bytes that the process of a run has ever held."""
    always = f"dataset=synthetic partition=iid rounds={rounds} logger=none device=cpu hydra.run.dir={folder}"
    process = subprocess.run(
        [sys.executable, "-c", PEAK, *words.split(), *always.split()],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.returncode == 0, process.stderr
    found = int(process.stdout.split("peak ")[-1])
    print(f"peak {found / 1e9:.2f} GB")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("words", ["fedavg delay=none", "fedbuff delay.std=3"])
def test_a_hundred_thousand_clients(words: str, tmp_path: Path) -> None:
    """A thousand of them in a round."""
    assert peak(tmp_path, f"algorithm={words} {MANY} executor=vectorized", rounds=2) < 4e9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ca2fl", "scaffold", "dec_fedavg"])
def test_a_table_of_44_gigabytes(name: str, tmp_path: Path) -> None:
    """A ResNet-18 for each of a thousand clients: the file has the rows that were written, the process a cohort's."""
    held = peak(tmp_path, f"algorithm={name} algorithm.store_on=disk {LARGE}", rounds=12)
    [table] = (tmp_path / "client_state").iterdir()
    written = table.stat().st_blocks * 512
    print(f"on disk {written / 1e9:.2f} GB")
    table.unlink()  # pytest keeps the folder
    assert 100 * ROW < written < 200 * ROW and held < min(4e9, 0.8 * written)
