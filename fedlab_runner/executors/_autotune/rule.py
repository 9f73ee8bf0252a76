"""The rule by which `executor=auto` chooses on a CPU: the least expected time by a model of the costs.

The rule is a function of the work, the cores and the threads alone. So the choice, and with it the last bits of a run,
does not depend on other work of the machine. The constants were fitted to one core of an AMD EPYC (docs/speed.md).
Other machines are faster or slower in everything, which changes few choices.
"""

import math
from collections.abc import Sequence

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from fedlab_runner.core.additions import lasts
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work
from fedlab_runner.executors._autotune.measure import FLOPS_A_SECOND, operation_seconds
from fedlab_runner.executors._autotune.ways import Way

# Seconds of a local step besides its operations: of a client alone; of a call for several, and of each client in it.
ALONE, CALL, OF_EACH = 3e-4, 4.5e-4, 4e-5
ALONE_COMPILED, CALL_COMPILED, OF_EACH_COMPILED = 1.2e-4, 1.8e-4, 2.5e-5
# Seconds of a local step for each value of the model, which the step reads and writes.
VALUE, VALUE_SIDE_BY_SIDE = 6e-10, 1.8e-9
VALUE_COMPILED, VALUE_SIDE_BY_SIDE_COMPILED = 3e-10, 1.2e-9
# Share of the time that the same operations take uncompiled; of convolutions with batch or group norm, whose compiled
# loops are slower than PyTorch's own kernels.
COMPILED_OPERATIONS, COMPILED_NORMED = 0.93, 1.1
# Twice as many processes, or threads, are faster by 2 to this power. Small operations are slower with threads.
PROCESSES_POWER, THREADS_POWER, SMALL_WITH_THREADS = 0.8, 0.7, 2.0
STAYING_SECONDS, FORKING_SECONDS = 2e-3, 0.025  # of a round, for waiting worker processes and for new ones
COMPILING_SECONDS, COMPILING_A_MODULE = 15.0, 0.2  # seconds of a graph and of each module, with a margin for errors


def best(work: Work, ways: Sequence[Way], rounds: int, workers: int, threads: int) -> tuple[Way, int]:
    """The way, and the number of processes, with the least expected time for `rounds` rounds; the first of equals."""
    compiler = _compiling_seconds(work.family)

    def total(choice: tuple[Way, int]) -> float:
        compiling = compiler if choice[0].compile else 0.0
        return compiling + rounds * seconds_a_round(work, *choice, threads)

    counts = {way: (1, workers) if way.processes else (1,) for way in ways}
    return min(((way, count) for way, several in counts.items() for count in several), key=total)


def compiling_pays(family: ModelFamily, steps: int, operations: float, rounds: int, threads: int) -> bool:
    """Whether compiled steps save more than the compiler takes, where threads share `operations` of each round."""
    seconds = operations / FLOPS_A_SECOND / _faster(threads, THREADS_POWER)
    saved = (1 - _compiled_share(family)) * seconds + steps * (ALONE - ALONE_COMPILED)
    return rounds * saved > _compiling_seconds(family)


def _compiled_share(family: ModelFamily) -> float:
    norms = _NormBase | nn.GroupNorm
    normed = family.has_convolution and any(isinstance(module, norms) for module in family.module.modules())
    return COMPILED_NORMED if normed else COMPILED_OPERATIONS


def _compiling_seconds(family: ModelFamily) -> float:
    return COMPILING_SECONDS + COMPILING_A_MODULE * sum(1 for _ in family.module.modules())


def seconds_a_round(work: Work, way: Way, workers: int, threads: int) -> float:
    """The expected seconds of the work's local training."""
    clients, family = len(work.ids), work.family
    together = min(way.chunk_size or clients, clients)
    small, value, operations = _of_a_step(work, way, together)
    size = family.size * value
    if way.processes:
        chunks = -(-clients // together)
        several = min(workers, chunks)
        stays = all(map(lasts, (work.loss, work.penalty, work.perturb, work.correct, work.per_step)))
        beside = (STAYING_SECONDS if stays else FORKING_SECONDS) if several > 1 else 0.0
        return beside + float(work.num_steps.sum()) * (small + size + operations) / _faster(several, PROCESSES_POWER)
    if threads > 1:
        small *= SMALL_WITH_THREADS if together == 1 else 1.0
        operations /= _faster(threads, THREADS_POWER)
    return float(work.num_steps.sum()) * (small + size + operations)


def _faster(count: int, power: float) -> float:
    """The speed of `count` processes or threads, relative to one."""
    return math.pow(count, power)


def _of_a_step(work: Work, way: Way, together: int) -> tuple[float, float, float]:
    """Seconds of one client's step on one thread: a part that does not grow with the model, a part for the model's
    values, and a part for its operations.
    """
    operations = operation_seconds(work) * (_compiled_share(work.family) if way.compile else 1.0)
    if way.chunk_size == 1:
        return (ALONE_COMPILED, VALUE_COMPILED, operations) if way.compile else (ALONE, VALUE, operations)
    if way.compile:
        return OF_EACH_COMPILED + CALL_COMPILED / together, VALUE_SIDE_BY_SIDE_COMPILED, operations
    return OF_EACH + CALL / together, VALUE_SIDE_BY_SIDE, operations
