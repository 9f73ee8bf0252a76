"""DFML (Khalil et al., TMLR 2024), Algorithm 1. https://arxiv.org/abs/2402.01863"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedlab_runner.algorithms.shared.decentralized import (
    Meeting,
    TrainedGroup,
    first_aggregator,
    pick_participants,
    record_exchange,
    train,
)
from fedlab_runner.algorithms.shared.mutual_learning import Learners, mutual_learning, mutual_losses, teacher_weights
from fedlab_runner.core.algorithm import DecentralizedAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.footprint import CohortLoad, Footprint, own_rows
from fedlab_runner.core.model_family import Batch
from fedlab_runner.core.own_models import NamedModels, OwnModels, first_models, updated
from fedlab_runner.core.round_cost import epoch_operations
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.validate import at_least, one_of, unused, within

# Values of the fields of the same names.
SCHEDULES = ("half", "full", "fixed", "anneal")
SCHEDULED = ("opposite", "supervision", "distillation", "both")
ADAPTIVE = ("none", "wsl")
PERIOD = GROWTH = 10  # rounds, of half and full cycles where the fields are null


class DFMLState(NamedTuple):
    """All clients' models and peak models, and the position in the cycle of alpha."""

    models: OwnModels  # W_n
    peaks: OwnModels  # W^_n
    alphas: Tensor  # alpha_n [N] float64, the largest alpha of each client's rounds
    aggregator: int  # the client that aggregates in the next round
    start: int  # the round in which the current period began
    period: int  # its length in rounds


