"""The clients' own models. Each is a row in the client state store, so that a round touches only the models it changes.

Client i has architecture i modulo A. Clients that have not changed their model yet share one tensor.
"""

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from fedlab_runner.core.architectures import ClientGroup
from fedlab_runner.core.client_state import RowRef
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily

OwnModels = dict[int, RowRef]  # by client, in ascending order: the row [D_a]
NamedModels = dict[str, tuple[Sequence[ModelFamily], OwnModels]]  # by name: own models of A families


def first_models(fed: Federation) -> OwnModels:
    """First models of all clients, equal for one architecture."""
    first = [family.init(fed.seed) for family in fed.families]
    return {client: first[client % len(first)] for client in range(fed.num_clients)}


def models_of(fed: Federation, models: OwnModels, group: ClientGroup) -> Tensor:
    """The models [k, D_a] of the clients of a group."""
    return fed.row_store("device", group.family.size).stacked(models, group.ids.tolist())


def updated(fed: Federation, place: str, models: OwnModels, new: Iterable[tuple[ClientGroup, Tensor]]) -> OwnModels:
    """All clients' models with the `new` models of some groups, kept at `place`: models [k, D_a] for a group's clients,
    or one [D_a] for all of them.
    """
    found = dict(models)
    for group, rows in new:
        fed.row_store(place, group.family.size).replace_all(found, group.ids.tolist(), rows)
    return found


def each_model(fed: Federation, models: Tensor | OwnModels) -> Iterator[tuple[ModelFamily, Tensor]]:
    """The server's model [D], or each client's model, with its family. One model at a time is in memory."""
    if isinstance(models, Tensor):
        yield fed.family, models
        return
    for client, ref in models.items():
        family = fed.families[client % len(fed.families)]
        yield family, fed.row_store("device", family.size).get(ref)


def changed_models(
    fed: Federation, before: Tensor | OwnModels, after: Tensor | OwnModels
) -> Iterator[tuple[ModelFamily, Tensor]]:
    """The server's model [D], or each model that is new among the clients' models, with its family."""
    if isinstance(before, Tensor) or isinstance(after, Tensor):
        return each_model(fed, after)
    seen: dict[tuple[str, int], int] = {}
    for client, ref in after.items():
        if ref is (old := before[client]):
            continue
        if isinstance(ref, Tensor):
            seen.setdefault(("memory", id(ref)), client)  # clients may share a row
        elif isinstance(old, Tensor) or ref != old:
            seen["file", ref] = client
    return each_model(fed, {client: after[client] for client in seen.values()})
