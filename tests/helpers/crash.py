"""Runs that are killed: children of one process that has imported everything, so that a kill and a restart cost
milliseconds.

`python crash.py` is that process: a job in JSON a line on its input, a report a line on its output.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from tests.helpers import faults

# A run of a fraction of a second with everything that can be torn: a checkpoint every other round, late updates.
TINY = (
    "dataset=synthetic",
    "dataset.num_train=120",
    "dataset.num_test=40",
    "dataset.image_size=4",
    "dataset.num_classes=3",
    "model=logistic",
    "num_clients=6",
    "partition=iid",
    "participation.cohort_size=3",
    "local.epochs=1",
    "local.batch_size=8",
    "rounds=5",
    "evaluation.every=2",
    "checkpoint.rounds=2",
    "checkpoint.seconds=null",
    "executor=loop",
    "logger=none",
    "logger.save_model=true",
    "logger.progress=false",
    "device=cpu",
)
# One or more of each family of algorithms, and what they need.
FAMILIES = {
    "synchronous": "algorithm=fedavg delay.std=2",
    "stateful": "algorithm=scaffold delay.std=2",
    "adaptive": "algorithm=fedexp delay.std=2",
    "server_trained": "algorithm=feddle delay.std=2",
    "generator": "algorithm=fedgen algorithm.steps=2 delay.std=2",
    "asynchronous": "algorithm=fedasync delay.std=2",
    "buffered": "algorithm=fedbuff delay.std=2",
    "late_in_flight": "algorithm=fedcda algorithm.warmup=2 delay.std=2",
    "rows_scaffold": "algorithm=scaffold algorithm.store_on=disk delay.std=2",
    "rows_ca2fl": "algorithm=ca2fl algorithm.store_on=disk delay.std=2",
    "rows_fedcda": "algorithm=fedcda algorithm.warmup=2 algorithm.store_on=disk delay.std=2",
    "decentralised": "algorithm=dec_fedavg delay=none",
    "rows_decentralised": "algorithm=dec_fedavg algorithm.store_on=disk delay=none",
    "decentralised_pairs": "algorithm=def_kt delay=none",
    "clients_only": "algorithm=dfml server_data=none delay=none",
    "rows_clients_only": "algorithm=dfml algorithm.epochs=1 algorithm.store_on=disk server_data=none delay=none",
    "standalone": "algorithm=standalone delay=none",
    "matching": "algorithm=fedma model=mlp model.hidden=[6] delay=none",
    "matching_gamf": "algorithm=gamf model=mlp model.hidden=[6] delay=none",
    "hybrid": "algorithm=hyfem model=blocks_mlp partition=random_blocks partition.num_blocks=4 "
    "algorithm.keep_own=true partition.blocks_per_client=2 partition.classes_per_client=2 server_data=none delay=none "
    "dataset.image_size=8",
    "submodels": "algorithm=heterofl model=mlp model.hidden=[8] delay=none",
}
FILES = ("metrics.jsonl", "summary.json", "partition.csv", "model.safetensors")


@dataclass
class Ended:
    """How a run ended: an exit code, or minus the signal; the points it passed; what it said last."""

    status: int
    points: int
    said: str
    seconds: float
    labels: list[str] = field(default_factory=list)


class Template:
    """The process with everything imported; `run` has a child of it do one run."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder: Path, *overrides: str, **plan: Any) -> Ended:
        """Starts or continues the run in a folder.

        `at`, `act`, `seed`: a fault of `faults.install`; `after`: seconds until it is killed from outside; `code`: what
        the child executes before it begins.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._process.stdin.write(json.dumps({"folder": str(folder), "overrides": overrides, **plan}) + "\n")
        self._process.stdin.flush()
        return Ended(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def results(folder: Path) -> dict[str, bytes]:
    """What a killed run must have in common with one that was never touched, to the byte."""
    return {name: (folder / name).read_bytes() for name in FILES}


def _child(job: dict[str, Any], cfg: Any, report: int, said: int) -> NoReturn:
    """One run, in a process of its own; never returns."""
    from fedlab_runner.config.explain import explain
    from fedlab_runner.experiment.run import run_in
    from fedlab_runner.utils import signals
    from fedlab_runner.utils.errors import Interrupted

    folder, status = Path(job["folder"]), 0
    log = os.fdopen(said, "w", buffering=1)
    for number in (1, 2):
        os.dup2(log.fileno(), number)
    logging.basicConfig(stream=log, level=logging.INFO, force=True)
    logging.root.handlers[0].addFilter(lambda record: not hasattr(record, "file_only"))  # as the terminal
    backup = faults.cleared(folder.with_name(f"{folder.name}.backup")) if job.get("act") == "power" else None
    struck = faults.install(folder, job.get("at", 0), job.get("act", "kill"), job.get("seed", 0), backup)
    exec(job.get("code", ""), {})
    try:
        with signals.raised():
            run_in(folder, cfg)
    except (Exception, Interrupted) as error:
        lines = explain(error, ())
        print("\n".join(lines) if lines else "".join(traceback.format_exception(error)), file=log)
        status = 3 if lines is None else 2
    os.write(report, json.dumps(struck.labels).encode())
    os._exit(status)


def _once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function of a config, which is called once for each."""
    known: dict[int, Any] = {}

    def call(cfg: Any) -> Any:
        if id(cfg) not in known:
            known[id(cfg)] = function(cfg)
        return known[id(cfg)]

    return call


