"""Ends a run whose numbers are no longer finite."""

import math
from typing import Any

from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.own_models import changed_models
from fedlab_runner.core.update_guard import finite_rows
from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.errors import Diverged


def check_finite(algorithm: Algorithm[Any], fed: Federation, before: Any, after: Any, metrics: dict[str, Any]) -> None:
    """Raises Diverged if the round from the State `before` to `after`, with these metrics, left a training loss or a
    model that is not finite, or a running variance below zero.
    """
    loss = metrics.get("train/loss")  # None if no client has trained, or none to a finite model
    diagnosis = f"the run diverged in round {fed.round + 1}" + ("" if loss is None else f" (train/loss {loss:.3g})")
    rates = "local.lr or server_optimizer.lr," if fed.server_steps.optimized else "local.lr"
    idle = loss is None and not metrics.get("updates/not_finite")  # the clients
    lower = "lower the algorithm's rates" if idle else f"lower {rates} or set local.clip_norm"
    if loss is not None and not math.isfinite(loss):
        raise Diverged(f"{diagnosis}: {lower}")
    for family, model in changed_models(fed, algorithm.models(before), algorithm.models(after)):
        if not bool(finite_rows([model.unsqueeze(0)]).all()):
            arrived = metrics.get("late/arrived")  # None without a server
            of = "" if arrived is None else f" of {count_of(int(arrived), 'update')}"
            made = f"the model that {type(algorithm).__name__}.round made{of}"
            fault = f"{made} is not finite" if loss is None else f"the loss is finite, but not {made}"
            rest = "or mend the step of an own algorithm or server optimiser"
            of_server = "" if idle else "lower the algorithm's rates, "
            raise Diverged(f"{diagnosis}: {fault}: {lower}, {of_server}{rest}")
        if bool(family.bad_statistics(model[None, family.num_params :]).any()):
            raise Diverged(
                f"{diagnosis}: the algorithm left a running variance of batch norm below zero; it must replace "
                "statistics by a mean of the clients' statistics (averaging.stepped), not step them"
            )
