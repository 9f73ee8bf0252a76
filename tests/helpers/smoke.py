"""Random combinations of what conf/ offers, each a small run in a process of its own: it ends well or in one line.

`python -m tests.helpers.smoke --count 300 --seed 7` tries the combinations 7000000 to 7000299; `--only 7000012` tries
one of them.
"""

import argparse
import contextlib
import importlib
import os
import random
import re
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tests.helpers.paths import ROOT

# Groups of which a run takes no choice, or only one here.
NO_CHOICE = {"experiment", "paper", "hydra", "hparams_search", "logger", "evaluation", "checkpoint", "debug"}
LIMIT = 300.0  # seconds of a run
STRIDE = 1_000_000  # numbers of combinations of one seed
CONF = ROOT / "conf"
# Choices that need what most machines lack: files, a GPU, a cluster, another package.
ELSEWHERE = {
    "dataset": lambda name: name not in ("digits", "synthetic"),
    "server_data": lambda name: name not in ("none", "in_domain"),
    "executor": lambda name: name in ("cuda_graph", "ray"),
    "delay": lambda name: name == "from_file",
    "topology": lambda name: name == "edge_list",
}
# Models that are large as they stand, and those that read images of one kind.
SHRUNK = {
    "blocks_cnn": [("model.widths=[4,6]", "model.hidden=[10]")],
    "blocks_mlp": [("model.widths=[6,4]", "model.hidden=[10]")],
    "blocks_resnet": [("model.image_size=8", "model.hidden=[10]")],
    "cnn_feddle": [("model.image_size=16", "model.pool=each")],
    "cnn_lenet": [("model.image_size=16",)],
    "cnn_mcmahan": [("model.image_size=12",)],
    "cnn_pfllib": [("model.image_size=16",)],
    "cnn_small": [(), ("model.image_size=8", "model.channels=null")],
    "dfml_cnn": [("model.widths=[4,8]",)],
    "mlp": [("model.hidden=[10]",), ("model.hidden=[]",)],
    "preact_resnet": [("model.widths=[8,16]", "model.image_size=8"), ("model.widths=[4,6]", "model.image_size=9")],
    "resnet18": [("model.image_size=8", "model.norm=batch"), ("model.image_size=8", "model.norm=group")],
    "resnet18_torchvision": [("model.image_size=32",)],
    "timm": [
        ("model.name=test_vit", "model.image_size=32"),
        ("model.name=test_resnet", "model.image_size=32"),
        ("model.name=test_efficientnet", "model.image_size=32"),
    ],
    "vit_lora": [("model.name=test_vit", "model.image_size=32", "model.rank=2")],
    "vit_small": [
        ("model.image_size=8", "model.width=8", "model.heads=2", "model.head_width=4"),
        ("model.image_size=8", "model.width=8", "model.heads=2", "model.head_width=4", "model.dropout=0.0"),
    ],
}
LARGE = {"blocks_resnet", "resnet18", "resnet18_torchvision"}  # ten million values and more, however small the images
# Work of a server that is long as it stands.
SHORT = {
    "feddle": ("algorithm.epochs=1",),
    "fedbe": ("algorithm.epochs=1",),
    "feddf": ("algorithm.epochs=1",),
    "fedgen": ("algorithm.steps=2",),
    "fedlaw": ("algorithm.epochs=1",),
    "fedcda": ("algorithm.warmup=1",),
}


def choices(group: str) -> list[str]:
    """The files of a group that any machine can use."""
    there = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    return [name for name in there if not ELSEWHERE.get(group, lambda name: False)(name)]


