"""What clients keep at home: values of their models that are never sent, one row for each client."""

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.client_state import ClientStateStore, RowRef, RowStore
from fedlab_runner.core.joined_models import Joined
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.own_values import Columns, Own
from fedlab_runner.homes.base import Home
from fedlab_runner.utils.contract import require


class ClientHomes:
    """The homes of a run's clients. With a server, a row holds the h values of the first family's model that stay at
    home.

    A client that has not trained yet has the values of the run's first model, which every client can draw from the
    seed. A late client gets its new values when its update arrives. In algorithms without a server, clients keep whole
    models: these algorithms use only `mask` and `own`.
    """

    def __init__(self, home: Home | None, families: Sequence[ModelFamily], store: ClientStateStore, seed: int) -> None:
        """With `home` None nothing stays at home. Raises UserError where a model lacks the part that the home names."""
        self._masks = [_mask(home, family) for family in families]
        self._families, self._seed = families, seed
        self.store = store  # of the rows
        self.place = "" if home is None else home.store_on
        self._columns = dict[Joined | None, Columns]()
        self.size = int(self._masks[0].sum())  # h, the number of values at home of the first family's model
        p, h = families[0].num_params, self.size
        at_home = int(self._masks[0][:p].sum())
        self._of_length = {families[0].num_buffers: h - at_home, p: at_home, families[0].size: h}
        self._first: Tensor | None = None  # [h], of a client that has not trained
        self._settled: dict[int, RowRef] = {}  # by client
        self._away: dict[int, RowRef] = {}  # by client: its row from the arrival of its late update on
        self._started: dict[int, RowRef | None] = {}  # by client that trains in this round: its row before the round
        self.acts = any(bool(mask.any()) for mask in self._masks)  # whether anything stays at home

    def columns(self, joined: Joined | None = None) -> Columns:
        """The columns of the h values in models of the first family, or in joined models that begin with such
        models.
        """
        if joined not in self._columns:
            mask = self._masks[0]
            if joined is not None:
                rest = mask.new_zeros(1, joined.family.size - len(mask))
                mask = joined.join(mask.unsqueeze(0), rest)[0]
            self._columns[joined] = Columns.of(mask)
        return self._columns[joined]

    def mask(self, family: ModelFamily) -> Tensor:
        """The mask [D] of the values that stay at home, for one of the run's families."""
        return self._masks[self._families.index(family)]

    def names(self, family: ModelFamily) -> tuple[str, ...]:
        """The names of the parameters and statistics that stay at home, for one of the run's families."""
        mask = self.mask(family)
        return tuple(name for name, (start, shape) in family.layout.items() if shape.numel() and bool(mask[start]))

    def num_shared(self, family: ModelFamily) -> int:
        """How many values of a model clients send, for one of the run's families."""
        return family.size - int(self.mask(family).sum())

    def shared(self, family: ModelFamily) -> Tensor | None:
        """1 for a trainable parameter that clients share, 0 for one at home [P]; None: they share all."""
        return (~self.mask(family)[: family.num_params]).to(family.dtype) if self.acts else None

    def own(self, family: ModelFamily, mine: Tensor, theirs: Tensor) -> Tensor:
        """Models with the shared values of `theirs` and the values at home of `mine`, both [D] or [k, D]."""
        return torch.where(self.mask(family), mine, theirs) if self.acts else theirs

    def sent(self, tensor: Tensor) -> int:
        """How many values of a tensor [..., D], [..., P] or [..., B] clients share; all of a tensor of another
        shape.
        """
        last = tensor.shape[-1] if tensor.dim() else 0
        return tensor.numel() - (tensor.numel() // last * self._of_length.get(last, 0) if last else 0)

    def fill(self, x: Tensor, ids: np.ndarray) -> Tensor:
        """The models [k, D] of clients `ids` [k]: the shared values of x [D] or [k, D], and their own values at
        home.
        """
        return self._filled(x, ids, self._settled)

    def starts(self, x: Tensor, ids: np.ndarray) -> Tensor:
        """As `fill`, for clients that train now: the models from which their local training starts."""
        return self._filled(x, ids, ChainMap(self._away, self._settled))

    def own_start(self, ids: np.ndarray, joined: Joined | None = None) -> Own:
        """The values at home that `starts` puts into models of the first family or into joined models, by
        themselves.
        """
        return Own(self.columns(joined), self._values(ids, ChainMap(self._away, self._settled)))

    def received(self, x: Tensor, ids: np.ndarray) -> Tensor:
        """As `fill`, with the values at home from which these clients started this round."""
        before = {i: ref for i, ref in self._started.items() if ref is not None}
        return self._filled(
            x, ids, ChainMap(before, {i: r for i, r in self._settled.items() if i not in self._started})
        )

    def keep(
        self, ids: np.ndarray, y: Tensor, good: np.ndarray, late: np.ndarray, joined: Joined | None = None
    ) -> None:
        """Each client whose model is `good` [K] keeps its values of the trained models y [K, D]. A client that reports
        `late` [K] gets them when it reports.
        """
        columns = self.columns(joined)
        for k in np.flatnonzero(good).tolist():
            client, homes = int(ids[k]), self._away if late[k] else self._settled
            self._started.setdefault(client, self._settled.get(client))
            self._replace(homes, client, self._rows.put(columns.get(y[k])))

    def arrive(self, clients: Iterable[int]) -> None:
        """Gives clients whose late updates arrive now the values that they kept when they trained."""
        for client in clients:
            if client in self._away:
                self._replace(self._settled, client, self._away.pop(client))

    def revert(self, clients: Iterable[int]) -> None:
        """Gives clients whose update of this round is lost the values at home from which they started."""
        for client in clients:
            if client in self._away:
                self._rows.drop(self._away.pop(client))
            elif client in self._started:
                before = self._started[client]
                # A slot that this round has dropped still holds its row; the row moves to another slot.
                again = None if before is None else self._rows.put(self._rows.get(before))
                self._rows.drop(self._settled.pop(client))
                if again is not None:
                    self._settled[client] = again

    def begin(self) -> None:
        """Starts a round."""
        self._started = {}

    def state_dict(self) -> dict[str, Any]:
        """Everything that rounds change; no tensor in it is ever written to."""
        return {"settled": dict(self._settled), "away": dict(self._away)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a saved state. Raises ValueError for the state of another home."""
        settled, away = dict(state["settled"]), dict(state["away"])
        for ref in (*settled.values(), *away.values()):
            if not isinstance(ref, int) and (not isinstance(ref, Tensor) or ref.shape != (self.size,)):
                raise ValueError("what clients keep at home is of another size")
        if not self.acts and (settled or away):
            raise ValueError("clients keep values at home, and the run has no home")
        self._settled, self._away = settled, away

    @property
    def _rows(self) -> RowStore:
        return self.store.rows(self.place, self.size, self._families[0].dtype)

    def _replace(self, homes: dict[int, RowRef], client: int, ref: RowRef) -> None:
        if client in homes:
            self._rows.drop(homes[client])
        homes[client] = ref

    def _filled(self, x: Tensor, ids: np.ndarray, known: Mapping[int, RowRef]) -> Tensor:
        if not self.acts:
            return x.expand(len(ids), -1)
        found, columns = x.expand(len(ids), -1).clone(), self.columns()
        for model, values in zip(found, self._values(ids, known), strict=True):
            columns.put(model, values)
        return found

    def _values(self, ids: np.ndarray, known: Mapping[int, RowRef]) -> list[Tensor]:
        if self._first is None:
            self._first = self.columns().get(self._families[0].init(self._seed)).clone()
        return [self._rows.get(known[i]) if i in known else self._first for i in ids.tolist()]


def _mask(rule: Home | None, family: ModelFamily) -> Tensor:
    """The mask [D] of the values of a family's model that stay at home."""
    if rule is None:
        return torch.zeros(family.size, dtype=torch.bool, device=family.device)
    head, layout = family.classifier, family.layout
    kept = set(rule.keeps(family.module, None if head is None else head.name, list(layout)))
    require(kept <= layout.keys(), rule, "keeps", "some of the names that it is given", sorted(kept - layout.keys()))
    parts = [torch.full((shape.numel(),), name in kept) for name, (_, shape) in layout.items()]
    return torch.cat(parts).to(family.device)
