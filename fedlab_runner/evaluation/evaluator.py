"""Accuracy and loss of models: on the test set, by class, and over clients."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.tracking.summary import RULES
from fedlab_runner.utils.validate import at_least, one_of

CLASS_PREFIX = "test/accuracy_class/"  # followed by the class index: a metric key


@dataclass(frozen=True)
class Evaluation:
    """When and what to evaluate, and the number by which a run is judged.

    Models are evaluated after `every` n rounds and after the last one, in batches of `batch_size`. `per_class` adds the
    test accuracy of each class, `clients` the spread of the accuracy over the clients' own training examples, `train`
    accuracy and loss on all training examples. The objective is `metric` under the rule `summary` (best_of_last and
    mean_of_last over the `last` evaluations, best, last). `held_out` test examples are left out: those that in-domain
    server data of this size would take, so that all methods share a test set. With a `target`, the summary has the
    first evaluated round in which the metric reaches it.
    """

    every: int
    batch_size: int
    per_class: bool
    clients: bool
    train: bool
    metric: str
    summary: str
    last: int
    held_out: int
    target: float | None

    def __post_init__(self) -> None:
        at_least(1, every=self.every, batch_size=self.batch_size, last=self.last)
        at_least(0, held_out=self.held_out)
        one_of(RULES, summary=self.summary)

    def due(self, round: int, rounds: int) -> bool:
        """Whether the models are evaluated after this round (0: before the first)."""
        return round % self.every == 0 or round == rounds

    def evaluate(
        self, family: ModelFamily, models: Tensor, test: Examples, client_data: ClientData
    ) -> dict[str, float]:
        """The metrics of one model [D], or their means over several models [n, D]."""
        every = [self._evaluate_one(family, w, test, client_data) for w in models.view(-1, family.size)]
        metrics = {key: sum(m[key] for m in every) / len(every) for key in every[0]}
        return metrics | (_over_models([m["test/accuracy"] for m in every]) if models.dim() > 1 else {})

    def evaluate_clients(self, family: ModelFamily, models: Iterable[Tensor], test: Examples) -> dict[str, float]:
        """The spread of the test accuracy over the clients' own models; empty without models."""
        accuracies = [float(self._score(family, w, test.inputs, test.targets)[0].mean()) for w in models]
        return _over_models(accuracies) if accuracies else {}

    def _evaluate_one(
        self, family: ModelFamily, w: Tensor, test: Examples, client_data: ClientData
    ) -> dict[str, float]:
        correct, losses = self._score(family, w, test.inputs, test.targets)
        metrics = {"test/accuracy": float(correct.mean()), "test/loss": float(losses.mean())}
        if self.per_class:
            metrics |= per_class(correct, test.targets, family.num_classes)
        if self.clients or self.train:
            correct, losses = self._score(family, w, client_data.inputs, client_data.targets)
            members, owners = (torch.from_numpy(a).to(family.device) for a in client_data.assignment)
            if self.clients:
                metrics |= over_clients(_by_client(correct[members], owners, client_data))
            if self.train:
                metrics |= {
                    "train/accuracy": float(correct[members].mean()),
                    "train/global_loss": float(losses[members].mean()),
                }
        return metrics

    def _score(self, family: ModelFamily, w: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each example is classified correctly (0 or 1), and its cross entropy: [n] float64 each."""
        correct = torch.empty(len(targets), dtype=torch.float64, device=family.device)
        losses = torch.empty_like(correct)
        for begin in range(0, len(targets), self.batch_size):
            part = slice(begin, begin + self.batch_size)
            logits = family.predict(w, inputs[part])
            correct[part] = (logits.argmax(-1) == targets[part]).double()
            losses[part] = F.cross_entropy(logits, targets[part], reduction="none").double()
        return correct, losses


def _by_client(correct: Tensor, owners: Tensor, client_data: ClientData) -> Tensor:
    """The accuracy of each client with examples, from correctness [n] and owner [n] of each example."""
    sizes = torch.from_numpy(client_data.num_examples).to(correct.device)
    right = torch.zeros(len(sizes), dtype=torch.float64, device=correct.device).index_add_(0, owners, correct)
    return (right / sizes)[sizes > 0]


def over_clients(accuracy: Tensor) -> dict[str, float]:
    """The spread of an accuracy over clients [n]."""
    return {
        "clients/accuracy_mean": float(accuracy.mean()),
        "clients/accuracy_std": float(accuracy.std(correction=0)),
        "clients/accuracy_min": float(accuracy.min()),
        "clients/accuracy_worst_decile": float(accuracy.quantile(0.1)),
    }


def _over_models(accuracies: list[float]) -> dict[str, float]:
    """Mean, standard deviation and minimum of the test accuracies of clients' own models."""
    values = torch.tensor(accuracies, dtype=torch.float64)
    return {
        "client_models/accuracy_mean": float(values.mean()),
        "client_models/accuracy_std": float(values.std(correction=0)),
        "client_models/accuracy_min": float(values.min()),
    }


def per_class(correct: Tensor, targets: Tensor, num_classes: int) -> dict[str, float]:
    """The accuracy on each class that the test set holds."""
    counts = torch.bincount(targets, minlength=num_classes)
    right = torch.bincount(targets, correct, minlength=num_classes)
    return {f"{CLASS_PREFIX}{c}": float(right[c] / counts[c]) for c in range(num_classes) if counts[c]}