def combination(number: int) -> list[str]:
    """The arguments of one run: a function of the number, and of what conf/ holds."""
    draw = random.Random(number)
    groups = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name not in NO_CHOICE)
    pick = {group: draw.choice(choices(group)) for group in groups}
    _fit_together(pick, draw)
    clients = 2 if pick["model"] in LARGE else draw.choice([2, 5, 9])
    cohort = draw.choice([1, 1, 2, clients])
    if pick["participation"] == "over_selection":
        cohort = max(1, min(cohort, int(clients / 1.3)))
    if _class(pick["algorithm"]).decentralized:
        cohort = min(cohort, clients - 1)
    if clients == 2 and pick["topology"] == "random_regular":
        pick["topology"] = "ring"
    said = [f"{group}={name}" for group, name in pick.items()]
    said += draw.choice(SHRUNK.get(pick["model"], [()]))
    said += SHORT.get(pick["algorithm"], ())
    if pick["augment"] == "cutout":  # of images of 8x8 pixels
        said.append("augment.size=4")
    if pick["algorithm"] == "fedwalk":
        base = draw.choice(["fedavg", "scaffold", "fedbuff"])
        said += [f"algorithm@algorithm.base={base}", "server_data@auxiliary_data=in_domain", "auxiliary_data.size=10"]
    if pick["dataset"] == "synthetic":
        channels, side = draw.choice([1, 3]), draw.choice([8, 9])
        if pick["model"].startswith("blocks"):  # blocks of the digits' 64 values
            channels, side = 1, 8
        said += ["dataset.num_classes=4", f"dataset.channels={channels}", "dataset.num_users=9"]
        said += ["dataset.num_train=150", "dataset.num_test=40", f"dataset.image_size={side}"]
    else:
        said.append("train_fraction=0.15")
    if pick["server_data"] == "in_domain":
        said.append(f"server_data.size={draw.choice([5, 12])}")
    said.append(f"num_clients={clients}")
    fixed = {"fixed": "participation.clients=[0,1]"}
    said.append(fixed.get(pick["participation"], f"participation.cohort_size={cohort}"))
    if pick["partition"] == "random_blocks":
        held = 3 if clients < 9 else 2  # of two clients with two of four blocks, a block often belongs to no client
        said += ["partition.num_blocks=4", f"partition.blocks_per_client={held}", "partition.classes_per_client=3"]
    if pick["partition"] in ("dirichlet", "quantity_skew"):
        said.append("partition.min_size=2")
    of_all = 4 if pick["dataset"] == "synthetic" else 10
    if pick["partition"] == "labels_per_client":
        said.append(f"partition.labels={of_all}")
    if pick["partition"] == "power_law":
        said += [f"partition.classes_per_client={of_all}", "partition.min_per_class=1"]
    if pick["topology"] == "random_regular":
        said.append("topology.degree=2")
    if pick["lr_schedule"] == "warmup_cosine":
        said.append("lr_schedule.warmup=1")
    if pick["aggregator"] == "mean" and _class(pick["algorithm"]).reads_sums:
        said.append(f"aggregator.sum_every={draw.choice(['null', 1, 2])}")
    if pick["executor"] == "processes":
        said.append("executor.workers=2")
        said += draw.choice([[], ["+executor@executor.inner=vectorized"]])
    if pick["executor"] == "auto":
        said += draw.choice([[], ["executor.seconds=0.0", "executor.compile=false"]])
    if pick["executor"] == "vectorized":
        said.append(f"executor.chunk_size={draw.choice(['null', 1, 2])}")
    held_out = draw.choice([0, 1]) if cohort + 2 <= clients and pick["algorithm"] != "hyfem" else 0
    cells = [draw.choice(_cells(pick, held_out)) for _ in range(draw.choice([0, 1, 3]))]
    if pick["client_split"] == "shares" and any("own" in cell or "unseen" in cell for cell in cells):
        said.append("client_split.test=0.4")
    validation = draw.choice([0.0, 0.0, 0.2])
    training = draw.choice(["local.epochs=1", "local.epochs=null local.steps=2", "local.epochs=2"])
    said += [
        f"seed={draw.randrange(100)}",
        f"rounds={draw.choice([2, 3])}",
        f"precision={draw.choice(['float32', 'float32', 'bfloat16', 'float64'])}",
        f"local.batch_size={draw.choice([1, 2, 3, 7, 16, 64])}",
        "local.epochs=null local.steps=2" if pick["model"] in LARGE else training,
        f"threads={draw.choice([1, 2])}",
        f"client_split.validation={0.0 if 'blocks' in pick['partition'] else validation}",
        f"label_noise={draw.choice([0.0, 0.0, 0.3])}",
        f"drop_empty={draw.choice(['true', 'true', 'false'])}",
        f"nonfinite={draw.choice(['stop', 'drop', 'zero'])}",
        f"evaluation.every={draw.choice([1, 2])}",
        f"evaluation.matrix=[{','.join(cells)}]",
        f"evaluation.per_class={draw.choice(['true', 'false'])}",
        f"participation.held_out_clients={held_out}",
        f"logger.save_model={draw.choice(['true', 'false'])}",
        draw.choice(["local.clip_norm=null", "local.clip_norm=1.0", "local.update_norm=5.0"]),
        "logger=none",
        "device=cpu",
    ]
    return [part for each in said for part in each.split(" ")]


def _fit_together(pick: dict[str, str], draw: random.Random) -> None:
    """Changes what would only be refused; some of that is left, as a refusal is one line too."""
    if draw.random() < 0.1 or pick["algorithm"] == "hyfem":  # learning over blocks of features
        pick["algorithm"], pick["partition"] = draw.choice(["hyfem", "standalone"]), "random_blocks"
        pick["model"] = draw.choice(["blocks_cnn", "blocks_mlp", "blocks_resnet"])
    elif pick["partition"] in ("random_blocks", "assigned_blocks"):
        pick["partition"] = "iid"
    algorithm = _class(pick["algorithm"])
    if algorithm.decentralized:
        pick["participation"] = "uniform"
    if not algorithm.makes_server_steps:
        pick["server_optimizer"] = "none"
    if not algorithm.averages or (algorithm.reads_sums and draw.random() < 0.5):
        pick["aggregator"] = "mean"
    if draw.random() < 0.95 and (not hasattr(algorithm, "server_step") or pick["algorithm"] == "center"):
        pick["analysis"] = "none"
    if pick["model"] == "mix" and not algorithm.heterogeneous:
        pick["model"] = "mlp"
    if pick["model"] in LARGE and draw.random() < 0.6:
        pick["model"] = "preact_resnet" if pick["partition"] != "random_blocks" else "blocks_mlp"
    if draw.random() < 0.9:
        pick["server_data"] = "in_domain"
    if draw.random() < 0.9 and not _keeps_home(pick, algorithm):
        pick["home"] = "none"
    if "blocks" in pick["partition"]:
        pick["augment"] = "none"
    if pick["partition"] == "natural":
        pick["dataset"] = "synthetic"
    elif pick["client_split"] == "natural":
        pick["client_split"] = "shares"


