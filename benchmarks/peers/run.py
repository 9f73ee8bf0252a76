"""`make bench-peers`: rounds of FedAvg by this package and by peers, on two cores, beside a plain PyTorch loop.

    python -m benchmarks.peers.run --folder ENVS [--only REGEX] [--out FILE] [--repeat 3] [--rounds 10]
A turn runs every contender once, as a process of its own, and the plain loop before and after each: what counts is the
ratio of their round times within a turn. A process's start and its first round do not count. Whole turns that FILE
has from the same commit, machine and number of rounds are not measured again: a run that was stopped continues.
"""

import argparse
import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.peers.environments import PINNED, cause, python_of
from benchmarks.peers.table import OURS, Run, Turn, speeds, table
from benchmarks.peers.task import WORKLOADS
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import write_text_atomically

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300.0  # a process that takes longer is stuck
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",  # nobody is told of these runs
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # by Ray's default its workers give way to every other process
}


class Contender(NamedTuple):
    """A module of this folder, in the environment of a peer or in this one, with so many threads a process."""

    module: str
    threads: int
    peer: str | None = None
    switches: tuple[str, ...] = ()


PLAIN = Contender("plain", threads=2)
CONTENDERS = {
    OURS: Contender("ours", threads=1),
    "ours, compiled": Contender("ours", threads=1, switches=("--compile",)),
    "pfl, 2 processes": Contender("pfl", threads=1, peer="pfl", switches=("--pair",)),
    "pfl, 2 threads": Contender("pfl", threads=2, peer="pfl"),
    "FedLab, 2 threads": Contender("fedlab", threads=2, peer="fedlab"),
    "Flower, 2 actors": Contender("flower", threads=1, peer="flower"),
}


def command(contender: Contender, python: Path, workload: str, rounds: int) -> list[str]:
    """What runs a contender for a first round and `rounds` that count."""
    module = f"benchmarks.peers.{contender.module}"
    return [str(python), "-m", module, workload, str(rounds + 1), *contender.switches]


def seconds_in(output: str) -> list[float]:
    """Of the rounds that a contender reports among whatever else it prints, without the first."""
    lines = [line for line in output.splitlines() if line.startswith('{"seconds":')]
    return [float(json.loads(line)["seconds"]) for line in lines][1:]


def timed(name: str, contender: Contender, python: Path, workload: str, rounds: int) -> Run:
    """One process from start to end; `UserError` where it fails."""
    began, busy, used = time.perf_counter(), _busy_seconds(), _children_seconds()
    with subprocess.Popen(
        command(contender, python, workload, rounds),
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": str(contender.threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            output, errors = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            raise UserError(f"{workload} {name}: no end after {SECONDS:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    seconds = seconds_in(output)
    if len(seconds) != rounds:  # one that breaks while it ends has been measured
        ended = f"exit code {process.returncode} after {len(seconds)} rounds that count"
        raise UserError(f"{workload} {name}: {ended}: {cause(errors)}")
    others = None
    if contender is PLAIN and busy is not None:  # peers leave processes behind whose time would count as others'
        own = _children_seconds() - used
        others = max(0.0, (_busy_seconds() or 0.0) - busy - own) / (time.perf_counter() - began)
    return Run(contender=name, seconds=seconds, others=others)


def _busy_seconds() -> float | None:
    """CPU time that all processes of this machine have used; None where it does not tell."""
    try:
        ticks = Path("/proc/stat").read_text().split()[1:4]  # user, niced, system
    except OSError:
        return None
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def turn_of(workload: str, pythons: dict[str, Path], rounds: int, failed: dict[str, str], turn: Turn) -> Iterator[None]:
    """The plain loop and the contenders in turns, after each of which it yields; one that fails is left out, and
    `failed` says why.
    """

    def plain() -> Run:
        return timed("plain", PLAIN, Path(sys.executable), workload, rounds)

    turn.append(plain())
    for name, python in pythons.items():
        try:
            run = timed(name, CONTENDERS[name], python, workload, rounds)
        except UserError as error:
            failed[f"{workload} {name}"] = _told(error)
        else:
            turn.extend([run, plain()])
            print(f"{workload} {name}: x {speeds(turn[-3:])[name]:.2f}", file=sys.stderr, flush=True)
        yield


def _told(error: UserError) -> str:
    print(f"error: {error}", file=sys.stderr, flush=True)
    return str(error)


def two_cores() -> list[int]:
    """Those that this process and all that it starts run on, from now on; none where the system cannot say."""
    cores = sorted(os.sched_getaffinity(0))[:2] if sys.platform == "linux" else []
    if cores:
        os.sched_setaffinity(0, cores)
    return cores


def machine(cores: list[int]) -> dict[str, Any]:
    """What the numbers are measured on."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if sys.platform == "linux" else None
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": cores,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "peers": {peer: PINNED[peer] for peer in dict.fromkeys(c.peer for c in CONTENDERS.values()) if peer},
        "commit": commit,
    }


def measure(results: dict[str, Any], asked: dict[str, list[str]], folder: Path, repeat: int, out: Path | None) -> None:
    """Adds to the results the turns that they do not have yet, and what could not be measured."""
    pythons: dict[str, Path] = {}
    for name in dict.fromkeys(name for names in asked.values() for name in names):
        peer = CONTENDERS[name].peer
        try:
            pythons[name] = python_of(peer, folder) if peer else Path(sys.executable)
        except UserError as error:
            results["failed"][name] = _told(error)
    for workload, names in asked.items():
        turns = results["turns"].setdefault(workload, [])
        while True:
            left = [name for name in names if name in pythons and f"{workload} {name}" not in results["failed"]]
            done = sum(set(left) <= {run["contender"] for run in turn} for turn in turns)
            if not left or done >= repeat:
                break
            first = len(turns) % len(left)  # nobody is always the first, or always after Flower
            order = left[first:] + left[:first]
            turns.append([])
            there = {name: pythons[name] for name in order}
            for _ in turn_of(workload, there, results["rounds"], results["failed"], turns[-1]):
                if out:
                    write_text_atomically(out, json.dumps(results, indent=1) + "\n")


def main() -> int:
    """Measure what is asked for; JSON in a file, a table on stdout, one line a contender and turn on stderr."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers.run")
    parser.add_argument("--folder", type=Path, required=True, help="of the peers' environments, made where missing")
    parser.add_argument(
        "--only",
        default="",
        help="contenders, beside plain and ours, for which 'W1 NAME' or 'W2 NAME' has this regular expression",
    )
    parser.add_argument("--repeat", type=int, default=3, help="turns of each workload")
    parser.add_argument("--rounds", type=int, default=10, help="rounds that count, of each process")
    parser.add_argument("--out", type=Path, help="a file for the JSON, which a stopped run continues with")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(two_cores()), "rounds": options.rounds, "turns": {}, "failed": {}}
    if options.out and options.out.exists():
        before = json.loads(options.out.read_text())
        if all(before[key] == results[key] for key in ("machine", "rounds")):
            results["turns"] = before["turns"]
    asked = {w: [name for name in CONTENDERS if re.search(options.only, f"{w} {name}")] for w in WORKLOADS}
    asked = {w: list(dict.fromkeys([OURS, *names])) for w, names in asked.items() if names}
    try:
        measure(results, asked, options.folder, options.repeat, options.out)
    except UserError as error:  # of the plain loop: without it nothing can be told
        results["failed"]["plain"] = _told(error)
    print(table(results))
    return int(bool(results["failed"]))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # not without ending what was started
    raise SystemExit(main())
