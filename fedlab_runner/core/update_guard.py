"""What comes back from clients is finite, or somebody is told whose it is and what is done about it."""

import logging
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.utils.errors import Diverged

NAMED = 5  # clients in a message
STATISTICS = "in batch norm's statistics, or with a variance below zero"
WARNED = 10  # rounds with a warning; later ones are only counted

_log = logging.getLogger(__name__)


class Guard:
    """Watches the updates of a run's clients for those that are not finite, under a policy.

    stop: the run ends, and its last checkpoint is the state before the round. drop: the client counts as one that has
    not answered; its model is the one it started from. zero: its update is no change at all, and counts; what it sends
    beside it must be finite, or it has not answered. clip: as zero, but only for the values that are not finite; the
    others, which as a rule are huge, are an update that is bounded like any other. Where there is no server, `drop` is
    `zero`: a client that meets others does so with the model that it had.
    """

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._round = 0
        self._failed: set[int] = set()  # clients of this round
        self._clipped: int | None = None  # updates of this round; None: clipping was not asked for
        self._warnings = 0

    def begin(self, round: int) -> None:
        """Starts a round (counted from 0)."""
        self._round, self._failed, self._clipped = round, set(), None

    def trained(
        self, ids: np.ndarray, start: Tensor, y: Tensor, losses: Tensor, family: ModelFamily, norm: float | None
    ) -> tuple[Tensor, Tensor]:
        """The models [K, D] of clients `ids` that went from `start` [D] or [K, D] to y [K, D] with `losses` [K], as the
        policy wants them, and which of them may count [K] bool.

        Changes of the parameters longer than `norm` are scaled down to it; batch norm's statistics, which are no steps,
        stay.
        """
        num_params = family.num_params
        astray = family.bad_statistics(y[:, num_params:])
        good = finite_rows([y, losses]) & ~astray
        if not bool(good.all()):
            bad = ~good
            only = finite_rows([y[:, :num_params], losses]) & astray
            where = f"training loss {float(losses[bad][0]):.3g}" if bool((bad & ~only).any()) else STATISTICS
            self._fail(ids[bad.cpu().numpy()], where)
            y = torch.where(self._lost(y, bad, num_params), start, y)
        return (y if norm is None else self._clip(start, y, num_params, norm)), good

    def learnt(self, client: int, models: Sequence[Tensor]) -> bool:
        """Whether what a client has made of several models is finite; not under `stop`, which ends the run."""
        if all(bool(finite_rows([rows]).all()) for rows in models):
            return True
        self._fail(np.array([client]), "from mutual learning")
        return False

    def answered(self, ids: np.ndarray, upload: Iterable[Tensor]) -> np.ndarray:
        """Which of the clients `ids` send something [K] bool, when they would send the tensors [K, ...]."""
        good = finite_rows(upload).cpu().numpy() if len(ids) else np.ones(0, dtype=bool)
        if not good.all():
            self._fail(ids[~good], "in what it sends")
        return good if self._policy in ("zero", "clip") else good & ~np.isin(ids, list(self._failed))

    def metrics(self) -> dict[str, float]:
        """What happened in this round, where anything can."""
        found: dict[str, float] = {} if self._policy == "stop" else {"updates/not_finite": len(self._failed)}
        return found if self._clipped is None else found | {"updates/clipped": self._clipped}

    def _lost(self, y: Tensor, bad: Tensor, num_params: int) -> Tensor:
        """Which values of the models y [K, D] are to be those of the start, `bad` [K] being not finite: [K, D] bool."""
        if self._policy != "clip":
            return bad.unsqueeze(1).expand_as(y)
        lost = ~torch.isfinite(y)
        lost[:, num_params:] |= bad.unsqueeze(1)  # no bound holds for statistics
        return lost

    def _clip(self, start: Tensor, y: Tensor, num_params: int, norm: float) -> Tensor:
        change = (y - start)[:, :num_params]
        lengths = torch.linalg.vector_norm(change, dim=1, dtype=torch.float64)  # of float32's largest values too
        long = lengths > norm
        self._clipped = (self._clipped or 0) + int(long.sum())
        if not bool(long.any()):
            return y
        # Not start + factor * change: a difference of finite values may be infinite, and infinity by 0 is no number.
        factor = (norm / lengths).to(y.dtype).unsqueeze(1)
        shorter = start[..., :num_params] * (1 - factor) + y[:, :num_params] * factor
        y = y.clone()  # an executor may have kept it
        y[long, :num_params] = shorter[long]
        return y

    def _fail(self, ids: np.ndarray, where: str) -> None:
        several = len(ids) > 1
        names = ", ".join(map(str, ids[:NAMED].tolist())) + (
            f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
        )
        whose = f"update{'s' * several} of client{'s' * several} {names} not finite, {where}"
        if self._policy == "stop":
            raise Diverged(
                f"the run diverged in round {self._round + 1} ({whose}): lower local.lr, set local.clip_norm, or leave "
                "out such updates with nonfinite=drop, which goes on from here with hydra.run.dir=<this run's folder>"
            )
        self._failed.update(ids.tolist())
        self._warnings += 1
        if self._warnings <= WARNED:
            more = "; from now on they are only counted, in updates/not_finite" if self._warnings == WARNED else ""
            _log.warning("round %d: %s (nonfinite=%s)%s", self._round + 1, whose, self._policy, more)


def finite_rows(tensors: Iterable[Tensor]) -> Tensor:
    """Which rows of all the tensors [K, ...] are finite: [K] bool."""
    good: Tensor | None = None
    for rows in tensors:
        # A sum is not finite if one of its terms is not, and takes no memory; finite terms whose sum is too large for
        # the type are looked at one by one.
        mine = torch.isfinite(rows.flatten(1).sum(1) if rows.dim() > 1 else rows)
        if not bool(mine.all()) and rows.dim() > 1:
            mine = torch.isfinite(rows).flatten(1).all(1)
        good = mine if good is None else good & mine
    assert good is not None
    return good
