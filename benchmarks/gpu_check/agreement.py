"""Whether a GPU computes what the CPU does, executors what the loop does, and a continued run what it would have."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor, nn

from benchmarks import gpu, workloads
from benchmarks.gpu_check.finding import Case, Finding, Setting, farthest
from benchmarks.gpu_check.runs import Run, algorithms, prepared
from benchmarks.workloads import CPU, Shape
from fedlab_runner.config.build import conf_dir
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.network_trial import TOLERANCE
from fedlab_runner.core.work import Work
from fedlab_runner.executors.cuda_graph import CudaGraph
from fedlab_runner.executors.loop import Loop
from fedlab_runner.utils.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
METRICS_TOLERANCE = 1e-6  # of two rounds in float64, on a GPU and on the CPU
LOSS_TOLERANCE = 1e-3  # of a round in float32; sums in another order may move an example over a border
FEW = (
    *("dataset.channels=3", "dataset.num_train=60", "dataset.num_test=60", "num_clients=3"),
    *("dataset.image_size=32", "server_data.size=10", "auxiliary_data.size=10"),
    *("participation.cohort_size=2", "local.epochs=1", "local.batch_size=10", "local.lr=0.001"),
)
SMALL = Shape(clients=12, examples=11, cohort=6, batch=4, side=8)  # the last minibatch is not full
ADAM = {"optimizer": "adam", "lr": 0.01, "momentum": None, "nesterov": None, "betas": [0.9, 0.999], "eps": 1e-2}


def decayed(model: FunctionalModel, batch: Batch) -> Tensor:
    """A loss that reads the parameters as a vector too."""
    return model.family.loss(model, batch) + 0.01 * model.params.square().sum()


def halved(gradient: Tensor) -> Tensor:
    """A move to the parameters at which the gradient is taken."""
    return 0.5 * gradient


def _local(**changes: Any) -> Callable[[Work], Work]:
    return lambda work: replace(work, local=replace(work.local, **changes))


STEPS: dict[str, Callable[[Work], Work]] = {  # what is changed of local training by plain SGD
    "sgd": _local(),
    "momentum": _local(momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": _local(**ADAM),
    "clipped": _local(clip_norm=0.05),
    "loss": lambda work: replace(work, loss=decayed),
    "moved": lambda work: replace(work, perturb=halved),
    "frozen": lambda work: replace(work, frozen=tuple(work.family.layout)[:1]),
}


def plain() -> nn.Module:
    """Linear layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, workloads.CLASSES))


def normed() -> nn.Module:
    """A convolution, pooling and batch norm."""
    before = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*before, nn.Flatten(), nn.Linear(72, workloads.CLASSES))


def tests(setting: Setting) -> Iterator[tuple[str, Case]]:
    """Those of the suite that wait for a GPU."""
    yield "executor=cuda_graph", partial(_pytest, "tests/executors/test_cuda_graph.py", "-k", "gpu")


def _pytest(*words: str) -> Iterator[Finding]:
    """What each test of a selection ended with."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *words]
        code = subprocess.run(command, cwd=ROOT).returncode
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    for case in cases:
        failed = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        skipped = case.find("skipped")
        said = failed if failed is not None else skipped
        why = "passed" if said is None else said.get("message", "").partition("\n")[0]
        yield Finding(case.get("name", ""), why, None if skipped is not None else failed is None)
    if not cases:
        yield Finding("", f"pytest ran nothing (exit code {code})", False)


def executors(setting: Setting) -> Iterator[tuple[str, Case]]:
    """Each beside the loop on the same device, in float64, and the loop there beside the loop on the CPU."""
    yield "loop", partial(_as_the_loop, setting, Loop(compile=False), CPU)
    for name, executor in gpu.executors(compiled=False).items():
        if name != "loop":
            yield name, partial(_as_the_loop, setting, executor, setting.device)
    yield "auto", partial(_as_the_loop, setting, workloads.automatic(1, compile=False)[0], setting.device)


def compiled(setting: Setting) -> Iterator[tuple[str, Case]]:
    """Compiled steps of each executor beside the loop's without, in float64."""
    for name, executor in gpu.executors(compiled=True).items():
        if name.endswith(" compiled"):
            yield name, partial(_as_the_loop, setting, executor, setting.device)


def _as_the_loop(setting: Setting, executor: Executor, reference: torch.device) -> Iterator[Finding]:
    if isinstance(executor, CudaGraph) and not setting.on_gpu:
        yield Finding("", "needs a GPU", None)
        return
    for build in (plain, normed):
        far: dict[str, float] = {}
        for name, changed in STEPS.items():
            mine, theirs = (changed(_work(build, device)) for device in (setting.device, reference))
            far[name] = _apart(mine, executor.train(mine)[0], Loop(compile=False).train(theirs)[0])
        worst = max(far, key=lambda name: far[name])
        words = f"at most {far[worst]:.1e} of the way apart ({worst})"
        yield Finding(build.__name__, words, far[worst] <= TOLERANCE[torch.float64], {"apart": far})


