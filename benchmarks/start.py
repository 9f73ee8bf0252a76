"""CPU time of commands on one thread: `python -m benchmarks.start [--turns 5]`. The least of the turns counts."""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TRAIN = [sys.executable, "-P", "-m", "fedlab_runner.train"]
TWO_ROUNDS = ["rounds=2"]
JOBS = 5  # of the longer sweep, whose shorter one has one


def cpu_seconds(arguments: Sequence[str], folder: Path, code: int = 0) -> float:
    """User and system time of a command and its processes. Raises RuntimeError where it ends with another exit code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*TRAIN, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != code:
        raise RuntimeError(f"{arguments} ended with {done.returncode}: {done.stderr}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def turn(folder: Path) -> dict[str, float]:
    """One measurement of each command, in a folder without runs."""
    run, files_only = [*TWO_ROUNDS, "seed=1"], "logger=none"
    times = {
        "a run of two rounds": cpu_seconds(run, folder),
        "a finished run": cpu_seconds(run, folder),
        "two rounds, `logger=none`": cpu_seconds([*TWO_ROUNDS, "seed=2", files_only], folder),
        "two rounds, `logger=none logger.pictures=false`": cpu_seconds(
            [*TWO_ROUNDS, "seed=3", files_only, "logger.pictures=false"], folder
        ),
    }
    for begin, words, more in ((10, "", []), (1000, ", `logger=none`", [files_only])):
        seeds = [",".join(str(begin * jobs + job) for job in range(jobs)) for jobs in (1, JOBS)]
        one, several = (cpu_seconds(["-m", *TWO_ROUNDS, f"seed={each}", *more], folder) for each in seeds)
        times[f"each further job of a sweep{words}"] = (several - one) / (JOBS - 1)
    times["a faulty value, `local.lr=-1`"] = cpu_seconds(["local.lr=-1"], folder, code=2)
    times["`fedlab --help`"] = cpu_seconds(["--help"], folder)
    return times


def main() -> None:
    """Prints a table of the least time of each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    turns = []
    for _ in range(parser.parse_args().turns):
        with tempfile.TemporaryDirectory() as folder:
            turns.append(turn(Path(folder)))
    print("| CPU seconds | |\n| --- | ---: |")
    for name in turns[0]:
        print(f"| {name} | {min(each[name] for each in turns):.2f} |")


if __name__ == "__main__":
    main()
