"""What a round costs beside local training and evaluation, and what a checkpoint costs, in whole runs.

Each setting is a run as the command line makes it, with its files and an offline W&B, whose executor hands every client
the model that it started from: what is left is sampling, the clock, arrivals, aggregation, metrics and recording. The
executor works out the minibatches too; what it takes is told apart and not counted. The settings take turns, and the
median over the turns is what is reported.
    python -m benchmarks.overhead [--rounds 300] [--repeat 5] [--only REGEX] [--out FILE]
"""

import argparse
import itertools
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.idle import MARKS
from benchmarks.run import machine
from fedlab_runner import compose
from fedlab_runner.experiment.run import run_whole
from fedlab_runner.utils.files import write_text_atomically

ROUND_MS, CLIENT_MS = 3.0, 0.02  # what a round may take, and each client in it
CHECKPOINT_SHARE = 0.05  # of the time between two checkpoints, at the default interval
WARM_UP = 20  # rounds that are not counted
ALWAYS = ("device=cpu", "evaluation.every=1000000", "checkpoint.seconds=null", "logger=wandb", "logger.mode=offline")
EMPTY = (
    "server_data=none dataset=synthetic dataset.num_test=20 dataset.image_size=4 partition=iid model=logistic "
    "local.epochs=1 local.batch_size=2"
)
KINDS = {
    "fedavg": f"algorithm=fedavg delay=none {EMPTY} num_clients=2000 dataset.num_train=4000",
    "fedbuff, late updates": f"algorithm=fedbuff delay.std=2 {EMPTY} num_clients=10000 dataset.num_train=20000",
}
EACH_AN_MLP = (  # of 199,210 parameters
    "algorithm=dec_fedavg delay=none server_data=none dataset=synthetic dataset.num_test=20 dataset.image_size=28 "
    "partition=iid model=mlp model.hidden=[200,200] local.epochs=1 local.batch_size=2 logger.mode=disabled "
    "num_clients={n} dataset.num_train={examples}"
)
SAVED = {
    "default run": "dataset=digits",
    "dec_fedavg, 4,000 clients": EACH_AN_MLP.format(n=4000, examples=8000),
    "cnn_feddle, 500 clients, fedbuff": (
        "algorithm=fedbuff server_data=none dataset=synthetic dataset.num_train=5000 dataset.num_test=20 "
        "dataset.channels=3 dataset.image_size=32 partition=iid num_clients=500 model=cnn_feddle"
    ),
}


class Setting(NamedTuple):
    """A run by its overrides."""

    overrides: str
    cohort: int
    rounds: int


class Cost(NamedTuple):
    """Milliseconds of a round without its local training, and of planning its minibatches."""

    wall: float
    cpu: float
    planning_cpu: float


def settings(rounds: int) -> Iterator[tuple[str, Setting]]:
    """In the order in which they take turns."""
    for kind, words in KINDS.items():
        for cohort in (10, 100, 1000):
            yield f"{kind}, K={cohort}", Setting(words, cohort, rounds)
    yield "fedavg, no W&B, K=10", Setting(f"{KINDS['fedavg']} logger.mode=disabled", 10, rounds)
    for n in (100, 1000, 4000):
        yield f"dec_fedavg, N={n:,}, K=10", Setting(EACH_AN_MLP.format(n=n, examples=2 * n), 10, min(rounds, 100))
    for kind, words in SAVED.items():
        yield kind, Setting(words, 10, min(rounds, 100))
        yield f"{kind}, saved", Setting(f"{words} checkpoint.rounds=1", 10, min(rounds, 100))


def cost_of(setting: Setting) -> Cost:
    """Medians over the rounds of one run."""
    with tempfile.TemporaryDirectory() as folder:
        words = (f"participation.cohort_size={setting.cohort}", f"rounds={setting.rounds}")
        cfg = compose(*ALWAYS, *setting.overrides.split(), *words, f"logger.dir={folder}/wandb")
        cfg.executor = {"_target_": "benchmarks.idle.Idle"}
        MARKS.clear()
        run_whole(Path(folder) / "run", cfg)
    marks = MARKS[WARM_UP:]
    rest = [(later[0], before[1]) for before, later in itertools.pairwise(marks)]
    return Cost(
        1e3 * statistics.median(begin.wall - end.wall for begin, end in rest),
        1e3 * statistics.median(begin.cpu - end.cpu for begin, end in rest),
        1e3 * statistics.median(end.cpu - begin.cpu for begin, end in marks),
    )


def found(turns: dict[str, list[Cost]], cohorts: dict[str, int], interval: float) -> dict[str, dict[str, Any]]:
    """Medians over the turns, with what is allowed; of a checkpoint, its share of the default `interval` (seconds)."""
    medians = {
        name: Cost(*(statistics.median(column) for column in zip(*costs, strict=True))) for name, costs in turns.items()
    }
    result: dict[str, dict[str, Any]] = {}
    for name, cost in medians.items():
        kind = name.removesuffix(", saved")
        if kind in SAVED:
            if name != kind and kind in medians:
                checkpoint = cost.wall - medians[kind].wall
                share = checkpoint / 1e3 / interval
                result[kind] = {"checkpoint_ms": checkpoint, "share": share, "allowed_share": CHECKPOINT_SHARE}
        else:
            allowed = ROUND_MS + CLIENT_MS * cohorts[name]
            names = {"wall_ms": cost.wall, "cpu_ms": cost.cpu, "planning_cpu_ms": cost.planning_cpu}
            result[name] = names | {"allowed_ms": allowed}
    return result


def shown(name: str, values: dict[str, Any]) -> str:
    """One setting in words."""
    if "share" in values:
        return f"{name}: a checkpoint {values['checkpoint_ms']:.1f} ms, {values['share']:.2%} of the default interval"
    return (
        f"{name}: {values['wall_ms']:.2f} ms a round ({values['cpu_ms']:.2f} ms cpu) of {values['allowed_ms']:.2f} "
        f"allowed; minibatches {values['planning_cpu_ms']:.2f} ms cpu"
    )


def main() -> int:
    """Measure what is asked for; one line a setting on stdout, JSON in a file."""
    parser = argparse.ArgumentParser(prog="benchmarks.overhead")
    parser.add_argument("--rounds", type=int, default=300, help="of each run")
    parser.add_argument("--repeat", type=int, default=5, help="turns of each setting")
    parser.add_argument("--only", default="", help="settings whose name has this regular expression")
    parser.add_argument("--out", type=Path, help="a file for the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    here, interval = machine(cores=1), float(compose().checkpoint.seconds)
    chosen = {name: setting for name, setting in settings(options.rounds) if re.search(options.only, name)}
    turns: dict[str, list[Cost]] = {name: [] for name in chosen}
    for _ in range(options.repeat):
        for name, setting in chosen.items():
            turns[name].append(cost_of(setting))
    rows = found(turns, {name: setting.cohort for name, setting in chosen.items()}, interval)
    for name, values in rows.items():
        print(shown(name, values))
    if options.out:
        content = {"machine": here, "command": sys.argv[1:], "rows": rows}
        write_text_atomically(options.out, json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
