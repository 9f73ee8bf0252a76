"""What is measured on a GPU: more clients and examples at once, and the executors that are of use there."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from benchmarks import plain, round_rows, workloads
from benchmarks.case import Contender, Row
from benchmarks.rows import evaluation, training
from benchmarks.workloads import W1, W2, Shape
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.work import Work
from fedlab_runner.executors.cuda_graph import CudaGraph
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized

LOCAL: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "W1 cnn": (workloads.cnn, W1),
    "W2 cnn": (workloads.cnn, W2),
    "W2 mlp": (workloads.mlp, W2),
    "W2 logistic": (workloads.logistic, W2),
    "cnn_feddle": (workloads.cnn_feddle, Shape(100, 100, 10, 10, side=32, channels=3)),
    "resnet18": (workloads.resnet18, Shape(20, 256, 4, 64, side=32, channels=3)),
    "lora vit": (workloads.lora_vit, Shape(20, 64, 4, 32, side=64, channels=3)),
}


def executors(compiled: bool) -> dict[str, Executor]:
    """Those that a user can name."""
    some: dict[str, Executor] = {}
    for compile in (False, True)[: 1 + compiled]:
        suffix = " compiled" if compile else ""
        some["loop" + suffix] = Loop(compile=compile)
        some["vectorized" + suffix] = Vectorized(chunk_size=10, compile=compile)
        some["cohort" + suffix] = Vectorized(chunk_size=None, compile=compile)
        some["graph" + suffix] = CudaGraph(chunk_size=1, compile=compile)
        some["cohort graph" + suffix] = CudaGraph(chunk_size=None, compile=compile)
    return some


def all_rows(compiled: bool, device: torch.device) -> Iterator[Row]:
    """In the order in which they are measured."""
    for name, (build, shape) in LOCAL.items():
        case = partial(training, shape, build, executors(compiled), 1, compiled, device, _profiled)
        yield Row(f"local training {name}", case)
    yield Row("evaluation cnn", partial(evaluation, 1, device))
    yield from round_rows.rows(1, device, compiled)


def without_compiler(work: Work, build: Callable[[], nn.Module]) -> dict[str, Contender]:
    """What else someone does who has looked at a profile: convolutions as a GPU has them, clients side by side."""
    some = {}
    if work.family.has_convolution:
        laid_out = partial(plain.train_cohort_lean, work, build, plain.channels_last)
        some["plain, lean, channels last"] = Contender(lambda _: laid_out(), plain=True)
    if not work.family.num_buffers:  # which torch.func would have to be given too
        some["plain, vmap"] = Contender(lambda _: plain.train_cohort_stacked(work, build), plain=True)
    return some


def with_compiler(work: Work, build: Callable[[], nn.Module]) -> dict[str, Contender]:
    """And torch.compile; of one module, so that nothing is compiled again in a later round."""

    def contender(prepared: Callable[[nn.Module], plain.Call]) -> Contender:
        module = build().to(work.family.device)
        forward = prepared(module)
        return Contender(lambda _: plain.train_cohort_lean(work, lambda: module, lambda _: forward), plain=True)

    some = {"plain, lean, compiled": contender(torch.compile)}
    if work.family.has_convolution:
        laid_out = contender(lambda module: plain.channels_last(torch.compile(module)))
        some["plain, lean, compiled, channels last"] = laid_out
    return some


def _profiled(work: Work, build: Callable[[], nn.Module]) -> dict[str, Contender]:
    return without_compiler(work, build) | with_compiler(work, build)
