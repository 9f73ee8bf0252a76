import numpy as np
import pytest
import torch
from torch import nn

from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.evaluator import Evaluation
from tests.helpers.toy import CLASSES, federation, model_family


def evaluation(**changes: object) -> Evaluation:
    fields = {
        "every": 10,
        "batch_size": 7,
        "per_class": False,
        "clients": False,
        "train": False,
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
    for batch_size in (1, 7, 1000):
        metrics = evaluation(batch_size=batch_size).evaluate(
            fed.family, w, Examples(inputs, targets, targets, None), fed.client_data
        )
        assert metrics["test/accuracy"] == pytest.approx((logits.argmax(1) == targets).double().mean().item())
        assert metrics["test/loss"] == pytest.approx(nn.functional.cross_entropy(logits, targets).item())


def test_class_accuracies_average_to_the_whole() -> None:
    fed = federation()
    inputs, targets = fed.client_data.inputs, fed.client_data.targets
    metrics = evaluation(per_class=True).evaluate(
        fed.family, fed.family.init(0), Examples(inputs, targets, targets, None), fed.client_data
    )
    counts = torch.bincount(targets, minlength=CLASSES).double()
    classes = torch.tensor([metrics[f"test/accuracy_class/{c}"] for c in range(CLASSES)], dtype=torch.float64)
    assert float(classes @ counts / counts.sum()) == pytest.approx(metrics["test/accuracy"])


def test_a_class_without_test_examples_has_no_accuracy() -> None:
    fed = federation()
    targets = torch.zeros(4, dtype=torch.int64)
    metrics = evaluation(per_class=True).evaluate(
        fed.family, fed.family.init(0), Examples(fed.client_data.inputs[:4], targets, targets, None), fed.client_data
    )
    assert "test/accuracy_class/0" in metrics and "test/accuracy_class/1" not in metrics


def test_the_spread_over_clients_is_that_of_each_clients_own_examples() -> None:
    fed = federation([4, 10, 1])
    w = fed.family.init(0)
    right = (fed.family.predict(w, fed.client_data.inputs).argmax(1) == fed.client_data.targets).double()
    each = torch.tensor([right[fed.client_data.members(i)].mean() for i in range(3)], dtype=torch.float64)
    metrics = evaluation(clients=True).evaluate(
        fed.family,
        w,
        Examples(fed.client_data.inputs, fed.client_data.targets, fed.client_data.targets, None),
        fed.client_data,
    )
    assert metrics["clients/accuracy_mean"] == pytest.approx(each.mean().item())
    assert metrics["clients/accuracy_std"] == pytest.approx(each.std(correction=0).item())
    assert metrics["clients/accuracy_min"] == pytest.approx(each.min().item())


def test_training_examples_are_those_of_all_clients_together() -> None:
    fed = federation([4, 10, 1])
    w, client_data = fed.family.init(0), fed.client_data
    mine = np.concatenate([client_data.members(i) for i in range(3)])
    examples = Examples(client_data.inputs[mine], client_data.targets[mine], client_data.targets[mine], None)
    expected = evaluation().evaluate(fed.family, w, examples, client_data)
    for clients in (False, True):
        metrics = evaluation(train=True, clients=clients).evaluate(fed.family, w, examples, client_data)
        assert metrics["train/accuracy"] == pytest.approx(expected["test/accuracy"])
        assert metrics["train/global_loss"] == pytest.approx(expected["test/loss"])
    assert not {"train/accuracy", "train/global_loss"} & set(expected)


def test_metrics_of_several_models_are_averaged() -> None:
    fed = federation()
    test = Examples(fed.client_data.inputs, fed.client_data.targets, fed.client_data.targets, None)
    models = torch.stack([model_family().init(seed) for seed in range(3)])
    each = [evaluation().evaluate(fed.family, w, test, fed.client_data)["test/accuracy"] for w in models]
    assert evaluation().evaluate(fed.family, models, test, fed.client_data)["test/accuracy"] == pytest.approx(
        sum(each) / 3
    )


def test_it_is_due_every_n_rounds_and_at_the_end() -> None:
    assert [r for r in range(26) if evaluation(every=10).due(r, 25)] == [0, 10, 20, 25]


@pytest.mark.parametrize(
    "changes", [{"every": 0}, {"batch_size": 0}, {"last": 0}, {"held_out": -1}, {"summary": "mean"}]
)
def test_a_bad_setting_is_refused_by_name(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(changes))} "):
        evaluation(**changes)
