"""Evaluation of a federation where each client has a model: on the test set and on the client's own examples."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.algorithm import Stacks
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.evaluator import Evaluation, over_clients, per_class


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
        self._known: dict[tuple[object, ...], Scores] = {}  # scores of the last evaluation, by examples and model

    def evaluate(self, models: Stacks, more: Mapping[str, tuple[Sequence[ModelFamily], Stacks]]) -> Scores:
        """The mean metrics over the clients; of `more` models, under their names, accuracy and loss only."""
        known, self._known = self._known, {}
        metrics = self._evaluate(self._by_client(self._fed.families, models), known)
        for name, (families, stacks) in more.items():
            scores = self._on_test(self._by_client(families, stacks), known)
            metrics |= {f"{name}/{key}": _mean([s[key] for s in scores]) for key in ("accuracy", "loss")}
        return metrics

    def _evaluate(self, models: list[ClientModel], known: dict[tuple[object, ...], Scores]) -> Scores:
        fed, evaluation = self._fed, self._evaluation
        scores = self._on_test(models, known)
        metrics = {f"test/{key}": _mean([s[key] for s in scores]) for key in scores[0]}
        if len(fed.families) > 1:
            for a in range(len(fed.families)):
                metrics[f"test/accuracy_model/{a}"] = _mean([s["accuracy"] for s in scores[a :: len(fed.families)]])
        if fed.validation is not None:
            own = self._on_their_own(models, fed.validation, known)
            metrics["validation/accuracy"] = _mean(own) if own else float("nan")
        if evaluation.clients:
            own = self._on_their_own(models, fed.client_data, known)
            metrics |= over_clients(torch.tensor(own, dtype=torch.float64))
        return metrics

    def _by_client(self, families: Sequence[ModelFamily], stacks: Stacks) -> list[ClientModel]:
        """The models in the order of the clients."""
        count = len(families)
        rows = [(families[i % count], stacks[i % count][i // count]) for i in range(self._fed.num_clients)]
        return [
            ClientModel(family, w, hashlib.sha256(w.cpu().contiguous().numpy().data).digest()) for family, w in rows
        ]

    def _on_test(self, models: list[ClientModel], known: dict[tuple[object, ...], Scores]) -> list[Scores]:
        """The scores of each model on the test set."""
        test = self._test
        for family in dict.fromkeys(m.family for m in models):
            wanted = {("test", family, m.digest): m.vector for m in models if m.family is family}
            self._known |= {key: known[key] for key in wanted if key in known}
            new = {key: w for key, w in wanted.items() if key not in self._known}
            if new:
                scores = self._score(family, torch.stack(list(new.values())), test.inputs, test.targets)
                self._known |= zip(new, scores, strict=True)
        return [self._known["test", m.family, m.digest] for m in models]

    def _on_their_own(
        self, models: list[ClientModel], client_data: ClientData, known: dict[tuple[object, ...], Scores]
    ) -> list[float]:
        """The accuracy of each client's model on the client's own examples, for clients that have examples."""
        accuracies = []
        for client in np.flatnonzero(client_data.num_examples).tolist():
            model, kind = models[client], "own" if client_data is self._fed.client_data else "validation"
            key = (kind, client, model.digest)
            if key not in known:
                rows = torch.from_numpy(client_data.members(client)).to(client_data.targets.device)
                inputs, targets = client_data.examples(rows)
                known[key] = self._score(model.family, model.vector.unsqueeze(0), inputs, targets)[0]
            self._known[key] = known[key]
            accuracies.append(known[key]["accuracy"])
        return accuracies

    @torch.no_grad()
    def _score(self, family: ModelFamily, models: Tensor, inputs: Tensor, targets: Tensor) -> list[Scores]:
        """The scores of models [m, D]; to the bit, each depends on its own model alone."""
        size, p = self._evaluation.batch_size, family.num_params
        right, total = [], torch.zeros(len(models), dtype=torch.float64, device=family.device)
        for begin in range(0, len(targets), size):
            batch, labels = family.normalize(inputs[begin : begin + size], family.dtype), targets[begin : begin + size]

            def one(params: Tensor, buffers: Tensor, batch: Tensor = batch) -> tuple[Tensor]:
                return (family.evaluate(params, buffers, batch),)

            (logits,) = self._fed.executor.map_models(family, one, models[:, :p], models[:, p:], fill=True)  # [m, b, C]
            right.append(logits.argmax(-1) == labels)
            total += losses(logits, labels.expand(len(models), -1), None).double().sum(-1)
        correct = torch.cat(right, 1).double()
        scores = []
        for row, loss in zip(correct, total, strict=True):
            classes = per_class(row, targets, family.num_classes) if self._evaluation.per_class else {}
            found = {"accuracy": float(row.mean()), "loss": float(loss / len(targets))}
            scores.append(found | {key.removeprefix("test/"): value for key, value in classes.items()})
        return scores


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
