"""`make bench`: times the contenders of each row in turns and writes JSON, row by row.

Contenders of a row take turns within one run, on the same cores, so that their ratios hold on a machine that others use
too: what is reported is the least wall time of each and the median of its paired ratios to the first. In its turn a
contender does some rounds that do not count (two, or more where clients have memory of their own to touch) and then as
many as make up a tenth of a second, of which the mean counts.
Plain loops run in a process of their own, in which nothing of this package has set anything.
    python -m benchmarks.run [--cores 2] [--repeat 7] [--only REGEX] [--compiled] [--methods] [--device cuda] [--out F]
The plain loop may use a thread for each core. Rows that FILE has from the same commit and machine are not measured
again: a run that was stopped continues.
"""

import fedlab_runner  # noqa: F401  # isort: skip  # before torch, as in a run: it sets how OpenMP's threads wait

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu, method_rows
from benchmarks.case import Case, Contender, Row
from benchmarks.rows import all_rows
from benchmarks.table import table
from benchmarks.workloads import CPU, FLOAT
from fedlab_runner.utils.files import write_text_atomically
from fedlab_runner.utils.system import keep_freed_memory, processor, usable_cores

# For plain contenders: torch's threads wait awake as long as where nothing is set, when a run sets less. Numpy's would
# keep a core from the next contender for 25 ms, and have to sleep at once.
PLAIN_THREADS = {"GOMP_SPINCOUNT": "300000", "OPENBLAS_THREAD_TIMEOUT": "4"}
LEAST, MOST = 0.1, 20  # seconds and rounds of a turn that count


def of_a_turn(contender: Contender, numbers: Iterator[int]) -> float:
    """Seconds of a round, in a state that a long run would be in: caches are warm, workers are there and have touched
    their memory.
    """
    torch.set_num_threads(contender.threads)
    for _ in range(contender.warm):
        contender.call(next(numbers))
    _wait()
    rounds, began, now = 0, time.perf_counter(), 0.0
    while rounds < MOST and now - began < LEAST:
        contender.call(next(numbers))
        _wait()
        rounds, now = rounds + 1, time.perf_counter()
    return (now - began) / rounds


def _wait() -> None:
    """For what a GPU has been given to do."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Aside:
    """Another process with the contenders of one row, each of which takes its turn when it is told to."""

    def __init__(self, row: str, options: argparse.Namespace) -> None:
        words = [sys.executable, "-m", "benchmarks.run", "--cores", str(options.cores), "--device", options.device]
        words += ["--aside", row, *["--compiled"] * options.compiled, *["--methods"] * options.methods]
        own = os.environ | PLAIN_THREADS
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own)

    def of_a_turn(self, name: str) -> float:
        """Seconds of a round of the contender."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def end(self) -> None:
        """It has nothing left to do. Its input may not end: workers that were forked since then have it too."""
        self._process.kill()
        self._process.communicate()


def serve(case: Case) -> None:
    """In the other process: names of contenders come, seconds go."""
    numbers = {name: count() for name in case.contenders}
    for line in sys.stdin:
        name = line.rstrip("\n")
        print(of_a_turn(case.contenders[name], numbers[name]), flush=True)


def measured(case: Case, repeat: int, gflops: float, aside: Aside | None = None) -> dict[str, Any]:
    """Least seconds of each contender, and its speed relative to the first; `limit` is the share of the machine's
    matrix rate that is used. Plain contenders take their turns aside.
    """
    seconds: dict[str, list[float]] = {name: [] for name in case.contenders}
    numbers = {name: count() for name in case.contenders}
    for turn in range(repeat + 1):
        for name, contender in case.contenders.items():
            taken = aside.of_a_turn(name) if contender.plain and aside else of_a_turn(contender, numbers[name])
            if turn:  # the first warms up
                seconds[name].append(taken)
    torch.set_num_threads(1)
    first = next(iter(seconds.values()))
    found: dict[str, Any] = {}
    for name, contender in case.contenders.items():
        least = min(seconds[name])
        found[name] = {
            "seconds": least,
            "median_seconds": statistics.median(seconds[name]),
            "speed": statistics.median(a / b for a, b in zip(first, seconds[name], strict=True)),
        }
        if note := contender.note():
            found[name]["note"] = note
        if case.flops is not None:
            flops = case.flops() if callable(case.flops) else case.flops
            found[name]["limit"] = flops / 1e9 / gflops / least
        if case.pieces is not None:
            number, what = case.pieces
            found[name] |= {"ms_a_piece": 1e3 * least / number, "piece": what}
    return found


