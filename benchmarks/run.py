"""`make bench`: times the contenders of each row in turns and writes JSON, row by row.

Contenders of a row take turns within one run, so that their ratios hold on a machine that others use too; the least of
the CPU times and of the wall times is what is reported, and the median of the paired ratios beside it. CPU time counts
one process: where worker processes help, only wall time tells, and only on a machine with idle cores.
    python -m benchmarks.run [--repeat 7] [--only REGEX] [--out FILE]
Rows that FILE has from the same commit and machine are not measured again: a run that was stopped goes on.
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
from pathlib import Path
from typing import Any

import torch

from benchmarks.rows import Case, all_rows
from benchmarks.table import table
from fedlab_runner.files import write_text_atomically
from fedlab_runner.system import usable_cores


def measured(case: Case, repeat: int, gflops: float) -> dict[str, Any]:
    """Least CPU and wall seconds of each contender, and its speed relative to the first; `limit` is the share of the
    machine's matrix rate that is used.
    """
    contenders = case.contenders
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
    found: dict[str, Any] = {}
    for name in contenders:
        seconds = min(wall[name] if "processes" in name else cpu[name])
        found[name] = {
            "wall_s": min(wall[name]),
            "cpu_s": min(cpu[name]),  # of this process: of no use where others work for it
            "wall_speed": min(wall[first]) / min(wall[name]),
            "cpu_speed": min(cpu[first]) / min(cpu[name]),
            "paired_cpu_speed": statistics.median(a / b for a, b in zip(cpu[first], cpu[name], strict=True)),
            "paired_wall_speed": statistics.median(a / b for a, b in zip(wall[first], wall[name], strict=True)),
        }
        if case.flops is not None:
            found[name]["limit"] = case.flops / 1e9 / gflops / seconds
        if case.pieces is not None:
            number, what = case.pieces
            found[name] |= {"ms_a_piece": 1e3 * seconds / number, "piece": what}
    return found


def shown(name: str, times: dict[str, Any]) -> str:
    """One contender in words."""
    kind = "wall" if "processes" in name else "cpu"
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


def _begun(path: Path | None, here: dict[str, Any]) -> dict[str, Any]:
    """The rows that a file has from this commit and machine."""
    if path is None or not path.exists():
        return {}
    before: dict[str, Any] = json.loads(path.read_text())
    same = all(before["machine"].get(key) == here[key] for key in ("processor", "cores", "threads", "torch", "commit"))
    return dict(before["rows"]) if same else {}


def main() -> int:
    """Measure what is asked for; JSON in a file or, at the end, a table on stdout; one line a row on stderr."""
    parser = argparse.ArgumentParser(prog="benchmarks.run")
    parser.add_argument("--repeat", type=int, default=7, help="turns of each contender")
    parser.add_argument("--only", default="", help="rows whose name has this regular expression")
    parser.add_argument("--compiled", action="store_true", help="compiled steps too: a minute more a row")
    parser.add_argument("--out", type=Path, help="a file for the JSON, which a stopped run goes on with")
    options = parser.parse_args()
    torch.set_num_threads(1)
    here = machine()
    rows = _begun(options.out, here)
    results: dict[str, Any] = {"machine": here, "command": sys.argv[1:], "rows": rows}
    for row in all_rows(options.compiled):
        if row.name in rows or not re.search(options.only, row.name):
            continue
        rows[row.name] = found = measured(row.case(), options.repeat, here["matrix_gflops_a_second"])
        line = ", ".join(shown(name, each) for name, each in found.items())
        print(f"{row.name}: {line}", file=sys.stderr, flush=True)
        if options.out:
            write_text_atomically(options.out, json.dumps(results, indent=1) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