@dataclass(frozen=True)
class DFML(DecentralizedAlgorithm[DFMLState]):
    """Senders and aggregator teach each other on the aggregator's examples: they minimise (1 - alpha) L_label +
    alpha L_KL. Each client keeps a peak model, from the rounds with the largest alpha.

    alpha goes from `alpha_min` to `alpha_max` in periods of `period` rounds, each `growth` rounds longer than the last.
    `schedule` is half a cosine cycle, a full one, fixed (always alpha_max) or anneal (from alpha_max to alpha_min in
    `anneal_rounds`: ANL, Clark et al., ACL 2019). Null `alpha_min`, `period` and `growth` stand for 0, 10 and 10; a key
    that the schedule does not use is null. `scheduled` (Figure 27) says which terms alpha weighs: both in opposite
    directions, the label term (supervision) alone, the KL term (distillation) alone, or both alike.

    Mutual learning takes `epochs` K. `adaptive` wsl weighs samples (Zhou et al., ICLR 2021). With `weighted` a teacher
    counts by its size. With `mutual` false only the aggregator's model learns (vanilla distillation). Participants
    renew their peak models in the `peak_updates` rounds of a period with the largest alphas (null: 0.5 N / senders, at
    least 1). With `regular` the run evaluates the regular models besides the peak models.
    """

    epochs: int
    alpha_min: float | None
    alpha_max: float
    schedule: str
    scheduled: str
    period: int | None
    growth: int | None
    anneal_rounds: int | None
    peak_updates: int | None
    adaptive: str
    weighted: bool
    mutual: bool
    fixed_aggregator: int | None
    regular: bool

    model_copies: ClassVar[int] = 4  # the models before, trained, taught, and the new peaks

    def __post_init__(self) -> None:
        super().__post_init__()
        within("[0, 1]", alpha_min=self.alpha_min, alpha_max=self.alpha_max)
        if (self.alpha_min or 0.0) > self.alpha_max:
            raise ValueError(f"alpha_min must be <= alpha_max ({self.alpha_max}), got {self.alpha_min}")
        one_of(SCHEDULES, schedule=self.schedule)
        one_of(SCHEDULED, scheduled=self.scheduled)
        one_of(ADAPTIVE, adaptive=self.adaptive)
        at_least(0, epochs=self.epochs, growth=self.growth, fixed_aggregator=self.fixed_aggregator)
        at_least(1, period=self.period, peak_updates=self.peak_updates, anneal_rounds=self.anneal_rounds)
        if (self.schedule == "anneal") != (self.anneal_rounds is not None):
            raise ValueError(f"anneal_rounds must be set with schedule anneal, else null, got {self.anneal_rounds}")
        cycles: dict[str, float | None] = {
            "period": self.period,
            "growth": self.growth,
            "peak_updates": self.peak_updates,
        }
        idle = {"anneal": cycles, "fixed": {"alpha_min": self.alpha_min} | cycles}.get(self.schedule, {})
        unused(f"schedule={self.schedule}", **idle)

    @property
    def names_clients(self) -> bool:
        return self.fixed_aggregator is not None

    def check(self, fed: Federation) -> None:
        super().check(fed)
        if self.fixed_aggregator is None:
            return
        if self.fixed_aggregator >= fed.num_clients:
            raise UserError(
                f"algorithm.fixed_aggregator must be an id below the number of clients ({fed.num_clients}), "
                f"got {self.fixed_aggregator}"
            )
        if self.fixed_aggregator not in fed.participants:
            raise UserError(
                f"algorithm.fixed_aggregator must be a client that trains, got {self.fixed_aggregator}, which has no "
                "examples or is one of those that participation.held_out_clients draws; choose another id, such as "
                f"{fed.participants[0]}"
            )

    def footprint(self, fed: Federation, load: CohortLoad) -> Footprint:
        return self.holding(own_rows(self.store_on, fed, load, sets=2))

    def init(self, fed: Federation) -> DFMLState:
        models = first_models(fed)
        alphas = torch.zeros(fed.num_clients, dtype=torch.float64, device=fed.family.device)
        aggregator = first_aggregator(fed) if self.fixed_aggregator is None else self.fixed_aggregator
        return DFMLState(models, models, alphas, aggregator, start=0, period=self.period or PERIOD)

    def round(self, state: DFMLState, fed: Federation) -> DFMLState:
        start, period = state.start, state.period
        if fed.round - start == period:
            start, period = fed.round, period + (GROWTH if self.growth is None else self.growth)
        alpha = self.alpha(fed.round, start, period)
        meeting = pick_participants(fed, state.aggregator)
        trained = train(fed, state.models, meeting.participants)
        record_exchange(fed, [t.group for t in trained], meeting.aggregator)
        # Alpha goes to each sender, t and start to the next aggregator if it is another client.
        successor = meeting.next if self.fixed_aggregator is None else self.fixed_aggregator
        fed.metrics.count_payload(download=len(meeting.senders) + 2 * (successor != meeting.aggregator))
        learnt = self._aggregate(fed, meeting, trained, alpha)
        new = [(t.group, rows) for t, rows in zip(trained, learnt, strict=True)]
        peaks, alphas = state.peaks, state.alphas.clone()
        everyone = self._is_peak(fed.round - start, period, fed.population, len(meeting.senders))
        for group, rows in new:
            ids = torch.from_numpy(group.ids).to(alphas.device)
            renewed = alphas[ids] <= alpha if not everyone else torch.ones_like(ids, dtype=torch.bool)
            of_them = group._replace(ids=group.ids[renewed.cpu().numpy()])
            peaks = updated(fed, self.store_on, peaks, [(of_them, rows[renewed])])
            alphas[ids] = alphas[ids].clamp_min(alpha)
        fed.metrics.report(alpha=alpha)
        models = updated(fed, self.store_on, state.models, new)
        return DFMLState(models, peaks, alphas, successor, start, period)

    def _aggregate(
        self, fed: Federation, meeting: Meeting, trained: Sequence[TrainedGroup], alpha: float
    ) -> list[Tensor]:
        """The models of each group of participants after K epochs at the aggregator (Eq 1) [k, D_a] each."""
        gamma, alpha = self.scales(alpha)
        learners = [Learners(t.group.family, t.after) for t in trained]
        if self.mutual:
            weights = self._weights(learners)

            def objective(logits: Tensor, batch: Batch) -> Tensor:
                return mutual_losses(logits, batch, weights.to(logits), gamma, alpha, self.adaptive == "wsl")

            return mutual_learning(fed, meeting.aggregator, learners, self.epochs, objective)
        own = [torch.from_numpy(t.group.ids == meeting.aggregator).to(t.after.device) for t in trained]
        student = next(Learners(x.family, x.models[mine]) for x, mine in zip(learners, own, strict=True) if mine.any())
        teachers = [
            Learners(x.family, x.models[~mine]) for x, mine in zip(learners, own, strict=True) if not mine.all()
        ]
        of_student = self._weights([student, *teachers])[:1]

        def vanilla(logits: Tensor, batch: Batch) -> Tensor:
            return mutual_losses(logits, batch, of_student.to(logits), gamma, alpha, self.adaptive == "wsl")

        (learnt,) = mutual_learning(fed, meeting.aggregator, [student], self.epochs, vanilla, teachers)
        return [
            torch.where(mine.unsqueeze(1), learnt, x.models) if mine.any() else x.models
            for x, mine in zip(learners, own, strict=True)
        ]

    def _weights(self, learners: Sequence[Learners]) -> Tensor:
        """How much model q (column) teaches model n (row) [M, M] float64."""
        sizes = [float(x.family.num_params) if self.weighted else 1.0 for x in learners for _ in range(len(x.models))]
        return teacher_weights(torch.tensor(sizes, dtype=torch.float64))

    def alpha(self, round: int, start: int, period: int) -> float:
        """alpha in a round of a period of `period` rounds that began with round `start` (Eq 4)."""
        if self.schedule == "fixed":
            return self.alpha_max
        lowest = self.alpha_min or 0.0
        span = self.alpha_max - lowest
        if self.anneal_rounds is not None:
            return self.alpha_max - span * min(1.0, round / self.anneal_rounds)
        # As printed, Eq 4 falls from alpha_max; in the text and in Figures 7 and 11 alpha rises from alpha_min.
        position = round - start
        if self.schedule == "half":
            angle = math.pi * position / (period - 1) if period > 1 else math.pi
        else:
            angle = 2 * math.pi * position / period
        return lowest + span / 2 * (1 - math.cos(angle))

    def scales(self, alpha: float) -> tuple[float, float]:
        """gamma and alpha of Eq 10: the factors of the label term and the KL term."""
        return {
            "opposite": (1 - alpha, alpha),
            "supervision": (1 - alpha, 1.0),
            "distillation": (1.0, alpha),
            "both": (alpha, alpha),
        }[self.scheduled]

    def _is_peak(self, position: int, period: int, num_clients: int, senders: int) -> bool:
        """Whether all participants renew their peak models, even participants that have met a larger alpha.

        `position` counts the rounds of the period from 0. The cycle rises to its last round, or to its middle.
        """
        if self.schedule not in ("half", "full"):
            return True
        wanted = self.peak_updates or max(1, round(0.5 * num_clients / max(senders, 1)))
        if self.schedule == "half":
            return position >= period - wanted
        return abs(2 * position - period) <= wanted  # two rounds at the same distance have the same alpha

    def operations(self, fed: Federation, local: float) -> float:
        return super().operations(fed, local) + epoch_operations(fed, self.epochs, fed.cohort_size + 1)

    def models(self, state: DFMLState) -> OwnModels:
        return state.peaks

    def extra_eval_models(self, state: DFMLState, fed: Federation) -> NamedModels:
        return {"regular": (fed.families, state.models)} if self.regular else {}
