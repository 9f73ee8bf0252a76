"""flwr-datasets (https://github.com/flwrlabs/flower): its partitioners, by the distribution of what they deal out.

Two-sample tests compare statistics of many independent partitions of the same labels.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf
from scipy.stats import ks_2samp

from fedlab_runner.config.build import conf_dir

SEED = 0  # of both sides
DRAWS = 200  # partitions of each side
EXAMPLES, CLASSES, CLIENTS = 1000, 10, 10
LEAST_P = 1e-3  # below this p-value, times the number of statistics, the two distributions differ


class Row(NamedTuple):
    """A partition of this package and a partitioner."""

    partition: str
    partitioner: str
    keys: dict[str, Any]
    theirs: dict[str, Any]
    shuffled: bool = False  # theirs gets the examples in random order
    cause: str = ""  # why the two part; empty: they agree

    @property
    def setting(self) -> str:
        """What is particular about it."""
        words = [
            self.partitioner,
            *(f"{k} {v}" for k, v in self.keys.items() if k in ("alpha", "labels", "shards_per_client")),
        ]
        return ", ".join(words + ["shuffled examples"] * self.shuffled)


STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "smallest client": lambda n: n.sum(1).min(),
    "largest client": lambda n: n.sum(1).max(),
    "first client": lambda n: n[0].sum(),
    "last client": lambda n: n[-1].sum(),
    "first class of the first client": lambda n: n[0, 0],
    "last class of the last client": lambda n: n[-1, -1],
    "classes of a client": lambda n: (n > 0).sum(1).mean(),
    "share of a client's largest class": lambda n: (n.max(1) / n.sum(1)).mean(),
    "variance of the counts": lambda n: n.var(),
}


def labels() -> np.ndarray:
    """Classes of equal size, in order."""
    return np.arange(EXAMPLES) * CLASSES // EXAMPLES


def counts(parts: list[np.ndarray], targets: np.ndarray) -> np.ndarray:
    """How many examples of each class each client has [N, C]."""
    return np.array([np.bincount(targets[part], minlength=CLASSES) for part in parts])


def ours(row: Row, draw: int) -> np.ndarray:
    """The counts of one partition of this package."""
    node = OmegaConf.merge(OmegaConf.load(conf_dir() / "partition" / f"{row.partition}.yaml"), row.keys)
    partition, targets = instantiate(node), labels()
    return counts(partition.split(targets, None, CLIENTS, np.random.default_rng([SEED, draw])), targets)


def theirs(row: Row, draw: int) -> np.ndarray:
    """The counts of one partition of the library."""
    import datasets
    import flwr_datasets.partitioner

    cls = getattr(flwr_datasets.partitioner, row.partitioner)
    seed = {"seed": draw, "partition_by": "label"} if row.theirs else {}
    partitioner = cls(num_partitions=CLIENTS, **seed, **row.theirs)
    targets = labels()
    if row.shuffled:
        targets = np.random.default_rng([SEED, 1, draw]).permutation(targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it draws again
        partitioner.dataset = datasets.Dataset.from_dict({"label": targets})
        return np.array(
            [np.bincount(partitioner.load_partition(i)["label"], minlength=CLASSES) for i in range(CLIENTS)]
        )


def drawn(row: Row, side: Callable[[Row, int], np.ndarray]) -> list[np.ndarray]:
    """The counts of many partitions; those that the library gives up on are left out, as ours never are."""
    found = []
    for draw in range(DRAWS):
        try:
            found.append(side(row, draw))
        except ValueError as error:
            if "max number of attempts" not in str(error):
                raise
    return found


def measure(row: Row) -> dict[str, Any]:
    """What is recorded of a row: the smallest p-value of a statistic, times their number."""
    mine, other = drawn(row, ours), drawn(row, theirs)
    values = {name: ([f(n) for n in mine], [f(n) for n in other]) for name, f in STATISTICS.items()}
    p = {
        name: 1.0 if len({*a, *b}) == 1 else float(ks_2samp(a, b, method="asymp").pvalue)
        for name, (a, b) in values.items()
    }
    name = min(p, key=lambda name: p[name])
    found = {
        "partition": row.partition,
        "setting": row.setting,
        "draws": [len(mine), len(other)],
        "p": min(1.0, len(p) * p[name]),
        "statistic": name,
    }
    return found | ({"cause": row.cause} if found["p"] < LEAST_P else {})


def dirichlet(alpha: float) -> Row:
    keys = {"alpha": alpha, "min_size": 10, "max_tries": 1000}
    return Row(
        "dirichlet", "DirichletPartitioner", keys, {"alpha": alpha, "min_partition_size": 10, "self_balancing": True}
    )


def unbounded(alpha: float) -> Row:
    theirs = {"alpha": alpha, "min_partition_size": 0, "self_balancing": False}
    return Row("dirichlet_unbounded", "DirichletPartitioner", {"alpha": alpha}, theirs)


def labels_per_client(labels: int) -> Row:
    theirs = {"num_classes_per_partition": labels, "class_assignment_mode": "first-deterministic"}
    return Row("labels_per_client", "PathologicalPartitioner", {"labels": labels}, theirs)


ROWS = [
    dirichlet(0.5),
    dirichlet(5.0),
    unbounded(5.0),
    unbounded(0.1)._replace(
        cause="this package rounds each client's share of a class, as FedLAW's authors do; theirs cuts at the "
        "cumulated shares, so that a small share has an example more often (partitioner/dirichlet_partitioner.py:265)"
    ),
    Row("shards", "ShardPartitioner", {"shards_per_client": 2}, {"num_shards_per_partition": 2}),
    *(labels_per_client(labels) for labels in (1, 2, 3)),
    Row("iid", "IidPartitioner", {}, {}, shuffled=True),
    Row(
        "iid",
        "IidPartitioner",
        {},
        {},
        cause="theirs cuts the examples in their order, here by class (partitioner/iid_partitioner.py:60)",
    ),
]
