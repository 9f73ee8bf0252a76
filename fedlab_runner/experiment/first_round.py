"""Holds the first rounds of a process against the contract of an algorithm."""

from typing import Any

import torch

from fedlab_runner.checkpoints.state_packing import comes_back, differs, fits, layout, pack
from fedlab_runner.core.algorithm import Algorithm, ServerAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.metric_names import COUNT_PREFIX
from fedlab_runner.core.updates import tensors_in
from fedlab_runner.experiment.first_state import check_models
from fedlab_runner.utils.contract import in_words, require
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.overwriting import only_read


class FirstRounds:
    """An algorithm's rounds, of which the first ones are checked until updates have arrived."""

    def __init__(self, algorithm: Algorithm[Any], first: Any) -> None:
        """`first`: the State before round 0, against which a checkpoint is read."""
        self._algorithm, self._first, self._due = algorithm, first, True

    def __call__(self, state: Any, fed: Federation) -> Any:
        """The State after a round. Raises Overwritten if a checked round writes into the State that it reads, as a
        checkpoint of it may be made at any time, and UserError if no run could continue from a checkpoint of the new
        State.
        """
        if not self._due:
            return self._algorithm.round(state, fed)
        with only_read(self._algorithm, "round", "its State", state):
            after = self._algorithm.round(state, fed)
        _check(self._algorithm, self._first, after)
        check_models(self._algorithm, fed, after)
        if isinstance(self._algorithm, ServerAlgorithm) and not self._algorithm.moves_alone:
            _check_step(self._algorithm, fed, state, after)
        if fed.metrics.values.get("late/arrived") != 0:  # None without a server
            self._due, self._first = False, None
        return after


def _check(algorithm: Algorithm[Any], first: Any, after: Any) -> None:
    pack(after, of=f"the State that {type(algorithm).__name__}.round gives")
    if (names := getattr(first, "_fields", ())) == getattr(after, "_fields", None):
        for name, old, new in zip(names, first, after, strict=True):
            words = f"as {name} of the State the type and size of the first one, {in_words(old)}"
            require(_alike(new, old), algorithm, "round", words, new)
    alike = _alike(after, first)
    require(alike, algorithm, "round", "a State with the fields, types and sizes of the first one", after)
    words = "a State whose fields name the NamedTuples in their lists and dicts"
    require(comes_back(after, like=first), algorithm, "round", words, after)
    free = not any(tensor.requires_grad for tensor in tensors_in(after))
    require(free, algorithm, "round", "a State of tensors without a gradient's history (x.detach())", after)


def _check_step(algorithm: ServerAlgorithm[Any, Any], fed: Federation, before: Any, after: Any) -> None:
    """Raises UserError if the server's model passes by the run's server optimiser or its aggregator."""
    name, p = type(algorithm).__name__, fed.family.num_params
    x, y = (algorithm.server_model(state)[:p] for state in (before, after))
    if f"{COUNT_PREFIX}0" not in fed.metrics.values or torch.equal(x, y):  # late updates may not count
        return
    if fed.server_steps.optimized and not fed.server_steps.taken:
        raise UserError(
            f"server_optimizer would do nothing, because {name}.round takes the server's step without "
            "fed.optimized(before, after): call it, or set server_optimizer=none"
        )
    if (fed.deliveries.aggregation is not None or fed.at_once is not None) and not fed.deliveries.averaged:
        raise UserError(
            f"aggregator would do nothing, because the server's step of {name} takes no arrivals.mean or arrivals.sum: "
            "take them, or set the class attributes averages and reads_sums to False"
        )


def _alike(value: Any, before: Any) -> bool:
    """Whether a checkpoint of a value could be read as one of the value before."""
    packed = pack(value)
    return fits(packed, layout(value), like=before) and not differs(packed, like=before)
