"""Scores one model on each client's examples, several models on the same examples, or each model on its client's.

Each score depends, to the last bit, on its model, its examples and the arguments alone.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.aligned import aligned_rows, copied_rows, full_width
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.losses import losses
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.evaluation.scoring import OwnExamples, SameExamples, correctly, least_alone, scored

MAX_VALUES = 2**25  # values of models in memory at once: 128 MiB in float32
Items = TypeVar("Items", list[Any], np.ndarray)


class OnExamples(NamedTuple):
    """The scores of m models on n examples."""

    correct: Tensor  # [m, n] bool
    loss: Tensor  # [m] float64, the mean cross entropy


class OnClients(NamedTuple):
    """The scores of k clients."""

    accuracy: np.ndarray  # [k] float64
    loss: np.ndarray  # [k] float64, the mean cross entropy


def at_once(items: Items, size: int) -> Iterator[Items]:
    """The items in parts whose models, of `size` values each, fit into memory together."""
    most = max(1, MAX_VALUES // size)
    return (items[begin : begin + most] for begin in range(0, len(items), most))


@torch.no_grad()
def on_examples(
    executor: Executor, family: ModelFamily, models: Tensor, inputs: Tensor, targets: Tensor, batch_size: int
) -> OnExamples:
    """The scores of models [m, D] on the same examples."""
    n = len(targets)
    if min(n, batch_size) >= least_alone(family, inputs):
        right, means = scored(executor, family, models, SameExamples(inputs, targets), [n] * len(models), batch_size)
        return OnExamples(torch.stack(right), torch.tensor(means, dtype=torch.float64))
    p, correct, total = family.num_params, [], torch.zeros(len(models), dtype=torch.float64, device=family.device)
    models = aligned_rows(models)
    for begin in range(0, n, batch_size):
        labels, some = targets[begin:][:batch_size], inputs[begin : begin + batch_size]
        if more := _width(family, len(some)) - len(some):
            some = torch.cat([some, some[-1:].expand(more, *some.shape[1:])])
        batch = family.normalize(some, family.dtype)

        def one(params: Tensor, buffers: Tensor, batch: Tensor = batch) -> tuple[Tensor]:
            return (family.evaluate(params, buffers, batch),)

        (logits,) = executor.map_models(family, one, models[:, :p], models[:, p:], fill=True)  # [m, b, C]
        logits = logits[:, : len(labels)]
        correct.append(correctly(logits, labels))
        total += losses(logits, labels.expand(len(models), -1), None).double().sum(-1)
    return OnExamples(torch.cat(correct, 1), total / n)


def of_one(family: ModelFamily, w: Tensor, client_data: ClientData, ids: np.ndarray, batch_size: int) -> OnClients:
    """The scores of one model [D] on the examples of each of the clients `ids` [k], which all have examples."""
    sizes = client_data.num_examples[ids]
    members = np.concatenate([client_data.members(i) for i in ids.tolist()])
    correct, loss = np.empty(len(members)), np.empty(len(members))
    with family.predicting(w) as predict:
        for begin in range(0, len(members), batch_size):
            part = slice(begin, begin + batch_size)
            inputs, targets = client_data.examples(torch.from_numpy(members[part]).to(family.device))
            logits = predict(inputs)
            correct[part] = correctly(logits, targets).cpu().numpy()
            loss[part] = losses(logits, targets, None).double().cpu().numpy()
    starts = np.concatenate([[0], sizes.cumsum()[:-1]])
    return OnClients(*(np.add.reduceat(each, starts) / sizes for each in (correct, loss)))


@torch.no_grad()
def of_each(
    executor: Executor, family: ModelFamily, models: Tensor, client_data: ClientData, ids: np.ndarray, batch_size: int
) -> OnClients:
    """The scores of each of the models [k, D] on the examples of its client in `ids` [k]; all clients have examples.

    Small work goes to the executor, several clients of similar size at a time, padded to the largest, with at most
    `batch_size` examples together.
    """
    sizes = client_data.num_examples[ids]
    alone = sizes >= least_alone(family, client_data.inputs)
    accuracy, loss = np.zeros(len(ids)), np.zeros(len(ids))
    if alone.any():
        own, rows = OwnExamples(client_data, ids[alone]), torch.from_numpy(alone).to(models.device)
        right, loss[alone] = scored(executor, family, models[rows], own, sizes[alone].tolist(), batch_size)
        accuracy[alone] = [float(each.double().mean()) for each in right]
    if not alone.all():
        rest = models[torch.from_numpy(~alone).to(models.device)] if alone.any() else models
        accuracy[~alone], loss[~alone] = _together(executor, family, rest, client_data, ids[~alone], batch_size)
    return OnClients(accuracy, loss)


def _together(
    executor: Executor, family: ModelFamily, models: Tensor, client_data: ClientData, ids: np.ndarray, batch_size: int
) -> OnClients:
    """The scores of models with little work."""
    p, correct, loss = family.num_params, np.zeros(len(ids)), np.zeros(len(ids))

    def one(params: Tensor, buffers: Tensor, inputs: Tensor) -> tuple[Tensor]:
        return (family.evaluate(params, buffers, inputs),)

    for rows, index, mask in _batches(family, client_data, ids, batch_size):
        inputs, targets = client_data.examples(torch.from_numpy(index).to(family.device))
        # Normalised as one batch, so that each client's examples have the memory layout that suits convolutions.
        normal = family.normalize(inputs.flatten(0, 1), family.dtype).view(inputs.shape)
        chosen = copied_rows(len(rows), (models[row] for row in rows.tolist()))
        (logits,) = executor.map_models(family, one, chosen[:, :p], chosen[:, p:], normal)  # [c, b, C]
        correct[rows] += (correctly(logits, targets).cpu().numpy() & mask).sum(1)
        each = losses(logits, targets, None).double().cpu().numpy()
        loss[rows] += np.where(mask, each, 0.0).sum(1)
    sizes = client_data.num_examples[ids]
    return OnClients(correct / sizes, loss / sizes)


def _width(family: ModelFamily, examples: int) -> int:
    """How many examples a minibatch of so many is filled up to; networks with convolutions compute one by one."""
    fills = family.device.type == "cpu" and not family.has_convolution
    return full_width(examples, family.autocast or family.dtype) if fills else examples


def _batches(
    family: ModelFamily, client_data: ClientData, ids: np.ndarray, batch_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows of clients [c], the indices of their next examples [c, b], and which of these count [c, b]."""
    sizes = client_data.num_examples[ids]
    order = np.argsort(-sizes, kind="stable")
    first = 0
    while first < len(order):
        largest = int(sizes[order[first]])
        rows = order[first : first + max(1, batch_size // largest)]
        for begin in range(0, largest, batch_size):
            width = min(batch_size, largest - begin)
            index = np.zeros((len(rows), _width(family, width)), np.int64)
            mask = np.zeros(index.shape, bool)
            for k, row in enumerate(rows.tolist()):
                part = client_data.members(int(ids[row]))[begin : begin + width]
                index[k, : len(part)], mask[k, : len(part)] = part, True
            yield rows, index, mask
        first += len(rows)
