"""Evaluation of all clients' models on the test set, for algorithms without a server model."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from fedlab_runner.core.aligned import copied_rows
from fedlab_runner.core.client_state import RowRef, RowStore
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.own_models import NamedModels, OwnModels
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.evaluator import Evaluation, per_class
from fedlab_runner.evaluation.scores import at_once, on_examples

Scores = dict[str, float]
Model = tuple[ModelFamily, bytes]  # with the digest of the model's vector, so that equal models are evaluated once


class Seen(NamedTuple):
    """The model that a client had at the last evaluation."""

    is_it: Callable[[RowRef], bool]
    digest: bytes


class ClientModels:
    """Evaluates the models of all clients. It does not read a model that has not changed since the last evaluation, and
    keeps its scores.
    """

    def __init__(self, evaluation: Evaluation, fed: Federation, test: Examples) -> None:
        self._evaluation, self._fed, self._test = evaluation, fed, test
        self._known: dict[Model, Scores] = {}  # scores of the last evaluation
        self._seen: dict[tuple[str, int], Seen] = {}  # by the name under which models are evaluated, and client

    def evaluate(self, models: OwnModels, more: NamedModels) -> Scores:
        """The mean metrics over the clients that may train.

        `more` models, by name, add their mean accuracy and loss as `<name>/accuracy` and `<name>/loss`.
        """
        known, self._known = self._known, {}
        scores = self._on_test("", self._fed.families, models, known)
        metrics = {f"test/{key}": self._mean(scores, key) for key in scores[0]}
        if (count := len(self._fed.families)) > 1:
            for a in range(count):
                metrics[f"test/accuracy_model/{a}"] = self._mean(scores, "accuracy", a)
        for name, (families, others) in more.items():
            scores = self._on_test(name, families, others, known)
            metrics |= {f"{name}/{key}": self._mean(scores, key) for key in ("accuracy", "loss")}
        return metrics

    def by_client(self, models: OwnModels) -> list[Scores]:
        """The scores of each client's model on the test set, if the last evaluation has them."""
        return self._on_test("", self._fed.families, models, self._known)

    def _mean(self, scores: Sequence[Scores], key: str, architecture: int | None = None) -> float:
        """The mean over the clients that may train, of all architectures or of one; NaN without such clients."""
        count = len(self._fed.families)
        clients = [client for client in self._fed.participants.tolist() if architecture in (None, client % count)]
        values = [scores[client][key] for client in clients]
        return sum(values) / len(values) if values else float("nan")

    def _on_test(
        self, name: str, families: Sequence[ModelFamily], models: OwnModels, known: Mapping[Model, Scores]
    ) -> list[Scores]:
        """The scores of each model on the test set, in the order of the clients."""
        stores = [self._fed.row_store("device", family.size) for family in families]
        wanted = [self._model(name, client, ref, families, stores) for client, ref in models.items()]
        refs = dict(zip(wanted, models.values(), strict=True))
        self._known |= {model: known[model] for model in refs if model in known}
        for family, store in zip(families, stores, strict=True):
            new = [model for model in refs if model[0] is family and model not in self._known]
            for some in at_once(new, family.size):
                rows = copied_rows(len(some), (store.get(refs[model]) for model in some))
                self._known |= zip(some, self._score(family, rows), strict=True)
        return [self._known[model] for model in wanted]

    def _model(
        self, name: str, client: int, ref: RowRef, families: Sequence[ModelFamily], stores: Sequence[RowStore]
    ) -> Model:
        """The model of a client."""
        architecture = client % len(families)
        seen = self._seen.get((name, client))
        if seen is None or not seen.is_it(ref):
            store = stores[architecture]
            before = self._seen.get((name, client - len(families)))  # clients may share a row
            digest = before.digest if before is not None and before.is_it(ref) else _digest(store.get(ref))
            seen = self._seen[name, client] = Seen(store.identity(ref), digest)
        return families[architecture], seen.digest

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


def _digest(model: Tensor) -> bytes:
    return hashlib.sha256(model.cpu().contiguous().numpy().data).digest()
