"""The evaluation matrix: which model, tested on which examples, and the spread of its accuracy over the clients.

Cells and metric keys are those of `core.metric_names`; docs/metrics.md explains them.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.feature_blocks import reading
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.client_data import ClientData, Streams
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.metric_names import cell_of
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.own_models import OwnModels, models_of
from fedlab_runner.core.rng import Purpose
from fedlab_runner.core.work import Work
from fedlab_runner.datasets.examples import Examples
from fedlab_runner.evaluation.client_models import ClientModels
from fedlab_runner.evaluation.evaluator import Evaluation
from fedlab_runner.evaluation.scores import OnClients, at_once, of_each, of_one, on_examples
from fedlab_runner.partitions.blocks import by_blocks
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.errors import UserError

_log = logging.getLogger(__name__)
TUNING_STREAMS = Streams(Purpose.FINE_TUNE, Purpose.FINE_TUNE_DROPOUT)  # the random numbers of fine-tuning
WORST = 0.1  # the share of the clients, or of the examples, over which `worst_decile` is a mean
# What a run without test examples of each client lacks, in messages.
OWN_TEST = "test examples of each client: set client_split.test, or choose client_split=natural or redealt"
MAX_SHOWN = 5  # clients that a message names


class CellScores(NamedTuple):
    """One cell of the matrix, client by client."""

    ids: np.ndarray  # [k] ascending
    accuracy: np.ndarray  # [k] float64
    loss: np.ndarray  # [k] float64
    weights: np.ndarray  # [k] int64: each client's examples in the cell; on the global test set, its training examples


class Piece(NamedTuple):
    """Models of some clients of one architecture, which are in memory at once."""

    family: ModelFamily
    ids: np.ndarray  # [k] ascending
    models: Tensor  # [k, D]

    @property
    def is_one_model(self) -> bool:
        """Whether all rows are the same memory."""
        return self.models.stride(0) == 0


def check_matrix(evaluation: Evaluation, algorithm: Algorithm[Any], fed: Federation) -> None:
    """Raises ValueError, which begins with the field's name, for a cell without its data or its model. Warns of an
    objective of the server's model where clients train a part of theirs that stays at home.
    """
    for cell in evaluation.cells:
        asked = "matrix has" if cell in evaluation.matrix else "metric is of"
        if (lacking := _lacking(cell, algorithm, fed)) is not None:
            raise ValueError(f"{asked} {cell}, which needs {lacking}")
    of_server = (cell_of(evaluation.metric) or "server/global").startswith("server/") and not algorithm.decentralized
    if of_server and fed.home.acts and algorithm.trains_home():
        what = "is of the server's model, in which the part that stays at home never changes"
        _log.warning("evaluation.metric=%s %s: client/own is of the clients' models", evaluation.metric, what)


def _lacking(cell: str, algorithm: Algorithm[Any], fed: Federation) -> str | None:
    """What the cell needs and the run lacks; None if it lacks nothing."""
    model, _, data = cell.partition("/")
    if model != "client" and algorithm.decentralized:
        return f"a server's model, and algorithm={algorithm.name} has none: ask for client/{data}"
    if data == "unseen" and not len(fed.held_out):
        return "clients that never train: set participation.held_out_clients"
    if data in ("own", "unseen") and fed.client_tests is None:
        return OWN_TEST
    if data == "validation" and fed.validation is None:
        return "validation examples: set client_split.validation"
    if data != "global" and not len(_clients(fed, data)):
        return f"a client with {data} examples: raise the share in client_split"
    if algorithm.holds_blocks and fed.blocks is not None and cell != "server/global" and model != "client":
        return f"clients that hold all feature blocks of the server's model: ask for client/{data}"
    return None


def _examples(fed: Federation, data: str) -> ClientData:
    """The examples of each client that a column of the matrix tests on."""
    found = {"validation": fed.validation, "train": fed.client_data}.get(data, fed.client_tests)
    assert found is not None  # `check_matrix`
    return found


def _clients(fed: Federation, data: str) -> np.ndarray:
    """The ascending ids of the clients in a column of the matrix."""
    if data == "global":
        return fed.participants
    there = np.flatnonzero(_examples(fed, data).num_examples)
    return np.intersect1d(there, fed.held_out) if data == "unseen" else np.setdiff1d(there, fed.held_out)


class Matrix:
    """Evaluates the cells that a run asks for. It keeps only its last results, which are no part of the run's state."""

    def __init__(
        self,
        evaluation: Evaluation,
        algorithm: Algorithm[Any],
        fed: Federation,
        test: Examples,
        client_models: ClientModels,
    ) -> None:
        self._evaluation, self._algorithm, self._fed, self._test = evaluation, algorithm, fed, test
        self._client_models = client_models
        self._cells = [tuple(cell.split("/")) for cell in evaluation.cells]
        self._tuned_on = fed.client_data.with_streams(TUNING_STREAMS)  # other minibatches than those of a round
        self._last: tuple[int, dict[str, CellScores]] | None = None
        self._told: set[str] = set()  # the cells of which a warning was given

    def evaluate(self, state: Any, round: int, on_test: Mapping[str, float]) -> dict[str, float]:
        """The metrics of all cells after `round` rounds; `on_test` has those of the evaluated model on the test set."""
        metrics: dict[str, float] = {}
        for cell, scores in self.by_client(state, round).items():
            metrics |= spread(cell, scores)
        if ("server", "global") in self._cells:
            metrics |= {"server/global": on_test["test/accuracy"], "server/global_loss": on_test["test/loss"]}
        return metrics

    def by_client(self, state: Any, round: int) -> dict[str, CellScores]:
        """The cells in which clients differ, client by client, after `round` rounds."""
        if self._last is None or self._last[0] != round:
            self._last = round, self._scores(state, round)
            self._warn(self._last[1], round)
        return self._last[1]

    def _warn(self, found: Mapping[str, CellScores], round: int) -> None:
        """Names the clients whose loss is not finite, once for each cell."""
        for cell, scores in found.items():
            ids = scores.ids[~np.isfinite(scores.loss)]
            if len(ids) and cell not in self._told:
                self._told.add(cell)
                named = ", ".join([*map(str, ids[:MAX_SHOWN].tolist()), *(["..."] if len(ids) > MAX_SHOWN else [])])
                what = f"{cell}: the loss of {count_of(len(ids), 'client')} ({named}) is not finite"
                _log.warning("round %d: %s: the model has diverged there, or the examples are too large", round, what)

    def _scores(self, state: Any, round: int) -> dict[str, CellScores]:
        found: dict[str, CellScores] = {}
        models = self._algorithm.models(state)
        for kind in dict.fromkeys(model for model, _ in self._cells):
            columns = [data for model, data in self._cells if model == kind and (model, data) != ("server", "global")]
            if not isinstance(models, Tensor) and kind != "client":
                raise UserError(
                    f"evaluation.matrix has no {kind}/... for algorithm={self._algorithm.name}, which has no server's "
                    "model: ask for client/..."
                )
            if columns:
                found |= self._row(kind, columns, state, models, round)
        return found

    def _row(
        self, kind: str, columns: list[str], state: Any, models: Tensor | OwnModels, round: int
    ) -> dict[str, CellScores]:
        """The cells of one kind of model."""
        fed, clients = self._fed, {data: _clients(self._fed, data) for data in columns}
        everyone = np.unique(np.concatenate(list(clients.values())))
        accuracy, loss = (
            {data: np.full(fed.num_clients, np.nan) for data in columns} for _ in range(2)
        )  # by client [N]
        if "global" in columns and not isinstance(models, Tensor):
            known = self._client_models.by_client(models)
            accuracy["global"], loss["global"] = (np.array([s[key] for s in known]) for key in ("accuracy", "loss"))
        for piece in self._pieces(kind, everyone, state, models, round):
            for data in columns:
                if data == "global" and not isinstance(models, Tensor):
                    continue
                rows = np.isin(piece.ids, clients[data])
                if rows.any():
                    ids = piece.ids[rows]
                    accuracy[data][ids], loss[data][ids] = self._score(piece, rows, data)
        return {f"{kind}/{data}": self._cell(data, ids, accuracy[data], loss[data]) for data, ids in clients.items()}

    def _cell(self, data: str, ids: np.ndarray, accuracy: np.ndarray, loss: np.ndarray) -> CellScores:
        counted = self._fed.client_data if data == "global" else _examples(self._fed, data)
        return CellScores(ids, accuracy[ids], loss[ids], counted.num_examples[ids])

    def _pieces(
        self, kind: str, ids: np.ndarray, state: Any, models: Tensor | OwnModels, round: int
    ) -> Iterator[Piece]:
        """The models of these clients. While the caller tests a piece, the family reads the clients' feature blocks."""
        fed, built = self._fed, self._algorithm
        if isinstance(models, Tensor) and kind == "server":
            yield Piece(fed.family, ids, models.expand(len(ids), -1))
        elif isinstance(models, Tensor) and kind == "client" and built.holds_blocks and fed.blocks is not None:
            for blocks, rows in by_blocks(fed.blocks[ids]):
                with reading(fed.family, blocks):
                    for some in at_once(ids[rows], fed.family.size):
                        yield Piece(fed.family, some, built.client_models(state, fed, some))
        elif isinstance(models, Tensor):
            for some in at_once(ids, fed.family.size):
                own = kind == "client"
                found = built.client_models(state, fed, some) if own else self._tuned(models, some, round)
                yield Piece(fed.family, some, found)
        else:
            for group in fed.by_architecture(ids):
                for some in at_once(group.ids, group.family.size):
                    yield Piece(group.family, some, models_of(fed, models, group._replace(ids=some)))

    def _tuned(self, start: Tensor, ids: np.ndarray, round: int) -> Tensor:
        """The server's model after some epochs on each client's training examples [k, D]."""
        fed, data = self._fed, self._tuned_on
        local = replace(fed.local, epochs=self._evaluation.fine_tune_epochs, steps=None)
        steps = data.num_steps(ids, local, fed.family.has_batch_norm)
        return fed.executor.train(Work(fed.family, data, ids, steps, local, local.lr, fed.seed, round, start))[0]

    def _score(self, piece: Piece, rows: np.ndarray, data: str) -> OnClients:
        """The scores of some rows [k] bool of a piece on one column of the matrix."""
        executor, size = self._fed.executor, self._evaluation.batch_size
        family, ids = piece.family, piece.ids[rows]
        if data == "global":
            models = piece.models[:1] if piece.is_one_model else piece.models[torch.from_numpy(rows)]
            correct, loss = on_examples(executor, family, models, self._test.inputs, self._test.targets, size)
            both = (each.cpu().numpy() for each in (correct.double().mean(1), loss))
            return OnClients(*(np.broadcast_to(each, len(ids)) for each in both))
        examples = _examples(self._fed, data)
        if piece.is_one_model:
            return of_one(family, piece.models[0], examples, ids, size)
        return of_each(executor, family, piece.models[torch.from_numpy(rows)], examples, ids, size)


def spread(cell: str, scores: CellScores) -> dict[str, float]:
    """The metrics of a cell. Clients count alike or (`weighted`) by their examples.

    `worst_decile` is the mean over the tenth of the clients, or of the examples, with the lowest accuracies. A client
    on its border counts in part.
    """
    ways = {cell: np.ones(len(scores.ids)), f"{cell}_weighted": scores.weights.astype(np.float64)}
    metrics: dict[str, float] = {}
    for key, weights in ways.items():
        shares = weights / weights.sum()
        mean = float(shares @ scores.accuracy)
        order = np.argsort(scores.accuracy, kind="stable")
        before = shares[order].cumsum() - shares[order]
        tail = np.clip(WORST - before, 0, shares[order])
        metrics |= {
            key: mean,
            f"{key}_std": float(np.sqrt(shares @ np.square(scores.accuracy - mean))),
            f"{key}_worst_decile": float(tail @ scores.accuracy[order] / WORST),
            f"{key}_loss": float(shares @ scores.loss),
        }
    return metrics | {f"{cell}_worst": float(scores.accuracy.min())}
