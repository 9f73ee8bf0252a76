"""A run of an algorithm of fluke (https://github.com/makgyver/fluke): its servers and clients, with the minibatches of
this package.
"""

import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tests.referee.comparison import Setting, vector

Epochs = list[list[tuple[Tensor, Tensor]]]
Feed = Callable[[Setting, int, int], Epochs]  # (setting, client, round) -> the epochs that its data loader hands out
Found = Callable[[Setting, Any, list[Any]], Tensor]  # (setting, algorithm, clients of the round) -> what is compared


_network: list[Callable[[], nn.Module]] = []  # of the run that is on
BY_NAME = f"{__name__}.network"  # for clients that each build their own


def network() -> nn.Module:
    """The first model of the run that is on."""
    return _network[-1]()


def once(setting: Setting, client: int, round: int) -> Epochs:
    """The epochs of local training."""
    return setting.epochs(client, round)


def twice(setting: Setting, client: int, round: int) -> Epochs:
    """The epochs of local training for the shared model, then for the client's own."""
    return 2 * setting.epochs(client, round)


def for_head_and_body(head_epochs: int) -> Feed:
    """The epochs of the head, then those of the body."""

    def feed(setting: Setting, client: int, round: int) -> Epochs:
        return setting.epochs(client, round, "PERSONAL_BATCHES", head_epochs) + setting.epochs(client, round)

    return feed


def in_turn(*purposes: str) -> Feed:
    """One minibatch of each purpose in each local step."""

    def feed(setting: Setting, client: int, round: int) -> Epochs:
        drawn = [chain.from_iterable(setting.epochs(client, round, purpose)) for purpose in purposes]
        return [[batch for step in zip(*drawn, strict=True) for batch in step]]

    return feed


def server(setting: Setting, built: Any, cohort: list[Any]) -> Tensor:
    """The server's model, or the part of it that the server has."""
    return vector(built.server.model)


def cloud(setting: Setting, built: Any, cohort: list[Any]) -> Tensor:
    """FedDyn's model from which the clients start."""
    return vector(built.server.cld_mdl)


def with_own_models(setting: Setting, built: Any, cohort: list[Any]) -> Tensor:
    """The server's model, then the personal models of the round's clients."""
    return torch.cat([vector(built.server.model), *(vector(client.local_model) for client in cohort)])


def with_homes(setting: Setting, built: Any, cohort: list[Any]) -> Tensor:
    """What the clients share of the server's model, then what the round's clients keep to themselves."""
    x = vector(built.server.model)
    shared = x[~setting.at_home] if len(x) == len(setting.at_home) else x
    return torch.cat([shared, *(vector(client.model)[setting.at_home] for client in cohort)])


def run(
    module: str,
    algorithm: str,
    client: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    *,
    dtype: str = "float64",
    sends: str = "",
    feed: Feed = once,
    found: Found = server,
) -> Callable[[Setting], Iterator[Tensor]]:
    """What is compared of an algorithm of fluke after each round.

    `sends`: the part of a network of an encoder and a head that its clients send; all: that network as a whole; empty:
    the network as it is.
    """

    def theirs(setting: Setting) -> Iterator[Tensor]:
        import importlib

        from fluke import DDict, FlukeENV
        from fluke.data import FastDataLoader
        from fluke.nets import EncoderHeadNet

        class Loader(FastDataLoader):
            """Hands out the minibatches of an epoch of the current round."""

            def __init__(self, index: int) -> None:
                inputs, targets = (each.to(kind) if each.is_floating_point() else each for each in own(index))
                super().__init__(inputs, targets, num_labels=3, batch_size=setting.draws.local.batch_size)
                self.index, self.epochs, self.left = index, list[Any](), iter(())

            def begin(self, round: int) -> None:
                drawn = feed(setting, self.index, round)
                self.epochs = [[(x.to(kind), y) for x, y in epoch] for epoch in drawn]
                self.n_batches = len(setting.epochs(self.index, round)[0])
                self.left = iter(self.epochs[0])

            def __iter__(self) -> Any:
                return iter(self.epochs.pop(0) if self.epochs else ())

            def __next__(self) -> Any:
                return next(self.left)

        local, kind, own = setting.draws.local, getattr(torch, dtype), setting.examples
        loaders = [Loader(i) for i in range(setting.draws.num_clients)]

        class Splitter:
            def assign(self, *_: Any) -> Any:
                return (loaders, [None] * len(loaders)), None

        def built_anew() -> nn.Module:
            whole = setting.module().to(kind)
            return EncoderHeadNet(whole[:-1], whole[-1]) if sends else whole

        def sent() -> nn.Module:
            whole = built_anew()
            return whole if sends in ("", "all") else getattr(whole, sends)

        _network[:] = [built_anew]
        FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
        chosen = {"name": "SGD", "lr": local.lr, "momentum": local.momentum}
        of_client = {
            "batch_size": local.batch_size,
            "local_epochs": local.epochs or 1,
            "loss": "CrossEntropyLoss",
            "optimizer": DDict(**(chosen if optimizer is None else {"name": "SGD", "lr": local.lr} | optimizer)),
            "scheduler": DDict(name="StepLR", step_size=1, gamma=1),
        }
        cls = getattr(importlib.import_module(f"fluke.algorithms.{module}"), algorithm)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            personal = {"model": built_anew()} if sends or _is_personal(cls) else {}
            params = DDict(
                client=DDict(**(of_client | personal | (client or {}))),
                server=DDict(**({"weighted": True} | (server or {}))),
                model=sent(),
            )
            built = cls(len(loaders), Splitter(), params)
            built.finalize = lambda: None  # which `run` calls whatever `finalize` says, and by which clients train
            for round, cohort in enumerate(setting.cohorts):
                for loader in loaders:
                    loader.begin(round)
                clients = [built.clients[i] for i in cohort]
                built.server.get_eligible_clients = lambda _, those=clients: those
                torch.manual_seed(0)
                built.run(1, 0.5, finalize=False)
                yield found(setting, built, clients)

    return theirs


def _is_personal(cls: type) -> bool:
    """Whether clients get a model of their own at the start."""
    return any(base.__name__ == "PersonalizedFL" for base in cls.__mro__)