def _keeps_home(pick: dict[str, str], algorithm: Any) -> bool:
    """Whether such a run may have the chosen home."""
    if (pick["algorithm"] != "fedwalk" and algorithm.home_fault(None)) or pick["analysis"] != "none":
        return False
    return pick["home"] != "norm" or "resnet" in pick["model"] or pick["model"] == "dfml_cnn"


def _cells(pick: dict[str, str], held_out: int) -> list[str]:
    """Cells of the evaluation matrix that such a run has."""
    without_server = _class(pick["algorithm"]).decentralized or pick["algorithm"] in ("standalone", "hyfem")
    data = ["global", "train", *(["unseen"] if held_out else [])]
    if pick["partition"] not in ("random_blocks", "assigned_blocks") or pick["client_split"] == "redealt":
        data.append("own")  # clients may not set examples aside that they share
    return [f"{model}/{each}" for model in ("client", "server", "tuned")[: 1 if without_server else 3] for each in data]


def _class(algorithm: str) -> Any:
    text = (CONF / "algorithm" / f"{algorithm}.yaml").read_text()
    ((module, name),) = re.findall(r"^_target_: (\S+)\.(\w+)$", text, re.MULTILINE)
    return getattr(importlib.import_module(module), name)


class Ended(NamedTuple):
    """How a run ended: its exit code (minus a signal; None: never), and what it said."""

    number: int
    code: int | None
    said: str
    seconds: float

    @property
    def fault(self) -> str | None:
        """What is wrong with that; None if nothing is."""
        errors = [line for line in self.said.splitlines() if line.startswith("error: ")]
        if self.code is None:
            return f"did not end within {LIMIT:.0f} s"
        if "Traceback" in self.said or "Error:" in self.said:
            return "a traceback"
        if self.code == 0:
            return None if not errors else "exit code 0 with an error"
        if self.code == 1 and len(errors) == 1 and "the run diverged in round" in errors[0]:
            return None
        if self.code == 2 and errors and all(len(line) < 1000 for line in errors):
            return None
        return f"exit code {self.code} with {len(errors)} errors"

    @property
    def command(self) -> str:
        """To try it again."""
        return shlex.join(["fedlab", *combination(self.number)])


def tried(numbers: Iterable[int]) -> Iterator[Ended]:
    """Each combination in a child of this process, which imports everything once and computes nothing."""

    import_all()
    for number in numbers:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield _one(number, Path(folder))


def import_all() -> None:
    """Imports what runs need, for all children of this process."""
    for name in ("experiment.run", "train"):
        importlib.import_module(f"fedlab_runner.{name}")


def _one(number: int, folder: Path) -> Ended:
    return Ended(number, *run_in(folder, combination(number)))


def run_in(
    folder: Path, arguments: list[str], begin: Callable[[], None] = lambda: None
) -> tuple[int | None, str, float]:
    """The exit code of a command in a folder (minus a signal; None: it did not end), what it said, and its seconds; its
    process calls `begin` first.
    """
    said, began = folder / "said.txt", time.monotonic()
    said.touch()
    child = os.fork()
    if child == 0:
        _child(arguments, folder, said, begin)
    code: int | None = None
    while code is None and time.monotonic() - began < LIMIT:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):  # it, and workers that it has left behind
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return code, said.read_text(errors="replace"), time.monotonic() - began


def _child(arguments: list[str], folder: Path, said: Path, begin: Callable[[], None]) -> NoReturn:
    from fedlab_runner import train

    code = 70
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDONLY) if stream == 0 else output, stream)
        sys.argv = ["fedlab", *arguments]
        begin()
        code = train.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 71
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def asked(description: str | None, count: int) -> tuple[Sequence[int], bool]:
    """The numbers of combinations that the command line asks for, and whether it names them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of combinations, of which more is shown")
    how = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.pop(variable, None)  # `threads` says how many
    begin = how.seed * STRIDE
    return how.only or range(begin, begin + how.count), bool(how.only)


def main() -> int:
    """Tries as many as asked for; 1 if one of them ends as none should."""
    numbers, named = asked(__doc__, 300)
    outcomes: Counter[str] = Counter()
    for ended in tried(numbers):
        outcomes[f"exit {ended.code}" if ended.fault is None else "FAULT"] += 1
        if ended.fault or named:
            print(f"{ended.number}: {ended.fault or 'well'}\n  {ended.command}")
            print("".join(f"  | {line}\n" for line in ended.said.splitlines()[-25:]), flush=True)
        if (done := sum(outcomes.values())) % 10 == 0:
            print(f"{done} tried, {outcomes['FAULT']} faults", file=sys.stderr, flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    return 1 if outcomes["FAULT"] else 0


if __name__ == "__main__":
    sys.exit(main())
