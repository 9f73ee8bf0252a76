"""A round's work in the form that waiting processes get: numbers of objects that they have had since they were forked,
copies of tensors in shared memory, and the rest pickled.
"""

import io
import pickle
import weakref
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any

from torch import Tensor

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work
from fedlab_runner.executors._fork.buffers import Arena, Buffer

Known = ModelFamily | ClientData
PART = "part"  # stands before the number of the clients' data of which a round draws some


class Unsendable(Exception):
    """Waiting processes cannot get a part of the work: the object `unknown`, or a closure."""

    def __init__(self, unknown: Known | None = None) -> None:
        super().__init__(unknown)
        self.unknown = unknown


class Acquaintances:
    """Objects that processes had when they were forked, by number, and the state of each family's network at that
    time.
    """

    def __init__(self, known: Iterable[Known]) -> None:
        self._known = [(weakref.ref(each), _state(each)) for each in known]

    def alive(self) -> list[Known]:
        """The objects that still exist."""
        return [found for each, _ in self._known if (found := each()) is not None]

    def number(self, thing: Known) -> int:
        """The number of an object. Raises Unsendable if the object is unknown or has changed."""
        for number, (each, state) in enumerate(self._known):
            if each() is thing and state == _state(thing):
                return number
        raise Unsendable(thing)

    def __getitem__(self, number: int) -> Known:
        found = self._known[number][0]()
        assert found is not None  # a fork keeps all objects
        return found


def _state(thing: Known) -> Any:
    """The part of a family that may change: which part of its network computes."""
    return thing.active_part if isinstance(thing, ModelFamily) else None


def packed(work: Work, more: Any, known: Acquaintances, arena: Arena, shared: Buffer, blocks: Collection[int]) -> bytes:
    """The work and `more`, in the form that `unpacked` reads. A tensor stays where it is in `shared` if the processes
    have its block, one of `blocks`; others are copied into the arena. Raises Unsendable, and ArenaFull for too small an
    arena.
    """

    class OrderPickler(pickle.Pickler):
        def persistent_id(self, thing: object) -> Any:
            if isinstance(thing, ClientData) and thing.part_of is not None:
                return PART, known.number(thing.part_of), thing.chosen
            if isinstance(thing, ModelFamily | ClientData):
                return known.number(thing)
            if isinstance(thing, Tensor):
                form = tuple(thing.shape), thing.dtype
                if (block := shared.block_of(thing)) in blocks:
                    return block, None, *form
                place, room = arena.room(*form)
                room.copy_(thing.detach())
                return None, place, *form
            return None

    file = io.BytesIO()
    try:
        OrderPickler(file, pickle.HIGHEST_PROTOCOL).dump(({f.name: getattr(work, f.name) for f in fields(work)}, more))
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # a function is not at the top of a module
        raise Unsendable from error
    return file.getvalue()


def unpacked(content: bytes, known: Acquaintances, arena: Arena, shared: Buffer) -> tuple[Work, Any]:
    """In a waiting process: the work, whose tensors lie in the arena or in `shared`, and `more`."""

    class OrderUnpickler(pickle.Unpickler):
        def persistent_load(self, told: Any) -> Any:
            if isinstance(told, int):
                return known[told]
            if told[0] == PART:
                whole = known[told[1]]
                assert isinstance(whole, ClientData)
                return whole.part(told[2])
            block, place, *form = told
            return arena.at(place, *form) if block is None else shared.again(block, *form)

    terms, more = OrderUnpickler(io.BytesIO(content)).load()
    return Work(**terms), more
