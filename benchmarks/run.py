"""`make bench`: times the contenders of each row in turns and prints JSON.

Contenders of a row take turns within one run, so that their ratios hold on a machine that others use too; the least of
the CPU times and of the wall times is what is reported, and the median of the paired ratios beside it. CPU time counts
one process: where worker processes help, only wall time tells, and only on a machine with idle cores.
    python -m benchmarks.run [--repeat 7] [--only REGEX] [--out FILE]
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks import plain, workloads
from benchmarks.workloads import W1, W2, Shape
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.executors.work import Executor
from fedlab_runner.system import usable_cores

MODELS = {"cnn": workloads.cnn, "mlp": workloads.mlp, "logistic": workloads.logistic}
EXECUTORS: dict[str, Executor] = {
    "loop": Loop(compile=False),
    "vectorized": Vectorized(chunk_size=10, compile=False),
    "cohort": Vectorized(chunk_size=None, compile=False),
    "processes": Processes(workers=None, inner=Loop(compile=False)),
}
COMPILED: dict[str, Executor] = {
    "vectorized compiled": Vectorized(chunk_size=10, compile=True),
    "cohort compiled": Vectorized(chunk_size=None, compile=True),
}


class Row(NamedTuple):
    """One comparison: contenders by name, called with the number of the turn; the first is the measure."""

    name: str
    contenders: Callable[[], dict[str, Callable[[int], object]]]


def local_training(compiled: bool) -> Iterator[Row]:
    """A cohort's local training, the plain loop first."""
    executors = EXECUTORS | (COMPILED if compiled else {})
    for shape_name, shape, model in (("W1", W1, "cnn"), ("W2", W2, "cnn"), ("W2", W2, "mlp"), ("W2", W2, "logistic")):
        yield Row(f"local training {shape_name} {model}", partial(_trainings, shape, MODELS[model], executors))


def _trainings(
    shape: Shape, build: Callable[[], nn.Module], executors: dict[str, Executor]
) -> dict[str, Callable[[int], object]]:
    work = workloads.work_of(shape.federation(build))
    ours = {name: _training(executor, work) for name, executor in executors.items()}
    return {"plain": lambda _: plain.train_cohort(work, build), **ours}


def _training(executor: Executor, work: Any) -> Callable[[int], object]:
    return lambda round: executor.train(workloads.of_round(work, round))


def evaluation() -> dict[str, Callable[[int], object]]:
    """The server's model on 10,000 examples."""
    fed = W1.federation(workloads.cnn)
    work = workloads.work_of(fed)
    return {
        "plain": lambda _: plain.accuracy(work, workloads.cnn, 500),
        "ours": lambda _: [fed.task.predict(work.start, part) for part in fed.population.inputs.split(500)],
    }


def rounds() -> Iterator[Row]:
    """Whole rounds: how the cost of one grows, with next to no training, and what algorithms cost beside FedAvg."""
    of_k = {f"K={k}": partial(_rounds, Shape(2000, 2, k, 2, side=4)) for k in (10, 100, 1000)}
    of_n = {f"N={n}": partial(_rounds, Shape(n, 2, 10, 2, side=4)) for n in (100, 1_000, 10_000, 100_000)}
    late = {f"std={s}": partial(_rounds, Shape(1000, 2, 10, 2, side=4), delay=s) for s in (0.0, 5.0, 50.0)}
    of_d = {name: partial(_rounds, Shape(100, 20, 10, 10), MODELS[name]) for name in ("logistic", "mlp", "cnn")}
    names = ("fedavg", "fedbuff", "feddle")
    algorithms = {name: partial(_rounds, Shape(200, 20, 10, 10), workloads.mlp, algorithm=name) for name in names}
    for name, makers in (
        ("round by K", of_k),
        ("round by N", of_n),
        ("round by staleness", late),
        ("round by D", of_d),
        ("round by algorithm", algorithms),
    ):
        yield Row(name, partial(_made, makers))


def _made(makers: dict[str, Callable[[], Callable[[int], object]]]) -> dict[str, Callable[[int], object]]:
    return {name: make() for name, make in makers.items()}


def _rounds(
    shape: Shape, build: Callable[[], Any] = workloads.empty, *, delay: float = 0.0, algorithm: str = "fedavg"
) -> Callable[[int], object]:
    fed = shape.federation(build, delay=delay)
    built = _algorithm(algorithm)
    state = built.init(fed)

    def one(round: int) -> None:
        nonlocal state
        fed.begin(round, 1.0)
        state = built.round(state, fed)

    return one


def _algorithm(name: str) -> Any:
    import hydra.utils
    from omegaconf import OmegaConf

    from fedlab_runner.config import conf_dir

    return hydra.utils.instantiate(OmegaConf.load(conf_dir() / "algorithm" / f"{name}.yaml"), _convert_="all")


def measured(contenders: dict[str, Callable[[int], object]], repeat: int) -> dict[str, Any]:
    """Least CPU and wall seconds of each contender, and its speed relative to the first."""
    wall: dict[str, list[float]] = {name: [] for name in contenders}
    cpu: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeat + 1):
        for name, call in contenders.items():
            began, used = time.perf_counter(), time.process_time()
            call(turn)
            if turn:  # the first warms up
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(time.process_time() - used)
    first = next(iter(contenders))
    return {
        name: {
            "wall_s": min(wall[name]),
            "cpu_s": min(cpu[name]),  # of this process: of no use where others work for it
            "wall_speed": min(wall[first]) / min(wall[name]),
            "cpu_speed": min(cpu[first]) / min(cpu[name]),
            "paired_cpu_speed": statistics.median(a / b for a, b in zip(cpu[first], cpu[name], strict=True)),
        }
        for name in contenders
    }


def _shown(name: str, times: dict[str, float]) -> str:
    kind = "wall" if name == "processes" else "cpu"
    return f"{name} {times[f'{kind}_s'] * 1e3:.1f} ms {kind} (x {times[f'{kind}_speed']:.2f})"


def machine() -> dict[str, Any]:
    """What the numbers were measured on, with the rate of its matrix products as the limit."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    a, rates = torch.randn(1024, 1024), []
    for _ in range(10):
        began = time.process_time()
        a @ a
        rates.append(2 * 1024**3 / (time.process_time() - began) / 1e9)
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "matrix_gflops_a_second": max(rates),
        "torch": torch.__version__,
        "commit": commit,
    }


def main() -> int:
    """Measure what is asked for; JSON on stdout or in a file, one line a row on stderr as it comes."""
    parser = argparse.ArgumentParser(prog="benchmarks.run")
    parser.add_argument("--repeat", type=int, default=7, help="turns of each contender")
    parser.add_argument("--only", default="", help="rows whose name has this regular expression")
    parser.add_argument("--compiled", action="store_true", help="compiled steps too: a minute more a row")
    parser.add_argument("--out", help="a file for the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine(), "command": sys.argv[1:], "rows": {}}
    for row in (*local_training(options.compiled), Row("evaluation cnn", evaluation), *rounds()):
        if re.search(options.only, row.name):
            results["rows"][row.name] = found = measured(row.contenders(), options.repeat)
            shown = (_shown(name, each) for name, each in found.items())
            print(f"{row.name}: {', '.join(shown)}", file=sys.stderr, flush=True)
    text = json.dumps(results, indent=1) + "\n"
    if options.out:
        with open(options.out, "w") as file:
            file.write(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
