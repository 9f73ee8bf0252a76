"""A bundle of four runs that are computed once."""

from pathlib import Path

import pytest

from fedlab_runner.config.build import run_id
from fedlab_runner.experiment.run import run_in
from fedlab_runner.report import bundle
from tests.helpers import pictures
from tests.helpers.composed import composed

SHORT = ("rounds=3", "evaluation.every=1", "delay=none", "executor=loop", "threads=1")


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds each."""
    place = tmp_path_factory.mktemp("bundled") / "outputs"
    with pytest.MonkeyPatch.context() as patch:
        pictures.leave_out(patch.setattr)
        for algorithm in ("fedavg", "fedprox"):
            for seed in (0, 1):
                words = f"algorithm={algorithm}", f"seed={seed}"
                cfg = composed(*words, *SHORT)
                run_in(place / run_id(cfg), cfg, lambda _, words=words: " ".join(("fedlab", *words)))
    return place


@pytest.fixture(scope="session")
def bundled(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "four.zip"
    bundle.write(path, [outputs])
    return path
