"""What must hold between runs of one random combination of `tests.helpers.smoke`.

- killed: a run that is killed and started again has the bytes of one that was not.
- memory: so has one whose fresh memory holds no zeros.
- extended: so has a run that first had two rounds less.
- processes: `executor=processes` has the loop's bytes.
- swept: so has the second job of a sweep over seeds.
- watched: evaluation, analyses, pictures and checkpoints change no model, and no metric that is there without them.
- side by side: `executor=vectorized` has the loop's numbers up to rounding.
- compiled: so has `executor.compile=true` (a third of the combinations, as the compiler takes a while).
- summed: so has `aggregator.sum_every`.

`make related ARGS="--count 60 --seed 7"` tries the combinations 7000000 to 7000059; `--only 7000012`
tries one of them.
"""

import ctypes
import json
import math
import os
import random
import shlex
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from tests.helpers import smoke

ROUNDING = 1e-5  # of a number or a tensor in float64, relative
# Keys that relations set themselves, and schedules whose rates depend on the number of rounds.
OWN = (
    *("rounds=", "evaluation.every=", "logger.save_model=", "pruning=", "aggregator.sum_every="),
    *("lr_schedule=cosine", "lr_schedule=warmup_cosine", "lr_schedule.warmup="),
)
ROUNDS = 4
SET = (f"rounds={ROUNDS}", "evaluation.every=1", "logger.save_model=true", "logger.pictures=false")
CHECKPOINTS = ("checkpoint.rounds=1", "checkpoint.seconds=null", "checkpoint.share=1.0")
LOOP = ("executor=loop", "threads=1")
# Where rounding stays small: Adam makes steps of a gradient that is zero but for rounding, and batch norm of two pixels
# multiplies rounding by 1e5 a step.
CALM = ("precision=float64", "local=sgd", "local.batch_size=16", "server_optimizer=none")
NOT_WATCHED = ("evaluation.every=2", "evaluation.matrix=[]", "analysis=none", "logger.pictures=true", *CHECKPOINTS)
SLOW_TO_COMPILE = {*smoke.LARGE, "timm", "vit_lora"}
SUBDIR = "hydra.sweep.subdir=${hydra.job.num}"
M_PERTURB = -6  # of malloc.h
Compare = Callable[[Path, Path], str | None]  # how the second run folder differs from the first, in words


class Relation(NamedTuple):
    """Two series of commands, each in a folder of its own, whose results are compared; the first of the second series
    may be killed.
    """

    name: str
    one: list[str]
    other: list[list[str]]
    compare: Compare
    begin: Callable[[], None] = lambda: None  # called by the process of the first command of `other`


def relations(number: int) -> Iterator[Relation]:
    """Those of a combination."""
    draw, drawn = random.Random(number), _without(smoke.combination(number), *OWN)
    drawn += [*SET, "hydra.run.dir=run"]
    loop = [*_without(drawn, "executor", "threads="), *LOOP]
    exact = [*_without(loop, "precision=", "local=", "local.batch_size=", "server_optimizer="), *CALM]
    often = [*drawn, *CHECKPOINTS]
    yield Relation("killed", often, [often, often], _bytes, _killer(draw))
    yield Relation("memory", often, [often], _bytes, _fill_memory)
    few = [*_without(loop, "rounds="), f"rounds={ROUNDS - 2}"]
    yield Relation("extended", loop, [few, loop], _bytes)
    forked = [*_without(loop, "executor="), "executor=processes", "executor.workers=2"]
    yield Relation("processes", loop, [forked], _bytes)
    seeds = ["-m", *_without(loop, "seed=", "hydra.run.dir="), "seed=1,0", "hydra.sweep.dir=jobs", SUBDIR]
    yield Relation("swept", [*_without(loop, "seed="), "seed=0"], [seeds], _second_job)
    unwatched = [*_without(loop, "evaluation.every=", "evaluation.matrix=", "analysis=", "logger.pictures=")]
    yield Relation("watched", loop, [[*unwatched, *NOT_WATCHED]], _in_common)
    drops = "model=vit_small" in exact and "model.dropout=0.0" not in exact
    if not drops:  # masks depend on who trains side by side
        together = [*_without(exact, "executor="), "executor=vectorized", "executor.chunk_size=null"]
        yield Relation("side by side", exact, [together], _numbers)
    (model,) = (each.partition("=")[2] for each in drawn if each.startswith("model="))
    if draw.random() < 1 / 3 and model not in SLOW_TO_COMPILE and not drops:  # compiled steps draw other masks
        yield Relation("compiled", exact, [[*exact, "executor.compile=true"]], _numbers)
    (algorithm,) = (each.partition("=")[2] for each in drawn if each.startswith("algorithm="))
    if "aggregator=mean" in drawn and smoke._class(algorithm).reads_sums:
        yield Relation("summed", exact, [[*exact, "aggregator.sum_every=1"]], _numbers)


