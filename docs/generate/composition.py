"""What each algorithm composes with, as the algorithms themselves say it: a part of docs/reference/algorithm.md."""

from pathlib import Path
from typing import Any, NamedTuple

from hydra.utils import instantiate
from omegaconf import OmegaConf

from docs.generate import markdown
from fedlab_runner.config.build import conf_dir
from fedlab_runner.core.algorithm import Algorithm

LEAD = (
    "An aggregator, a server optimiser, several architectures, feature blocks or a home do the same with every "
    "algorithm that has a place for them. The run refuses the others before it starts, in one line with the "
    "reason. Where there is no server nobody is late, and the run says that it does not use `delay`. All that an "
    "algorithm accepts works together, and resumes to the same bits "
    "([test](../../tests/algorithms/test_choices.py)). The architectures of `dpsgd`, `federated_dropout`, "
    "`fedrolex` and `heterofl` may differ in width alone. Every algorithm takes every data set, partition, client "
    "split, executor and evaluation, unless its section says otherwise."
)
HEADER = [
    "algorithm",
    "late clients",
    "aggregator",
    "`sum_every`",
    "server optimiser",
    "several architectures",
    "feature blocks",
    "home",
]


class Cost(NamedTuple):
    """What a personal method costs a client, in values: of a model of D, with h at home and L in FedALA's layers."""

    sent: str  # each way in a round
    kept: str  # from round to round
    training: str  # in local trainings of a model


PERSONAL = {
    "apfl": Cost("D - h", "D + 1 + h", "2; `adaptive`: and a minibatch"),
    "ditto": Cost("D - h", "D + h", "2"),
    "fedala": Cost("D - h", "D + L + 1 + h", "1 + `share` / `local.epochs`, the first time up to `max_epochs` as much"),
    "fedbabu": Cost("D - h", "h", "1, without the head's gradients; to test: `evaluation.fine_tune_epochs`"),
    "fedrep": Cost("D - h", "h", "1 + `head_epochs` / (3 `local.epochs`)"),
    "perfedavg": Cost("D - h", "h", "2; `hessian_free`: 4; to test: a pass over its examples"),
    "pfedme": Cost("D - h", "D + h", "`inner_steps`"),
}
COSTS_LEAD = (
    "A client receives and sends a model of D values without the h values that `home` keeps (0 with `home=none`), and "
    "keeps its own from round to round: in its row on the device, the host or disk (`store_on`), and in checkpoints. "
    "Of FedALA's row L values are the weights of the last `layers` layers. Memory is in models: for each client of a "
    "cohort, and for each late update. FedPer, LG-FedAvg and FedBN cost what `fedavg` does, send D - h and keep h."
)
LATE = (
    "*Late clients.* A late client trains from the server's model and its own as they were when it started, and is "
    "busy until its update arrives. Then what it keeps is new, also where the server discards the update; what it had "
    "before is tested until then. A client whose update is not finite keeps what it had before."
)
COSTS_HEADER = [
    "algorithm",
    "values sent, each way",
    "values kept",
    "local trainings",
    "models, cohort",
    "models, late",
]


def composition() -> list[str]:
    """The paragraphs of the part: headings, leads and tables."""
    paths = sorted((conf_dir() / "algorithm").glob("*.yaml"))
    costs = markdown.table(COSTS_HEADER, [_costs(name, cost) for name, cost in PERSONAL.items()])
    what = ["## What composes with what", LEAD, markdown.table(HEADER, list(map(_row, paths)))]
    return [*what, "## What personal models cost", COSTS_LEAD, costs, LATE]


def _costs(name: str, cost: Cost) -> list[str]:
    method = built(conf_dir() / "algorithm" / f"{name}.yaml")
    copies = max(method.model_copies, method.training_copies or 0)
    return [f"[`{name}`](#{name})", *cost, str(copies), str(method.payload_copies)]


def _row(path: Path) -> list[str]:
    method = built(path)
    answers = (
        not method.decentralized,
        method.takes_aggregator(),
        not method.decentralized and method.takes_sums(),
        method.makes_server_steps,
        method.heterogeneous,
        method.holds_blocks,
    )
    fault = method.home_fault()
    home = "yes" if fault is None else f"no: an algorithm {fault}"
    return [f"[`{path.stem}`](#{path.stem})", *("yes" if answer else "no" for answer in answers), home]


def built(path: Path) -> Algorithm[Any]:
    """The algorithm of a config file with its defaults; a wrapper's base is its default one."""
    node: Any = OmegaConf.load(path)
    for entry in node.pop("defaults", []):
        for where, name in entry.items() if OmegaConf.is_dict(entry) else ():
            if str(where).startswith("/algorithm@"):
                node[str(where).partition("@")[2]] = OmegaConf.load(path.with_name(f"{name}.yaml"))
    made: Algorithm[Any] = instantiate(node, _convert_="all")
    return made