def _work(build: Callable[[], nn.Module], device: torch.device) -> Work:
    return workloads.work_of(SMALL.federation(build, device=device, precision=torch.float64))


def _apart(work: Work, mine: Tensor, theirs: Tensor) -> float:
    """Of models [K, D], relative to how far they have moved; NaN is not lost."""
    theirs = theirs.to(mine.device)
    moved = torch.linalg.vector_norm(theirs - work.start, dim=1)
    return float((torch.linalg.vector_norm(mine - theirs, dim=1) / moved).max())


def on_both(setting: Setting) -> Iterator[tuple[str, Case]]:
    """Two rounds of every algorithm there and on the CPU, in float64."""
    for name in algorithms():
        yield name, partial(_on_both, setting, name)


def _on_both(setting: Setting, algorithm: str) -> Iterator[Finding]:
    words = f"algorithm={algorithm}", "rounds=2", "precision=float64", "executor=vectorized"
    mlp = "model=mlp", "model.hidden=[16]"
    ways: list[tuple[str, tuple[str, ...]]] = [("mlp", mlp)]
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, chosen) in enumerate(ways):
            places = (("there", setting.device), ("here", CPU))
            try:
                there, here = (
                    prepared(Path(folder) / f"{number}" / place, setting, *words, *chosen, device=device)
                    for place, device in places
                )
            except UserError as error:
                if not number:
                    raise
                yield Finding(name, f"cannot be chosen ({error})", None)
                continue
            far, key = max(farthest(*pair) for pair in zip(there.go(), here.go(), strict=True))
            words_of = f"metrics at most {far:.1e} apart ({key})"
            yield Finding(name, words_of, far <= METRICS_TOLERANCE, {"apart": far})
            if not number:
                method = there.components.algorithm
                ways += [("mix", ("model=mix",))] * method.heterogeneous
                ways += [("sums of 2", (*mlp, "aggregator.sum_every=2"))] * method.takes_sums()


def models(setting: Setting) -> Iterator[tuple[str, Case]]:
    """A round of FedAvg with every model that can be chosen, in the precision of a run, there and on the CPU."""
    for name in sorted(path.stem for path in (conf_dir() / "model").glob("*.yaml")):
        yield name, partial(_model, setting, name)


def _model(setting: Setting, model: str) -> Iterator[Finding]:
    torch.backends.cudnn.allow_tf32 = False  # a CPU has none
    words = "algorithm=fedavg", "rounds=1", f"model={model}", *FEW
    words += ("model.name=vit_tiny_patch16_224",) * (model == "vit_lora")
    with tempfile.TemporaryDirectory() as folder:

        def run(executor: str, device: torch.device) -> Run:
            words_of = f"executor={executor}", *words
            return prepared(Path(folder) / executor / device.type, setting, *words_of, device=device)

        def losses(run: Run) -> dict[str, Any]:
            return {key: value for key, value in run.go()[-1].items() if key.endswith("/loss")}

        try:
            reference = run("loop", CPU)
        except UserError as error:
            yield Finding("", f"needs more than its name ({error})", None)
            return
        here, same_masks = losses(reference), not reference.simulation.fed.family.draws
        for executor in ("loop", "vectorized"):
            far, key = farthest(losses(run(executor, setting.device)), here)
            holds = far <= LOSS_TOLERANCE if same_masks else None
            yield Finding(executor, f"losses at most {far:.1e} apart ({key})", holds, {"apart": far})


def resume(setting: Setting) -> Iterator[tuple[str, Case]]:
    """Every algorithm, stopped after one of two rounds and continued, beside the same without a stop."""
    for name in algorithms():
        yield name, partial(_resumed, setting, name)


def _resumed(setting: Setting, algorithm: str) -> Iterator[Finding]:
    with tempfile.TemporaryDirectory() as folder:

        def run(name: str, rounds: int) -> Run:
            words = f"algorithm={algorithm}", f"rounds={rounds}"
            try:
                return prepared(Path(folder) / name, setting, *words, "model=cnn_small")
            except UserError:  # it matches hidden neurons
                return prepared(Path(folder) / name, setting, *words, "model=mlp", "model.hidden=[16]")

        whole, stopped = run("whole", 2), run("stopped", 1)
        rows = whole.go()
        stopped.go()
        stopped = run("stopped", 2)
        far, key = max(farthest(*pair) for pair in zip(rows, stopped.go(), strict=True))
        same = whole.metrics == stopped.metrics
        words = "to the bit" if same else f"metrics at most {far:.1e} apart ({key})"
        if not same:
            again = run("again", 2)
            again.go()
            words += f"; two runs without a stop are {'equal' if again.metrics == whole.metrics else 'apart too'}"
        yield Finding("continued", words, same, {"apart": far})
