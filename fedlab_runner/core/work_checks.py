"""Holds what an algorithm gives to `Cohort.train` and `Cohort.gradients` against their contract."""

from typing import Any

import torch
from torch import Tensor

from fedlab_runner.core.layers.tied import first_names
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.network_state import named_values
from fedlab_runner.core.work import Work
from fedlab_runner.utils.contract import in_words
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.nearest import nearest


def check_given(work: Work) -> None:
    """Raises UserError unless the work's `start`, `per_client` and `common` are tensors of the shapes that
    `Cohort.train` says, and `frozen` has names of the model. An executor would give a client the row of another one,
    and train a tensor whose name is misspelt. Under `torch.no_grad` nothing would train.
    """
    if not torch.is_grad_enabled():
        raise UserError("cohort.train needs gradients: call it outside of torch.no_grad and torch.inference_mode")
    clients = len(work.ids)
    check_start("train: start", work.start, work.family, clients)
    given: dict[str, Any] = {"per_client": work.per_client, "common": work.common}
    for name, tensors in given.items():
        if not isinstance(tensors, tuple):
            _refuse(f"train: {name}", f"a tuple of tensors, as {name}=(x,)", tensors)
    for i, rows in enumerate(given["per_client"]):
        if not isinstance(rows, Tensor) or rows.shape[:1] != (clients,):
            rule = f"a tensor [{clients}, ...], a row for each client of the cohort, as rows[cohort.ids]"
            _refuse(f"train: per_client[{i}]", rule, rows)
    for i, value in enumerate(given["common"]):
        if not isinstance(value, Tensor):
            _refuse(f"train: common[{i}]", "a tensor, as x.new_tensor(0.1)", value)
    if work.frozen:
        _check_frozen(work.frozen, work.family)


def _check_frozen(frozen: Any, family: ModelFamily) -> None:
    """Accepts the name of a parameter that never trains too, which no vector holds."""
    if not isinstance(frozen, tuple):
        _refuse("train: frozen", "a tuple of names, as frozen=(name,)", frozen)
    layout = family.layout
    for name in frozen:
        if name in layout or name in named_values(family.module):
            continue
        guess = first_names(family.module).get(name) or nearest(str(name), layout)
        hint = f"did you mean {guess!r}?" if guess else f"the names are {in_words([*layout])}"
        raise UserError(f"cohort.train: frozen must name parameters and statistics of the model, got {name!r}: {hint}")


def check_start(name: str, start: Any, family: ModelFamily, clients: int) -> None:
    """Raises UserError, which begins with the `name`, unless `start` is a model [D] or one for each client [K, D]."""
    if not isinstance(start, Tensor) or start.shape not in ((family.size,), (clients, family.size)):
        _refuse(name, f"a tensor [{family.size}] or [{clients}, {family.size}]", start)


def _refuse(name: str, rule: str, given: Any) -> None:
    raise UserError(f"cohort.{name} must be {rule}, got {in_words(given)}")
