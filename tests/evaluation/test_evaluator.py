import pytest
import torch
from torch import nn

from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.evaluator import Evaluation
from tests.helpers.toy import CLASSES, federation


def evaluation(**changes: object) -> Evaluation:
    fields = {
        "every": 10,
        "batch_size": 7,
        "per_class": False,
        "matrix": [],
        "fine_tune_epochs": 1,
        "metric": "test/accuracy",
        "summary": "best",
        "last": 5,
        "held_out": 0,
        "target": None,
    }
    return Evaluation(**(fields | changes))  # type: ignore[arg-type]


def test_accuracy_and_loss_are_those_of_all_examples_whatever_the_batch() -> None:
    fed = federation()
    inputs, targets = fed.client_data.inputs, fed.client_data.targets
    w = fed.family.init(0)
    logits = fed.family.predict(w, inputs)
    test = Examples(inputs, targets, targets, None)
    for batch_size in (1, 7, 1000):
        metrics = evaluation(batch_size=batch_size).evaluate(fed.executor, fed.family, w, test)
        assert metrics["test/accuracy"] == pytest.approx((logits.argmax(1) == targets).double().mean().item())
        assert metrics["test/loss"] == pytest.approx(nn.functional.cross_entropy(logits, targets).item())


def test_class_accuracies_average_to_the_whole() -> None:
    fed = federation()
    inputs, targets = fed.client_data.inputs, fed.client_data.targets
    metrics = evaluation(per_class=True).evaluate(
        fed.executor, fed.family, fed.family.init(0), Examples(inputs, targets, targets, None)
    )
    counts = torch.bincount(targets, minlength=CLASSES).double()
    classes = torch.tensor([metrics[f"test/accuracy_class/{c}"] for c in range(CLASSES)], dtype=torch.float64)
    assert float(classes @ counts / counts.sum()) == pytest.approx(metrics["test/accuracy"])


def test_a_class_without_test_examples_has_no_accuracy() -> None:
    fed = federation()
    targets = torch.zeros(4, dtype=torch.int64)
    metrics = evaluation(per_class=True).evaluate(
        fed.executor, fed.family, fed.family.init(0), Examples(fed.client_data.inputs[:4], targets, targets, None)
    )
    assert "test/accuracy_class/0" in metrics and "test/accuracy_class/1" not in metrics
