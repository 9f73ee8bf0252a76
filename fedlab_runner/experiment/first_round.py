"""Holds the first round of a process against the contract of an algorithm."""

from typing import Any

from fedlab_runner.checkpoints.state_packing import classes, differs, fits, layout, pack, unpack
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import tensors_in
from fedlab_runner.utils.contract import in_words, require
from fedlab_runner.utils.errors import UserError


class Overwritten(UserError):
    """An algorithm has written into its State, which must no longer be saved."""


def first_round(algorithm: Algorithm[Any], state: Any, fed: Federation) -> Any:
    """The State after a round. Raises Overwritten if the round writes into the State that it reads, as a checkpoint of
    it may be made at any time, and UserError if no run could continue from a checkpoint of the new State.
    """
    before = _versions(state)
    after = algorithm.round(state, fed)
    if _versions(state) != before:
        raise Overwritten(
            f"{type(algorithm).__name__} writes into its State, of which a checkpoint may be made at any time: make "
            "new tensors, as x + y in place of x.add_(y)"
        )
    packed = pack(after)
    if not fed.round:  # against the first State, as a checkpoint is: later ones may have more rows
        if (names := getattr(state, "_fields", ())) == getattr(after, "_fields", None):
            for name, old, new in zip(names, state, after, strict=True):
                words = f"as {name} of the State the type and size of the one before, {in_words(old)}"
                require(_alike(new, old), algorithm, "round", words, new)
        alike = _alike(after, state)
        require(alike, algorithm, "round", "a State with the fields, types and sizes of the one before", after)
        whole = classes(unpack(packed, like=state)) == classes(after)
        require(whole, algorithm, "round", "a State whose fields name the NamedTuples in their lists and dicts", after)
    free = not any(tensor.requires_grad for tensor in tensors_in(after))
    require(free, algorithm, "round", "a State of tensors without a gradient's history (x.detach())", after)
    return after


def _alike(value: Any, before: Any) -> bool:
    """Whether a checkpoint of a value could be read as one of the value before."""
    packed = pack(value)
    return fits(packed, layout(value), like=before) and not differs(packed, like=before)


def _versions(state: Any) -> list[int]:
    """How often each tensor, or the one that it is a view of, was written into."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_in(state)]
