"""How fast the package is on a GPU, beside plain PyTorch there, in three precisions.

Contenders take turns in one process: what keeps plain loops in another on a CPU, settings of the C library and of its
threads, is not in use here. Each turn waits for the GPU, and what is reported is the median time of a round and the
median ratio of a turn to the plain loop's in the same.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks import gpu, plain, round_rows, rows, workloads
from benchmarks.case import Case as BenchCase
from benchmarks.case import Contender, Row
from benchmarks.gpu_check.finding import Case, Finding, Setting
from benchmarks.run import matrix_rate, measured
from benchmarks.workloads import FLOAT, W1, Shape
from fedlab_runner.core.executor import Executor
from fedlab_runner.executors._chunks import wait_for
from fedlab_runner.utils.determinism import repeat_exactly

TURNS = 3
SMALL_CLIENTS = Shape(500, 20, 50, 10)  # 50 in a round
COMPILED = "W2 cnn", "W1 cnn", "W2 mlp", "resnet18", "lora vit"


class Precision(NamedTuple):
    """How a GPU multiplies: with 32 bits, with fewer of them (tf32), or autocast to bfloat16."""

    dtype: torch.dtype
    tf32: bool

    def set(self) -> None:
        """For this process."""
        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = self.tf32


PRECISIONS = {
    "float32": Precision(FLOAT, tf32=False),
    "tf32": Precision(FLOAT, tf32=True),
    "bf16": Precision(torch.bfloat16, tf32=True),
}


def sized(setting: Setting, shape: Shape) -> Shape:
    """The shape, or one of the same images that is tiny."""
    return replace(shape, clients=4, examples=4, cohort=2, batch=2) if setting.tiny else shape


def in_precision(name: str, setting: Setting) -> Iterator[tuple[str, Case]]:
    """All rows in one of the precisions."""
    precision = PRECISIONS[name]
    for row in all_rows(setting, precision.dtype):
        yield row.name, partial(_compared, setting, precision, row)


def compiled(setting: Setting) -> Iterator[tuple[str, Case]]:
    """The rows that torch.compile may gain most in, which it takes up to a minute for."""
    for name, precision in PRECISIONS.items():
        for row in compiled_rows(setting, precision.dtype):
            yield f"{row.name}, {name}", partial(_compared, setting, precision, row)


def exactly(setting: Setting) -> Iterator[tuple[str, Case]]:
    """What equal bits in each run cost: executors with PyTorch's deterministic kernels beside the same without."""
    for name in ("W1 cnn", "W2 mlp", "resnet18", "lora vit"):
        yield name, partial(_compared, setting, PRECISIONS["float32"], Row(name, partial(_both_ways, setting, name)))


def _both_ways(setting: Setting, name: str) -> BenchCase:
    (build, shape), contenders = gpu.LOCAL[name], dict[str, Contender]()

    def contender(executor: Executor, on: bool) -> Contender:
        work = workloads.work_of(sized(setting, shape).federation(build, device=setting.device))

        def call(turn: int) -> object:
            repeat_exactly(on)
            return executor.train(workloads.of_round(work, turn))

        return Contender(call)

    for label, executor in _without_compiler(setting).items():
        contenders[label] = contender(executor, on=False)
        contenders[f"{label}, deterministic"] = contender(executor, on=True)
    return BenchCase(contenders)


def _without_compiler(setting: Setting) -> dict[str, Executor]:
    some = {name: each for name, each in gpu.executors(compiled=False).items() if name != "vectorized"}
    return some if setting.on_gpu else {name: each for name, each in some.items() if "graph" not in name}


def all_rows(setting: Setting, precision: torch.dtype) -> Iterator[Row]:
    """Local training without the compiler, evaluation, whole rounds, the server's search and mutual learning."""
    device, some = setting.device, _without_compiler(setting)
    for name in ("W2 cnn", "W1 cnn", "resnet18", "lora vit", "W2 mlp", "W2 logistic"):
        build, shape = gpu.LOCAL[name]
        how: tuple[Any, ...] = 1, False, device, gpu.without_compiler, precision
        yield Row(name, partial(rows.training, sized(setting, shape), build, some, *how))
    rounds = partial(round_rows.of_rounds, cores=1, device=device, precision=precision)
    shape = sized(setting, SMALL_CLIENTS)
    yield Row("50 small clients", partial(rounds, shape, workloads.mlp))
    search: dict[str, Any] = {"algorithm": "feddle", "own": round_rows.SERVER, "beside": {"fine-tuning": "fedft"}}
    shape = sized(setting, round_rows.SEARCHED)
    yield Row("feddle's search", partial(rounds, shape, workloads.cnn, **search))
    shape = sized(setting, rows.MUTUAL)
    yield Row("dfml's mutual learning", partial(rows.mutual, workloads.dfml_cnn, shape, 1, device, precision))
    shape = sized(setting, W1)
    yield Row(
        "evaluation", partial(rows.evaluation, 1, device, precision, {"channels last": plain.channels_last}, shape)
    )


def compiled_rows(setting: Setting, precision: torch.dtype) -> Iterator[Row]:
    """Compiled steps beside each other, of one client and of the whole cohort."""
    every, names = gpu.executors(compiled=True), ("loop", "cohort", *("graph", "cohort graph") * setting.on_gpu)
    some = {f"{name} compiled": every[f"{name} compiled"] for name in names}
    for name in COMPILED:
        build, shape = gpu.LOCAL[name]
        how: tuple[Any, ...] = 1, False, setting.device, gpu.with_compiler, precision
        yield Row(name, partial(rows.training, sized(setting, shape), build, some, *how))
    prepared = {"compiled": torch.compile}
    yield Row("evaluation", partial(rows.evaluation, 1, setting.device, precision, prepared, sized(setting, W1)))


def _compared(setting: Setting, precision: Precision, row: Row) -> Iterator[Finding]:
    """Of each contender that can do the work its median time and speed; of the others why not."""
    precision.set()
    dtype = precision.dtype
    gflops = matrix_rate(8192 if setting.on_gpu else 256, setting.device, dtype)
    comparison, able = row.case(), dict[str, Contender]()
    for name, contender in comparison.contenders.items():
        began = time.perf_counter()
        try:
            contender.call(0)
            wait_for(setting.device)
        except torch.OutOfMemoryError:
            yield Finding(name, "does not fit into the GPU's memory", None)
        except Exception as error:
            why = (str(error).splitlines() or [repr(error)])[0]
            yield Finding(name, f"cannot do it: {why}", None if contender.plain else False)
        else:
            first = time.perf_counter() - began
            able[name] = contender._replace(call=_later(contender.call))
            if first > 10:
                yield Finding(name, f"{first:.0f} s for the first round", None)
    for name, found in measured(comparison._replace(contenders=able), 1 if setting.tiny else TURNS, gflops).items():
        yield Finding(name, _words(found), None, found)


def _later(call: Callable[[int], object]) -> Callable[[int], object]:
    """The call of a contender that has done a round."""
    return lambda turn: call(turn + 1)


def _words(found: dict[str, Any]) -> str:
    limit = f", {found['limit']:.1%} of the rate of matrix products" if "limit" in found else ""
    note = f" ({found['note']})" if "note" in found else ""
    return f"{1e3 * found['median_seconds']:.4g} ms, x {found['speed']:.2f}{limit}{note}"
