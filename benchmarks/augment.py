"""What an augmentation adds to a local step on one thread: rounds of the same cohort with it and without it, in turns.

Images are stored as bytes, as data sets have them. Times are of the processor, and the least of the turns counts, so
that neighbours count little.
    python -m benchmarks.augment [--turns 15] [--only REGEX]
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import nn

from benchmarks.run import machine
from benchmarks.workloads import W1, W2, Shape, cnn, cnn_feddle, dfml_cnn, of_round, work_of
from fedlab_runner.augment.base import Augment
from fedlab_runner.augment.crop_flip import CropFlip
from fedlab_runner.augment.cutout import Cutout
from fedlab_runner.augment.none import NoAugment
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.core.work import Work
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized

AUGMENTS: Mapping[str, Augment] = {
    "none": NoAugment(),
    "crop_flip": CropFlip(padding=4, flip=0.5),
    "cutout": Cutout(padding=4, flip=0.5, size=16),
}


def fetch(work: Work) -> None:
    """All that an augmentation is part of: each client's minibatches, one after another."""
    for row in range(len(work.ids)):
        indices, sizes, _ = work.plan(np.array([row]))
        for index, size in zip(indices[0], sizes[0].tolist(), strict=True):
            work.client_data.minibatch(index[:size])


CONTENDERS: Mapping[str, Callable[[Work], object]] = {
    "minibatches alone": fetch,
    "loop": Loop(compile=False).train,
    "vectorized": Vectorized(chunk_size=10, compile=False).train,
    "loop compiled": Loop(compile=True).train,
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
    plain, half, device = fed.client_data, (0.5,) * shape.channels, fed.family.device
    fed.family.normalize = Normalize.of(half, half, fed.family.dtype, device)
    images, split = (plain.inputs * 255).to(torch.uint8), [plain.members(i) for i in range(plain.num_clients)]
    work = work_of(fed)
    return {
        name: replace(work, client_data=ClientData(images, plain.targets, split, device, augment=augment))
        for name, augment in AUGMENTS.items()
    }


def milliseconds(contender: Callable[[Work], object], work: Work) -> float:
    """Of a local step."""
    before = time.process_time()
    contender(work)
    return (time.process_time() - before) * 1000 / int(work.num_steps.sum())


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    about = machine(cores=1)
    print(f"{about}\n\n| ms of a local step | by | none | crop_flip | cutout |")
    print("| --- | --- | ---: | ---: | ---: |")
    for (name, (shape, build)), (how, contender) in product(WORKLOADS.items(), CONTENDERS.items()):
        if not re.search(arguments.only, f"{name}, {how}"):
            continue
        cohorts, least = works(shape, build), dict.fromkeys(AUGMENTS, float("inf"))
        for round in range(1 + arguments.turns):
            for each, work in cohorts.items():
                took = milliseconds(contender, of_round(work, round))
                least[each] = min(least[each], took) if round else least[each]  # the first one warms up
        cells = [name, how, *(f"{took:.3g}" for took in least.values())]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