class _Once:
    """A checked config that is built, hashed and named once."""

    def __init__(self, checked: Any) -> None:
        self._checked = checked
        self.values, self.fingerprint, self.run_id = checked.values, checked.fingerprint, checked.run_id

    @cached_property
    def _built(self) -> Any:
        return self._checked.build()

    def build(self) -> Any:
        return self._built


def _serve() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    import torch

    from fedlab_runner.experiment import provenance, run
    from fedlab_runner.tracking.terminal import Console
    from tests.helpers import pictures
    from tests.helpers.composed import composed

    torch.set_num_threads(1)
    pictures.leave_out()
    provenance._commit = lambda folder: None  # that of this checkout
    Console.table = lambda *_: None
    # A config is composed and built once; components are frozen.
    configs: dict[tuple[str, ...], Any] = {}
    check = run.check
    run.check = _once(lambda cfg: _Once(check(cfg)))
    with tempfile.TemporaryDirectory() as folder:  # imports what is imported late
        run.run_in(Path(folder) / "run", composed(*TINY, "rounds=1", small=False))
    for line in sys.stdin:
        job = json.loads(line)
        by_key = {each.partition("=")[0]: each for each in (*TINY, *job["overrides"])}  # the later ones win
        overrides = tuple(by_key.values())
        if overrides not in configs:
            cfg = configs[overrides] = composed(*overrides, small=False)
            with contextlib.suppress(ValueError):  # the child will say so
                run.check(cfg).build()
        if "logger=wandb" in overrides:
            import wandb  # noqa: F401  # once, and not in each child
        readable, writable = os.pipe()
        log = os.memfd_create("log")  # no file of the disk that is being tested
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os.close(readable)
            _child(job, configs[overrides], writable, log)
        os.close(writable)
        if "after" in job:
            time.sleep(job["after"])
            os.kill(child, signal.SIGKILL)
        with open(readable, "rb") as report:
            text = report.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        labels = json.loads(text) if text else []
        os.lseek(log, 0, os.SEEK_SET)
        with open(log) as file:
            said = file.read()[-4000:]
        ended = Ended(status, len(labels), said, time.monotonic() - began, labels)
        print(json.dumps(ended.__dict__), file=OUT, flush=True)


if __name__ == "__main__":
    OUT = os.fdopen(os.dup(1), "w")  # the run itself may print
    os.dup2(2, 1)
    _serve()
