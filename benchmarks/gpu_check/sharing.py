"""Whether processes that share a cohort on GPUs compute what the loop does there: the workers of a Ray cluster, of
which two share a GPU, and a process for each GPU of the machine. Models learn from each other on the workers too.
"""

import importlib.util
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

from benchmarks.gpu_check.agreement import METRICS_TOLERANCE
from benchmarks.gpu_check.finding import Case, Finding, Setting, farthest
from benchmarks.gpu_check.runs import prepared
from fedlab_runner.executors._ray.session import Session

MLP = "model=mlp", "model.hidden=[16]"
RUNS: dict[str, tuple[str, ...]] = {  # models, sums, vectors of each client, several architectures, a second task
    "fedavg": ("algorithm=fedavg", *MLP),
    "fedavg, sums of 2": ("algorithm=fedavg", "aggregator.sum_every=2", *MLP),
    "scaffold": ("algorithm=scaffold", *MLP),
    "dfml": ("algorithm=dfml", "model=mix"),
    "fedwalk": ("algorithm=fedwalk", *MLP),
}


def cases(setting: Setting) -> Iterator[tuple[str, Case]]:
    """Two rounds of some algorithms with each of these executors."""
    for name, words in RUNS.items():
        yield name, partial(_as_the_loop, setting, words)


def _as_the_loop(setting: Setting, words: tuple[str, ...]) -> Iterator[Finding]:
    on_ray = ("executor=ray", f"executor.num_gpus={0.5 if setting.on_gpu else 0}")
    on_each = ("executor=processes", f"executor.workers={'gpus' if setting.on_gpu else 2}")
    with tempfile.TemporaryDirectory() as folder:
        expected = prepared(Path(folder) / "loop", setting, *words, "rounds=2", "executor=loop")
        rows = expected.go()
        for name, executor in (("ray", on_ray), ("a process a GPU", on_each)):
            if name == "ray" and not importlib.util.find_spec("ray"):
                yield Finding(name, "Ray is not installed", None)
                continue
            found = prepared(Path(folder) / name, setting, *words, "rounds=2", *executor)
            with patch.object(Session, "_gains", lambda *_: True):  # so little work stays with the run otherwise
                far, key = max(farthest(*pair) for pair in zip(rows, found.go(), strict=True))
            words_of = "to the bit" if found.metrics == expected.metrics else f"metrics at most {far:.1e} apart ({key})"
            yield Finding(name, words_of, far <= METRICS_TOLERANCE, {"apart": far})