def shown(name: str, found: dict[str, Any]) -> str:
    """One contender in words."""
    return f"{name} {found['seconds'] * 1e3:.1f} ms (x {found['speed']:.2f})"


def machine(cores: int, device: torch.device = CPU) -> dict[str, Any]:
    """What the numbers were measured on, with the rate of its matrix products as the limit."""
    torch.set_num_threads(cores)
    rate = matrix_rate(1024 if device.type == "cpu" else 8192, device)
    torch.set_num_threads(1)
    return {
        "processor": processor() if device.type == "cpu" else torch.cuda.get_device_name(device),
        "cores": cores,
        "load": os.getloadavg()[0],
        "matrix_gflops_a_second": rate,
        "torch": torch.__version__,
        "commit": commit(),
    }


def matrix_rate(side: int, device: torch.device, precision: torch.dtype = FLOAT) -> float:
    """GFLOPs a second of the fastest of twenty products of two matrices."""
    a, rates = torch.randn(side, side, device=device, dtype=precision), []
    for _ in range(20):
        _wait()
        began = time.perf_counter()
        a @ a
        _wait()
        rates.append(2 * side**3 / (time.perf_counter() - began) / 1e9)
    return max(rates)


def commit() -> str:
    """Of the code at hand; nothing outside of a repository or without git."""
    if shutil.which("git") is None:
        return ""
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many other processes that keep these cores busy, as those of other users do."""
    busy = [sys.executable, "-c", "import numpy as n\na = n.ones((300, 300))\nwhile True: a @ a"]
    others = [subprocess.Popen(busy, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _begun(path: Path | None, here: dict[str, Any]) -> dict[str, Any]:
    """The rows that a file has from this commit and machine."""
    if path is None or not path.exists():
        return {}
    before: dict[str, Any] = json.loads(path.read_text())
    same = all(
        before["machine"].get(key) == here[key] for key in ("processor", "cores", "neighbours", "torch", "commit")
    )
    return dict(before["rows"]) if same else {}


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    if options.device == "cuda":
        return gpu.all_rows(options.compiled, torch.device(options.device))
    if options.methods:
        return method_rows.rows(options.cores, options.compiled)
    return all_rows(options.cores, options.compiled)


def main() -> int:
    """Measure what is asked for; JSON in a file or, at the end, a table on stdout; one line a row on stderr."""
    parser = argparse.ArgumentParser(prog="benchmarks.run")
    parser.add_argument("--cores", type=int, default=min(2, usable_cores()), help="that are used, and no others")
    parser.add_argument("--repeat", type=int, default=7, help="turns of each contender")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="cuda: rows of their own, on a GPU")
    parser.add_argument("--only", default="", help="rows whose name has this regular expression")
    parser.add_argument("--compiled", action="store_true", help="compiled steps too: a minute more a row")
    parser.add_argument("--methods", action="store_true", help="instead of the usual rows a round of every method")
    parser.add_argument("--out", type=Path, help="a file for the JSON, which a stopped run continues with")
    parser.add_argument("--neighbours", type=int, default=0, help="processes that keep the same cores busy meanwhile")
    parser.add_argument("--aside", help=argparse.SUPPRESS)  # the row whose contenders are asked for, one by one
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is no GPU")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if options.aside is not None:
        serve(next(row for row in _rows(options) if row.name == options.aside).case())
        return 0
    here = machine(options.cores, device) | {"neighbours": options.neighbours}
    keep_freed_memory()  # as a run does
    cache = tempfile.TemporaryDirectory(prefix="fedlab-bench-")
    os.environ["XDG_CACHE_HOME"] = cache.name  # executor=auto measures now, and what it finds is not kept
    rows = _begun(options.out, here)
    results: dict[str, Any] = {"machine": here, "command": sys.argv[1:], "rows": rows}
    for row in _rows(options):
        if row.name in rows or not re.search(options.only, row.name):
            continue
        aside = Aside(row.name, options)
        with neighbours(options.neighbours):
            found = measured(row.case(), options.repeat, here["matrix_gflops_a_second"], aside)
        aside.end()
        rows[row.name] = found
        line = ", ".join(shown(name, each) for name, each in found.items())
        print(f"{row.name}: {line}", file=sys.stderr, flush=True)
        if options.out:
            write_text_atomically(options.out, json.dumps(results, indent=1) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
