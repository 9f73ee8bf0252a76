"""All parts of the check, those first that tell most and time nothing."""

from functools import partial

from benchmarks.gpu_check import agreement, memory, sharing, speed
from benchmarks.gpu_check.finding import Part

PARTS = (
    Part("tests", agreement.tests, 120, 120),
    Part("executors", agreement.executors, 300, 90),
    Part("compiled executors", agreement.compiled, 360, 240),
    Part("algorithms", agreement.on_both, 300, 60),
    Part("models", agreement.models, 300, 60),
    Part("resume", agreement.resume, 300, 60),
    Part("sharing", sharing.cases, 300, 90),
    Part("memory", memory.estimates, 300, 60),
    *(Part(name, partial(speed.in_precision, name), 300, 90, alone=True) for name in speed.PRECISIONS),
    Part("deterministic", speed.exactly, 120, 60, alone=True),
    Part("compiled", speed.compiled, 600, 240, alone=True),
)
