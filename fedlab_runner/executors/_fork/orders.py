"""A round's work as waiting processes get it: what they have since they were forked is named, tensors are copied into
shared memory, and the rest is pickled.
"""

import io
import pickle
import weakref
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from torch import Tensor

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work
from fedlab_runner.executors._fork.buffers import Arena

Known = ModelFamily | ClientData


class Unsendable(Exception):
    """The work has something in it that waiting processes cannot get: `unknown`, or a closure."""

    def __init__(self, unknown: Known | None = None) -> None:
        super().__init__(unknown)
        self.unknown = unknown


class Acquaintances:
    """Objects that processes had when they were forked, by number; and the network of each family as it was."""

    def __init__(self, known: Iterable[Known]) -> None:
        self._known = [(weakref.ref(each), _state(each)) for each in known]

    def alive(self) -> list[Known]:
        """Those that are still there."""
        return [found for each, _ in self._known if (found := each()) is not None]

    def number(self, thing: Known) -> int:
        """Raises Unsendable where the thing is unknown, or has changed."""
        for number, (each, state) in enumerate(self._known):
            if each() is thing and state == _state(thing):
                return number
        raise Unsendable(thing)

    def __getitem__(self, number: int) -> Known:
        found = self._known[number][0]()
        assert found is not None  # in a fork, which keeps everything
        return found


def _state(thing: Known) -> Any:
    """What may change of a family: the part of its network that is at work."""
    return getattr(thing.module, "cost_kind", None) if isinstance(thing, ModelFamily) else None


def packed(work: Work, more: Any, known: Acquaintances, arena: Arena) -> bytes:
    """The work and more, as `unpacked` takes it. Raises Unsendable; ArenaFull where the arena is too small."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: object) -> Any:
            if isinstance(thing, ModelFamily | ClientData):
                return known.number(thing)
            if isinstance(thing, Tensor):
                place, room = arena.room(tuple(thing.shape), thing.dtype)
                room.copy_(thing.detach())
                return place, tuple(thing.shape), thing.dtype
            return None

    file = io.BytesIO()
    try:
        Pickler(file, pickle.HIGHEST_PROTOCOL).dump(({f.name: getattr(work, f.name) for f in fields(work)}, more))
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # of functions that are no module's
        raise Unsendable from error
    return file.getvalue()


def unpacked(content: bytes, known: Acquaintances, arena: Arena) -> tuple[Work, Any]:
    """In a waiting process: the work, whose tensors are in the arena."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, place: Any) -> Any:
            return known[place] if isinstance(place, int) else arena.at(*place)

    terms, more = Unpickler(io.BytesIO(content)).load()
    return Work(**terms), more
