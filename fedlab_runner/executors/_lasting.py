"""What other processes get once and keep for later rounds: clients' data, model families and the server's examples."""

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from fedlab_runner.augment.base import Augment
from fedlab_runner.core.client_data import ClientData, Streams
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.executors._messages import Keep
from fedlab_runner.executors._sending import as_tensor, dumped, loaded
from fedlab_runner.utils.determinism import repeat_exactly, repeats_exactly


class SentOnce:
    """The numbers by which processes know what they have got."""

    def __init__(self) -> None:
        self._sent = 0
        self._numbers: Any = WeakIdKeyDictionary()  # and the state that an object had when it was sent

    def of(self, things: Sequence[object], send: Callable[[Keep], None]) -> list[int]:
        """The numbers of these objects. `send` sends what is new or has changed."""
        return [self._of(thing, send) for thing in things]

    @property
    def in_use(self) -> set[int]:
        """The numbers of all objects that still exist."""
        return {number for number, _ in self._numbers.values()}

    def forget(self) -> None:
        """Sends all objects again: a new process has none."""
        self._numbers.clear()

    def _of(self, thing: object, send: Callable[[Keep], None]) -> int:
        state = thing.active_part if isinstance(thing, ModelFamily) else None
        number, before = self._numbers.get(thing, (0, None))
        if not number or before != state:
            self._sent += 1
            self._numbers[thing] = number, _ = self._sent, state
            send(Keep(number, packed(thing)))
        return int(number)


class _Data(NamedTuple):
    """The clients' data as arrays, which the processes of a machine share without a copy."""

    inputs: np.ndarray
    targets: np.ndarray
    members: np.ndarray
    num_examples: np.ndarray
    streams: Streams
    augment: bytes  # pickled

    def client_data(self, device: torch.device) -> ClientData:
        """The clients' data, with the examples on a device."""
        split = np.split(self.members, np.cumsum(self.num_examples)[:-1])
        augment: Augment | None = pickle.Unpickler(io.BytesIO(self.augment)).load()
        inputs, targets = (as_tensor(values, torch.device("cpu")) for values in (self.inputs, self.targets))
        return ClientData(inputs, targets, split, device, self.streams, augment)


def packed(thing: object) -> Any:
    """Clients' data, a model family or a tensor, to be sent once."""
    if isinstance(thing, ClientData):
        return _of_client_data(thing)
    if isinstance(thing, Tensor):
        return thing.cpu().numpy()
    # A family goes without what executors have compiled for it. Its process computes as this one does, the same bits
    # each time or not.
    return dumped((thing, repeats_exactly()))


def unpacked(content: Any, device: torch.device) -> Any:
    """What `packed` has packed, on a device."""
    if isinstance(content, _Data):
        return content.client_data(device)
    return as_tensor(content, device) if isinstance(content, np.ndarray) else _family(content, device)


def _of_client_data(client_data: ClientData) -> _Data:
    members, _ = client_data.assignment
    inputs, targets = client_data.inputs.cpu().numpy(), client_data.targets.cpu().numpy()
    augment = dumped(client_data.augment)
    return _Data(inputs, targets, members, client_data.num_examples, client_data.streams, augment)


def _family(content: bytes, device: torch.device) -> ModelFamily:
    family, exactly = loaded(content, device)
    repeat_exactly(exactly)
    assert isinstance(family, ModelFamily)
    return family
