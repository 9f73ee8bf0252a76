"""How good the models of all clients are, where each client has its own: on the test set and on its own examples."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.algorithm import Stacks
from fedlab_runner.core.client_data import Population
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import Task
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.evaluator import Evaluation, over_clients, per_class


class Model(NamedTuple):
    """One client's model."""

    task: Task
    vector: Tensor  # [D_a]
    digest: bytes  # of the vector: equal models are evaluated once


Scores = dict[str, float]


class ClientModels:
    """Evaluates the models of all clients; one that has not changed since the last evaluation keeps what it scored."""

    def __init__(self, evaluation: Evaluation, fed: Federation, test: Examples) -> None:
        self._evaluation, self._fed, self._test = evaluation, fed, test
        self._known: dict[tuple[object, ...], Scores] = {}  # of the last evaluation, by examples and model

    def evaluate(self, models: Stacks, more: Mapping[str, tuple[Sequence[Task], Stacks]]) -> Scores:
        """Means over the clients; of `more` models only accuracy and loss, under their names."""
        known, self._known = self._known, {}
        metrics = self._evaluate(self._by_client(self._fed.tasks, models), known)
        for name, (tasks, stacks) in more.items():
            scores = self._on_test(self._by_client(tasks, stacks), known)
            metrics |= {f"{name}/{key}": _mean([s[key] for s in scores]) for key in ("accuracy", "loss")}
        return metrics

    def _evaluate(self, models: list[Model], known: dict[tuple[object, ...], Scores]) -> Scores:
        fed, evaluation = self._fed, self._evaluation
        scores = self._on_test(models, known)
        metrics = {f"test/{key}": _mean([s[key] for s in scores]) for key in scores[0]}
        if len(fed.tasks) > 1:
            for a in range(len(fed.tasks)):
                metrics[f"test/accuracy_model/{a}"] = _mean([s["accuracy"] for s in scores[a :: len(fed.tasks)]])
        if fed.validation is not None:
            own = self._on_their_own(models, fed.validation, known)
            metrics["validation/accuracy"] = _mean(own) if own else float("nan")
        if evaluation.clients:
            own = self._on_their_own(models, fed.population, known)
            metrics |= over_clients(torch.tensor(own, dtype=torch.float64))
        return metrics

    def _by_client(self, tasks: Sequence[Task], stacks: Stacks) -> list[Model]:
        """The models in the order of the clients."""
        count = len(tasks)
        rows = [(tasks[i % count], stacks[i % count][i // count]) for i in range(self._fed.num_clients)]
        return [Model(task, w, hashlib.sha256(w.cpu().contiguous().numpy().data).digest()) for task, w in rows]

    def _on_test(self, models: list[Model], known: dict[tuple[object, ...], Scores]) -> list[Scores]:
        """What each model scores on the test set."""
        test = self._test
        for task in dict.fromkeys(m.task for m in models):
            wanted = {("test", task, m.digest): m.vector for m in models if m.task is task}
            self._known |= {key: known[key] for key in wanted if key in known}
            new = {key: w for key, w in wanted.items() if key not in self._known}
            if new:
                scores = self._score(task, torch.stack(list(new.values())), test.inputs, test.targets)
                self._known |= zip(new, scores, strict=True)
        return [self._known["test", m.task, m.digest] for m in models]

    def _on_their_own(
        self, models: list[Model], population: Population, known: dict[tuple[object, ...], Scores]
    ) -> list[float]:
        """The accuracy of each client's model on the client's examples, of clients that have any."""
        accuracies = []
        for client in np.flatnonzero(population.num_examples).tolist():
            model, kind = models[client], "own" if population is self._fed.population else "validation"
            key = (kind, client, model.digest)
            if key not in known:
                rows = torch.from_numpy(population.members(client)).to(population.targets.device)
                inputs, targets = population.examples(rows)
                known[key] = self._score(model.task, model.vector.unsqueeze(0), inputs, targets)[0]
            self._known[key] = known[key]
            accuracies.append(known[key]["accuracy"])
        return accuracies

    @torch.no_grad()
    def _score(self, task: Task, models: Tensor, inputs: Tensor, targets: Tensor) -> list[Scores]:
        """What each of the models [m, D] scores; a function of that model alone, whatever the others are."""
        size, p = self._evaluation.batch_size, task.num_params
        right, total = [], torch.zeros(len(models), dtype=torch.float64, device=task.device)
        for begin in range(0, len(targets), size):
            batch, labels = task.normalize(inputs[begin : begin + size], task.dtype), targets[begin : begin + size]

            def one(params: Tensor, buffers: Tensor, batch: Tensor = batch) -> tuple[Tensor]:
                return (task.evaluate(params, buffers, batch),)

            (logits,) = self._fed.executor.each(task, one, models[:, :p], models[:, p:], fill=True)  # [m, b, C]
            right.append(logits.argmax(-1) == labels)
            total += losses(logits, labels.expand(len(models), -1), None).double().sum(-1)
        correct = torch.cat(right, 1).double()
        scores = []
        for row, loss in zip(correct, total, strict=True):
            classes = per_class(row, targets, task.num_classes) if self._evaluation.per_class else {}
            found = {"accuracy": float(row.mean()), "loss": float(loss / len(targets))}
            scores.append(found | {key.removeprefix("test/"): value for key, value in classes.items()})
        return scores


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
