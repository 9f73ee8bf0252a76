"""What an augmentation adds to a local step on one thread: the same cohort with it and without it, in turns.

Images are stored as bytes, as data sets have them. Times are of the processor, so that neighbours count little; the
least of a turn's repetitions is a turn's time, and the median ratio of the turns is the share that is reported.
    python -m benchmarks.augment [--turns 5] [--only REGEX]
"""

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count, product

import torch
from torch import nn

from benchmarks.run import machine
from benchmarks.workloads import W1, W2, Shape, cnn, cnn_feddle, dfml_cnn, of_round, work_of
from fedlab_runner.augment.base import Augment
from fedlab_runner.augment.crop_flip import CropFlip
from fedlab_runner.augment.cutout import Cutout
from fedlab_runner.augment.none import UNCHANGED
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.executors.work import Executor, Work
from fedlab_runner.population import Population
from fedlab_runner.task import Normalize

SECONDS = 1.0  # of a contender's repetitions in a turn
AUGMENTS: Mapping[str, Augment] = {
    "none": UNCHANGED,
    "crop_flip": CropFlip(padding=4, flip=0.5),
    "cutout": Cutout(padding=4, flip=0.5, size=16),
}
EXECUTORS: Mapping[str, Executor] = {
    "loop": Loop(compile=False),
    "vectorized": Vectorized(chunk_size=10, compile=False),
    "loop compiled": Loop(compile=True),
}
WORKLOADS: Mapping[str, tuple[Shape, Callable[[], nn.Module]]] = {
    "W1 cnn, 28x28, b 20": (W1, cnn),
    "W2 cnn, 28x28, b 10": (W2, cnn),
    "cnn_feddle, 3x32x32, b 32": (Shape(10, 64, 5, 32, side=32, channels=3), cnn_feddle),
    "cnn_feddle, 3x32x32, b 64": (Shape(10, 128, 5, 64, side=32, channels=3), cnn_feddle),
    "dfml_cnn, 3x32x32, b 32": (Shape(10, 64, 5, 32, side=32, channels=3), dfml_cnn),
}


def works(shape: Shape, build: Callable[[], nn.Module]) -> dict[str, Work]:
    """A cohort's local training on images of bytes, with each of the augmentations."""
    fed = shape.federation(build)
    plain, half, device = fed.population, (0.5,) * shape.channels, fed.task.device
    fed.task.normalize = Normalize.of(half, half, fed.task.dtype, device)
    images, split = (plain.inputs * 255).to(torch.uint8), [plain.members(i) for i in range(plain.num_clients)]
    work = work_of(fed)
    return {
        name: replace(work, population=Population(images, plain.targets, split, device, augment=augment))
        for name, augment in AUGMENTS.items()
    }


def least(executor: Executor, work: Work, rounds: "count[int]") -> float:
    """Milliseconds of a local step."""
    times, begun = [], time.perf_counter()
    while time.perf_counter() - begun < SECONDS or len(times) < 3:
        of_this = of_round(work, next(rounds))
        before = time.process_time()
        executor.train(of_this)
        times.append(time.process_time() - before)
    return min(times) * 1000 / int(work.num_steps.sum())


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    about = machine(cores=1)
    print(f"{about}\n\n| local training | executor | none, ms a step | crop_flip | cutout |")
    print("| --- | --- | ---: | ---: | ---: |")
    for (name, (shape, build)), (how, executor) in product(WORKLOADS.items(), EXECUTORS.items()):
        if not re.search(arguments.only, f"{name}, {how}"):
            continue
        cohorts, rounds, turns = works(shape, build), count(), []
        for work in cohorts.values():
            executor.train(of_round(work, next(rounds)))
        for _ in range(arguments.turns):
            turns.append({each: least(executor, work, rounds) for each, work in cohorts.items()})
        shares = (statistics.median(t[each] / t["none"] - 1 for t in turns) for each in AUGMENTS if each != "none")
        cells = [name, how, f"{min(t['none'] for t in turns):.3g}", *(f"{share:+.1%}" for share in shares)]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
