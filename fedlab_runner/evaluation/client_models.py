"""Evaluation of all clients' models on the test set, where there is no server's model."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedlab_runner.core.algorithm import Stacks
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.evaluator import Evaluation, per_class
from fedlab_runner.evaluation.scores import on_examples


class ClientModel(NamedTuple):
    """The model of one client."""

    family: ModelFamily
    vector: Tensor  # [D_a]
    digest: bytes  # of the vector: equal models are evaluated once


Scores = dict[str, float]


class ClientModels:
    """Evaluates the models of all clients; a model unchanged since the last evaluation keeps its scores."""

    def __init__(self, evaluation: Evaluation, fed: Federation, test: Examples) -> None:
        self._evaluation, self._fed, self._test = evaluation, fed, test
        self._known: dict[tuple[ModelFamily, bytes], Scores] = {}  # scores of the last evaluation, by model

    def evaluate(self, models: Stacks, more: Mapping[str, tuple[Sequence[ModelFamily], Stacks]]) -> Scores:
        """The mean metrics over the clients that are not held out.

        `more` models, by name, add their mean accuracy and loss as `<name>/accuracy` and `<name>/loss`.
        """
        known, self._known = self._known, {}
        scores = self._on_test(self._by_client(self._fed.families, models), known)
        metrics = {f"test/{key}": self._mean(scores, key) for key in scores[0]}
        if (count := len(self._fed.families)) > 1:
            for a in range(count):
                metrics[f"test/accuracy_model/{a}"] = self._mean(scores, "accuracy", a)
        for name, (families, stacks) in more.items():
            scores = self._on_test(self._by_client(families, stacks), known)
            metrics |= {f"{name}/{key}": self._mean(scores, key) for key in ("accuracy", "loss")}
        return metrics

    def by_client(self, models: Stacks) -> list[Scores]:
        """The scores of each client's model on the test set, where known from the last evaluation."""
        return self._on_test(self._by_client(self._fed.families, models), self._known)

    def _mean(self, scores: Sequence[Scores], key: str, architecture: int | None = None) -> float:
        """The mean over the clients that are not held out, of all architectures or of one; NaN over none."""
        out, count = set(self._fed.held_out.tolist()), len(self._fed.families)
        values = [
            score[key]
            for client, score in enumerate(scores)
            if client not in out and architecture in (None, client % count)
        ]
        return sum(values) / len(values) if values else float("nan")

    def _by_client(self, families: Sequence[ModelFamily], stacks: Stacks) -> list[ClientModel]:
        """The models in the order of the clients."""
        count = len(families)
        rows = [(families[i % count], stacks[i % count][i // count]) for i in range(self._fed.num_clients)]
        return [
            ClientModel(family, w, hashlib.sha256(w.cpu().contiguous().numpy().data).digest()) for family, w in rows
        ]

    def _on_test(self, models: list[ClientModel], known: dict[tuple[ModelFamily, bytes], Scores]) -> list[Scores]:
        """The scores of each model on the test set."""
        for family in dict.fromkeys(m.family for m in models):
            wanted = {(family, m.digest): m.vector for m in models if m.family is family}
            self._known |= {key: known[key] for key in wanted if key in known}
            new = {key: w for key, w in wanted.items() if key not in self._known}
            if new:
                self._known |= zip(new, self._score(family, torch.stack(list(new.values()))), strict=True)
        return [self._known[m.family, m.digest] for m in models]

    def _score(self, family: ModelFamily, models: Tensor) -> list[Scores]:
        """The scores of models [m, D] on the test set."""
        test, evaluation = self._test, self._evaluation
        correct, losses = on_examples(
            self._fed.executor, family, models, test.inputs, test.targets, evaluation.batch_size
        )
        scores = []
        for row, loss in zip(correct.double(), losses.tolist(), strict=True):
            classes = per_class(row, test.targets, family.num_classes) if evaluation.per_class else {}
            found = {"accuracy": float(row.mean()), "loss": loss}
            scores.append(found | {key.removeprefix("test/"): value for key, value in classes.items()})
        return scores
