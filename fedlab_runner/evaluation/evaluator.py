"""When and what a run evaluates, and the metrics of the server's model on the test set."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlab_runner.core.executor import Executor
from fedlab_runner.core.losses import losses
from fedlab_runner.core.metric_names import DATA, MODELS, cell_of, not_a_share
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.scoring import SameExamples, correctly, least_alone, scored
from fedlab_runner.tracking.summary import RULES
from fedlab_runner.utils.validate import at_least, one_of

CLASS_PREFIX = "test/accuracy_class/"  # a metric key begins so; the class index follows


@dataclass(frozen=True)
class Evaluation:
    """When and what to evaluate, and the objective of a run.

    The run evaluates models every `every` rounds and after the last round, in batches of `batch_size`. `per_class` adds
    the test accuracy of each class. `matrix` adds cells of the evaluation matrix, each `<model>/<data>`:

    - model: `server`, the server's; `client`, the client's own; `tuned`, the server's after `fine_tune_epochs` on the
      client's training examples;
    - data: `global`, the test set; `own`, `validation` and `train`, the own test, validation and training examples of
      each client that may train; `unseen`, the own test examples of held-out clients.

    The objective is `metric`, which may be of any cell, under the rule `summary` (best_of_last and mean_of_last over
    the `last` evaluations, best, last). The run leaves out of the test set the `held_out` examples that in-domain
    server data of this size would take, so that all methods have the same test set. With a `target`, the summary has
    the first evaluated round in which the metric reaches it.
    """

    every: int
    batch_size: int
    per_class: bool
    matrix: list[str]
    fine_tune_epochs: int
    metric: str
    summary: str
    last: int
    held_out: int
    target: float | None

    def __post_init__(self) -> None:
        at_least(1, every=self.every, batch_size=self.batch_size, last=self.last)
        at_least(1, fine_tune_epochs=self.fine_tune_epochs)
        at_least(0, held_out=self.held_out)
        one_of(RULES, summary=self.summary)
        if not_a_share(self.metric, self.target):
            raise ValueError(f"target must be <= 1 for metric={self.metric}, a share, got {self.target:g}: 0.8 is 80 %")
        for cell in self.matrix:
            if cell_of(cell) != cell:
                raise ValueError(
                    f"matrix must be a list of <model>/<data> with a model of {', '.join(MODELS)} and data of "
                    f"{', '.join(DATA)}, got {cell}"
                )

    @property
    def cells(self) -> list[str]:
        """The cells of the matrix that the run evaluates: those in `matrix`, and the cell of the metric."""
        asked = [*self.matrix, cell_of(self.metric)]
        return list(dict.fromkeys(cell for cell in asked if cell is not None))

    def due(self, round: int, rounds: int) -> bool:
        """Whether the models are evaluated after this round (0: before the first)."""
        return round % self.every == 0 or round == rounds

    def evaluate(self, executor: Executor, family: ModelFamily, w: Tensor, test: Examples) -> dict[str, float]:
        """The metrics of one model [D] on the test set."""
        if min(len(test.targets), self.batch_size) >= least_alone(family, test.inputs):
            same, sizes = SameExamples(test.inputs, test.targets), [len(test.targets)]
            (right,), (mean,) = scored(executor, family, w.unsqueeze(0), same, sizes, self.batch_size)
            correct = right.double()
        else:
            correct, mean = self._predicted(family, w, test)
        metrics = {"test/accuracy": float(correct.mean()), "test/loss": mean}
        return metrics | (per_class(correct, test.targets, family.num_classes) if self.per_class else {})

    def _predicted(self, family: ModelFamily, w: Tensor, test: Examples) -> tuple[Tensor, float]:
        """Which examples a model [D] has right [n] float64, and its mean cross entropy, minibatch after minibatch."""
        with family.predicting(w) as predict:
            logits = torch.cat([predict(some) for some in torch.split(test.inputs, self.batch_size)])
        loss = losses(logits, test.targets, None).double()
        return correctly(logits, test.targets).double(), float(loss.mean())


def per_class(correct: Tensor, targets: Tensor, num_classes: int) -> dict[str, float]:
    """The accuracy on each class that the test set holds."""
    counts = torch.bincount(targets, minlength=num_classes)
    right = torch.bincount(targets, correct, minlength=num_classes)
    return {f"{CLASS_PREFIX}{c}": float(right[c] / counts[c]) for c in range(num_classes) if counts[c]}
