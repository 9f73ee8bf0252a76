"""torchmetrics (https://github.com/Lightning-AI/torchmetrics): the metrics of this package's evaluation."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.evaluator import CLASS_PREFIX, Evaluation
from tests.helpers.toy import CLASSES, federation

SEED = 0  # of the models and examples
MODELS, EXAMPLES = 20, 500
TOLERANCE = 1e-6  # of a metric: theirs are float32


class Row(NamedTuple):
    """A metric of this package and a metric of theirs, with its arguments."""

    metric: str
    theirs: str
    fields: dict[str, Any]
    cause: str = ""  # why the two part; empty: they agree

    @property
    def setting(self) -> str:
        """Which metric of theirs."""
        return f"{self.theirs}, average {self.fields['average']}"


ROWS = [
    Row("test/accuracy", "MulticlassAccuracy", {"average": "micro"}),
    Row("test/accuracy_class", "MulticlassAccuracy", {"average": "none"}),
    Row("test/accuracy_class", "MulticlassRecall", {"average": "none"}),
]


def evaluated(fed: Any, model: Tensor, test: Examples) -> dict[str, float]:
    """All metrics of the model on the test examples, in batches that do not divide them."""
    evaluation = Evaluation(1, 64, True, [], 1, "test/accuracy", "best", 1, 0, None)
    return evaluation.evaluate(fed.executor, fed.family, model, test)


def measure(row: Row) -> dict[str, Any]:
    """What is recorded of a row: the largest difference over models of which most are wrong about some class."""
    import torchmetrics.classification

    fed = federation()
    metric = getattr(torchmetrics.classification, row.theirs)(num_classes=CLASSES, **row.fields)
    apart = 0.0
    for seed in range(MODELS):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(EXAMPLES, 5, generator=generator, dtype=torch.float64)
        targets = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
        model = fed.family.init(SEED + seed)
        mine = evaluated(fed, model, Examples(inputs, targets, targets, None))
        other = metric(fed.family.predict(model, inputs), targets).double().reshape(-1)
        own = [mine[row.metric]] if row.metric in mine else [mine[f"{CLASS_PREFIX}{c}"] for c in range(CLASSES)]
        apart = max(apart, float((torch.tensor(own, dtype=torch.float64) - other).abs().max()))
    found = {"metric": row.metric, "setting": row.setting, "difference": apart, "tolerance": TOLERANCE}
    return found | ({"cause": row.cause} if apart > TOLERANCE else {})
