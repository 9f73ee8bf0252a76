"""What a run says that it will need of a GPU's memory, beside what it came to need."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks import gpu, workloads
from benchmarks.gpu_check.finding import Case, Finding, Setting
from benchmarks.gpu_check.runs import Run, algorithms, prepared
from benchmarks.gpu_check.speed import sized
from fedlab_runner.core.executor import Executor
from fedlab_runner.executors.cuda_graph import CudaGraph
from fedlab_runner.experiment.resource_estimate import expected_bytes

# The peak is at most this much of the estimate, and so many bytes more for a workspace of cuBLAS that is new; and at
# least this share of it.
MOST, SPACE, LEAST = 1.15, 2**25, 0.85
LARGE = "resnet18", "lora vit"


def estimates(setting: Setting) -> Iterator[tuple[str, Case]]:
    """Large models with some executors, then every algorithm with one of 1.8 million parameters."""
    for model in LARGE:
        for name, executor in gpu.executors(compiled=False).items():
            yield f"{model}, {name}", partial(_of_training, setting, model, executor)
    yield "fedavg, sums of 2", partial(_of_run, setting, "fedavg", "aggregator.sum_every=2")
    for name in algorithms():
        yield name, partial(_of_run, setting, name)


def _of_training(setting: Setting, model: str, executor: Executor) -> Iterator[Finding]:
    build, shape = gpu.LOCAL[model]
    if isinstance(executor, CudaGraph) and not setting.on_gpu:
        yield Finding("", "needs a GPU", None)
        return
    fed = sized(setting, shape).federation(build, executor, device=setting.device)
    work = workloads.work_of(fed)
    yield _compared(setting, expected_bytes(workloads.algorithm("fedavg"), fed, 1), partial(executor.train, work))


def _of_run(setting: Setting, algorithm: str, *more: str) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        run, expected = run_and_estimate(Path(folder), setting, algorithm, *more)
        yield _compared(setting, expected, run.go)


def run_and_estimate(folder: Path, setting: Setting, algorithm: str, *more: str) -> tuple[Run, float]:
    """A run in which all clients take part, as in a long one, and the bytes that it says it will add."""
    words = f"algorithm={algorithm}", "rounds=4", "executor=vectorized", "dataset.channels=3", "dataset.image_size=32"
    size = 16 if setting.tiny else 512
    run = prepared(folder, setting, *words, "num_clients=12", "model=mlp", f"model.hidden=[{size},{size}]", *more)
    return run, expected_bytes(run.components.algorithm, run.simulation.fed, run.components.rounds)


def _compared(setting: Setting, expected: float, carry_out: Callable[[], object]) -> Finding:
    """An estimate of what comes on top of what is there, and the peak above it."""
    if not setting.on_gpu:
        carry_out()
        return Finding("", f"{expected / 1e6:.1f} MB expected; a CPU does not tell its peak", None)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(setting.device)
    before = torch.cuda.memory_allocated(setting.device)
    carry_out()
    peak = torch.cuda.max_memory_allocated(setting.device) - before
    words = f"{expected / 1e6:.1f} MB expected, {peak / 1e6:.1f} MB at the peak: x {peak / expected:.2f}"
    words += f" ({before / 1e6:.1f} MB before)"
    holds = LEAST * expected <= peak <= MOST * expected + SPACE
    return Finding("", words, holds, {"expected": expected, "peak": peak, "ratio": peak / expected, "before": before})