def tried(number: int) -> Iterator[tuple[str, str | None, list[str]]]:
    """The name of each relation, what is wrong with it, and the commands."""
    wholes: dict[tuple[str, ...], tuple[int | None, Path]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for each in relations(number):
            key = tuple(each.one)
            if key not in wholes:
                place = Path(folder) / str(len(wholes))
                place.mkdir()
                wholes[key] = smoke.run_in(place, each.one)[0], place / "run"
            code, whole = wholes[key]
            if code != 0:
                continue  # refused, or diverged: `smoke` looks at these
            place = Path(folder) / each.name
            place.mkdir()
            for turn, command in enumerate(each.other):
                code, said, _ = smoke.run_in(place, command, each.begin if not turn else lambda: None)
            if code == 2 and each.name == "summed":
                continue  # with this home, or analysis
            fault = each.compare(whole, place / "run") if code == 0 else f"exit code {code}: {said[-1000:]}"
            yield each.name, fault, [shlex.join(["fedlab", *c]) for c in (each.one, *each.other)]


def _without(arguments: list[str], *keys: str) -> list[str]:
    return [each for each in arguments if not each.lstrip("+").startswith(keys)]


def _killer(draw: random.Random) -> Callable[[], None]:
    """What has a process killed at the beginning of a round, or after a local training."""
    left, at_training = draw.randint(2, ROUNDS), draw.random() < 0.5

    def begin() -> None:
        from fedlab_runner.core.federation import Federation
        from fedlab_runner.core.trainer import LocalTrainer

        kind: Any = LocalTrainer if at_training else Federation
        name = "train" if at_training else "begin"
        method = getattr(kind, name)

        def then_killed(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            found = method(*args, **kwargs)
            left -= 1
            if not left:
                os.killpg(0, signal.SIGKILL)
            return found

        setattr(kind, name, then_killed)

    return begin


def _fill_memory() -> None:
    """Has glibc write 5A5A... into all memory that it gives, which is 1.5e16 as a number."""
    ctypes.CDLL(None).mallopt(M_PERTURB, 0xA5)


def _bytes(one: Path, other: Path) -> str | None:
    for name in ("metrics.jsonl", "partition.csv"):
        if (one / name).exists() and (one / name).read_bytes() != (other / name).read_bytes():
            return f"{name} differs"
    return _tensors(one, other, 0.0)


def _second_job(one: Path, other: Path) -> str | None:
    return _bytes(one, other.parent / "jobs" / "1")


def _in_common(one: Path, other: Path) -> str | None:
    rows = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (one, other)]
    for mine, its in zip(*(map(json.loads, each) for each in rows), strict=True):
        for key in sorted(mine.keys() & its.keys()):
            if str(mine[key]) != str(its[key]):  # NaN is itself
                return f"{key} is {mine[key]} and {its[key]} after round {mine['round']}"
    return _tensors(one, other, 0.0)


def _tensors(one: Path, other: Path, rounding: float) -> str | None:
    mine, its = (load_file(folder / "model.safetensors") for folder in (one, other))
    if mine.keys() != its.keys():
        return "the weights have other names"
    far = {name: apart for name in mine if not (apart := _apart(mine[name], its[name])) <= rounding}
    return f"the weights are {max(far.values()):.1e} apart" if far else None


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    """The distance of two tensors, relative to the first. Without threads, of which the next fork would have none."""
    if one.shape != other.shape:
        return math.inf
    a, b = one.astype(np.float64), other.astype(np.float64)
    return math.sqrt(np.square(a - b).sum()) / max(1e-3, math.sqrt(np.square(a).sum()))


def _numbers(one: Path, other: Path) -> str | None:
    rows = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (one, other)]
    for mine, its in zip(*(map(json.loads, each) for each in rows), strict=True):
        if mine.keys() != its.keys():
            return "the metrics have other names"
        for key in mine:
            if not _near(mine[key], its[key]):
                return f"{key} is {mine[key]} and {its[key]}"
    return _tensors(one, other, ROUNDING)


def _near(one: Any, other: Any) -> bool:
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return bool(one == other or (numbers and abs(one - other) <= ROUNDING * max(1, abs(one))))


def main() -> int:
    """Tries as many combinations as asked for; 1 if a relation does not hold."""
    numbers, named = smoke.asked(__doc__, 60)
    smoke.import_all()
    outcomes: Counter[str] = Counter()
    for done, number in enumerate(numbers, 1):
        for name, fault, commands in tried(number):
            outcomes[f"{name}: " + ("FAULT" if fault else "holds")] += 1
            if fault or named:
                print(f"{number}: {name}: {fault or 'holds'}", *commands, sep="\n  ", flush=True)
        if done % 10 == 0:
            print(f"{done} tried: {dict(outcomes)}", file=sys.stderr, flush=True)
    print(", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items())))
    return int(any(outcome.endswith("FAULT") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
