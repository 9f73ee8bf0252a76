"""Finds clients' models and updates that are not finite, and treats them by a policy."""

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.utils.errors import Diverged
from fedlab_runner.utils.run_files import THIS_FOLDER

MAX_NAMED_CLIENTS = 5  # in one message
MAX_WARNINGS = 10  # later ones are only counted
DIVERGED_LOSS = 1000.0  # above which a model has diverged: one that only guesses has the logarithm of the classes
STATISTICS = "in batch norm's statistics, or with a variance below zero"  # a place of what is not finite, in messages

_log = logging.getLogger(__name__)


class Guard:
    """Finds the updates of a run's clients that are not finite, and treats them by a policy (the key `nonfinite`).

    - stop: the run ends; its last checkpoint is from before the round.
    - drop: the client counts as one that has not answered, and keeps the model that it started from.
    - zero: the client counts, with an update of zero. If other tensors that it sends are not finite, it has not
      answered.
    - clip: the client counts. Values that are not finite do not change; `update_norm` bounds the rest of the update.

    Without a server `drop` acts as `zero`: the client meets others with the model that it had before.
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._round = 0
        self._failed: set[int] = set()  # clients of this round
        self._clipped: set[int] | None = None  # clients of this round; None: no `update_norm` is set
        self._warnings = 0

    @property
    def stops(self) -> bool:
        """Whether the run ends where something is not finite."""
        return self._policy == "stop"

    def begin(self, round: int) -> None:
        """Starts a round (counted from 0)."""
        self._round, self._failed, self._clipped = round, set(), None

    def trained(
        self,
        ids: np.ndarray,
        starts: Callable[[], Tensor],
        y: Tensor,
        losses: Tensor,
        family: ModelFamily,
        norm: float | None,
        start_loss: Callable[[int], float],
    ) -> tuple[Tensor, Tensor]:
        """The models [K, D] after the policy, from the trained models y [K, D] of clients `ids`, which started from
        `starts()` [D] or [K, D] and had `losses` [K]; and the mask [K] of the models that were finite.
        `start_loss(row)` is the loss, on a client's examples, of the model that it started from.

        The guard scales a change of the parameters that is longer than `norm` down to it, and not batch norm's
        statistics.
        """
        num_params = family.num_params
        astray = family.bad_statistics(y[:, num_params:])
        good = finite_rows([y, losses]) & ~astray
        if not bool(good.all()):
            bad = ~good
            only = finite_rows([y[:, :num_params], losses]) & astray
            where = f"training loss {float(losses[bad][0]):.3g}" if bool((bad & ~only).any()) else STATISTICS
            rows = np.flatnonzero(bad.cpu().numpy())
            self._fail(ids[rows], where, lambda: start_loss(int(rows[0])))
            y = torch.where(self._lost(y, bad, num_params), starts(), y)
        return (y if norm is None else self._clip(ids, starts(), y, family.models, norm)), good

    def counts(self, good: Tensor) -> Tensor:
        """The mask [K] of the models that clients keep after the policy, from that of the finite ones."""
        return torch.ones_like(good) if self._policy == "clip" else good

    def learnt(self, client: int, models: Sequence[Tensor]) -> bool:
        """Whether the models that a client taught are finite. Under `stop` the run ends if they are not."""
        if all(bool(finite_rows([rows]).all()) for rows in models):
            return True
        self._fail(np.array([client]), "from mutual learning")
        return False

    def answered(self, ids: np.ndarray, upload: Iterable[Tensor]) -> np.ndarray:
        """The mask [K] of the clients `ids` that answer with the tensors [K, ...] of their updates."""
        good = finite_rows(upload).cpu().numpy() if len(ids) else np.ones(0, dtype=bool)
        if not good.all():
            self._fail(ids[~good], "in its upload")
        return good if self._policy in ("zero", "clip") else good & ~np.isin(ids, list(self._failed))

    def metrics(self) -> dict[str, float]:
        """The counts of this round that the set policies and bounds have."""
        found: dict[str, float] = {} if self._policy == "stop" else {"updates/not_finite": len(self._failed)}
        return found if self._clipped is None else found | {"updates/clipped": len(self._clipped)}

    def _lost(self, y: Tensor, bad: Tensor, num_params: int) -> Tensor:
        """The mask [K, D] of the values of y that the start's values replace; the models `bad` [K] are not finite."""
        if self._policy != "clip":
            return bad.unsqueeze(1).expand_as(y)
        lost = ~torch.isfinite(y)
        lost[:, num_params:] |= bad.unsqueeze(1)  # `update_norm` does not bound statistics
        return lost

    def _clip(self, ids: np.ndarray, start: Tensor, y: Tensor, models: list[int], norm: float) -> Tensor:
        """The models y [K, D] with changes of at most this norm, for each of the `models` that a row holds."""
        clipped, begin, self._clipped = y, 0, self._clipped or set()
        for count in models:
            part, begin = slice(begin, begin + count), begin + count
            # In float64 a square of float32's largest values is finite.
            lengths = torch.linalg.vector_norm((y - start)[:, part], dim=1, dtype=torch.float64)
            long = lengths > norm
            self._clipped.update(ids[long.cpu().numpy()].tolist())
            if not bool(long.any()):
                continue
            # Not start + factor * change: a difference of finite values may be infinite, and infinity times 0 is NaN.
            factor = (norm / lengths).to(y.dtype).unsqueeze(1)
            shorter = start[..., part] * (1 - factor) + y[:, part] * factor
            clipped = y.clone() if clipped is y else clipped  # an executor may keep y
            clipped[long, part] = shorter[long]
        return clipped

    def _fail(self, ids: np.ndarray, where: str, start_loss: Callable[[], float] = lambda: 0.0) -> None:
        if not self.stops:
            if self._failed.issuperset(ids.tolist()):  # named before in this round, which may train them several times
                return
            self._failed.update(ids.tolist())
            self._warnings += 1
            if self._warnings > MAX_WARNINGS:
                return
        several = len(ids) > 1
        named, more = ids[:MAX_NAMED_CLIENTS].tolist(), len(ids) - MAX_NAMED_CLIENTS
        names = ", ".join(map(str, named)) + (f" and {more} more" if more > 0 else "")
        whose = f"update{'s' * several} of client{'s' * several} {names} not finite, {where}"
        if before := not (loss := start_loss()) <= DIVERGED_LOSS:
            whose += f", from a model that had diverged before, with the loss {loss:.3g}"
        if self.stops:
            way = "lower local.lr or the algorithm's rates, or set local.clip_norm"
            if not before:
                ways = "lower local.lr, set local.clip_norm, or leave out such updates with nonfinite=drop"
                way = f"{ways}, which continues from here with {THIS_FOLDER}"
            raise Diverged(f"the run diverged in round {self._round + 1} ({whose}): {way}")
        last = self._warnings == MAX_WARNINGS
        then = "; from now on they are only counted, in updates/not_finite" if last else ""
        _log.warning("round %d: %s (nonfinite=%s)%s", self._round + 1, whose, self._policy, then)


def finite_rows(tensors: Iterable[Tensor]) -> Tensor:
    """The mask [K] of the rows that are finite in all tensors [K, ...]."""
    good: Tensor | None = None
    for rows in tensors:
        # A sum takes no memory and is not finite if a term is not. If finite terms may have too large a sum, this
        # checks every value.
        mine = torch.isfinite(rows.flatten(1).sum(1) if rows.dim() > 1 else rows)
        if not bool(mine.all()) and rows.dim() > 1:
            mine = torch.isfinite(rows).flatten(1).all(1)
        good = mine if good is None else good & mine
    assert good is not None
    return good
