"""The loop of a run: train a round, evaluate, record, write a checkpoint."""

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from torch import Tensor

from fedlab_runner.analyses.base import Analysis, observed
from fedlab_runner.checkpoints.state_packing import differs, fits, layout, pack, unpack
from fedlab_runner.checkpoints.store import Checkpointing, CheckpointStore
from fedlab_runner.config.run_id import stopping
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.own_models import each_model
from fedlab_runner.datasets.examples import Examples, digest_of
from fedlab_runner.evaluation.client_models import ClientModels
from fedlab_runner.evaluation.evaluator import Evaluation
from fedlab_runner.evaluation.matrix import CellScores, Matrix
from fedlab_runner.experiment.code_hash import Code
from fedlab_runner.experiment.divergence import check_finite
from fedlab_runner.experiment.first_round import FirstRounds
from fedlab_runner.experiment.first_state import first_state
from fedlab_runner.experiment.resource_estimate import check_needs, seconds_a_round
from fedlab_runner.experiment.resuming import FAILED, STRANGE, check_beginning, understood
from fedlab_runner.experiment.standstill import foreseen
from fedlab_runner.lr_schedules.base import LRSchedule, factor_of, idle
from fedlab_runner.tracking.recorder import Recorder
from fedlab_runner.utils import attempt, signals
from fedlab_runner.utils.durations import duration
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.overwriting import Overwritten, only_read
from fedlab_runner.utils.run_files import OTHER_FOLDER

_log = logging.getLogger(__name__)
WARM_ROUND = 2  # round after a start that is timed; the first one measures, forks and compiles
MIN_REPORTED_SECONDS = 60.0  # of remaining time, below which the log does not mention it


class Snapshot(NamedTuple):
    """The state of a run between two rounds. It shares tensors with the State, as algorithms never write into them."""

    round: int  # rounds done
    state: Any
    federation: dict[str, Any]
    analysis: Any  # the state of the analysis


@dataclass(frozen=True)
class Simulation:
    """An experiment that is ready to run or to continue: everything that its numbers depend on."""

    algorithm: Algorithm[Any]
    fed: Federation
    test: Examples
    evaluation: Evaluation
    analysis: Analysis[Any]
    lr_schedule: LRSchedule
    rounds: int
    examples: str  # a digest of all training, server and test examples, and of the delays or the topology

    def run(
        self,
        recorder: Recorder,
        store: CheckpointStore,
        checkpointing: Checkpointing,
        fingerprint: dict[str, Any],
        code: Code,
        on_start: Callable[[], None],
        on_round: Callable[[int], None] = lambda round: None,
    ) -> Any:
        """Runs until `rounds` rounds are done, from the newest checkpoint on if there is one; returns the final State.

        The loop calls `on_start` when the recorder is open, and `on_round` after each round; their exceptions end the
        run. However the run ends, the loop writes a checkpoint of the last whole round. Raises Diverged when a model or
        the training loss is not finite.
        """
        find_damage = partial(self._find_damage, recorder, checkpointing, code)
        saved = store.load(fingerprint, self.fed.family.device, find_damage, also=[stopping(fingerprint)])
        kept = store.keep + 1
        takes = check_needs(self.algorithm, self.fed, self.rounds, store.folder, kept, checkpointing.rounds)
        initial = self._initial()
        now, wall = self._resume(initial, *saved) if saved else (initial, 0.0)
        self.fed.client_state.retain(store.rounds())
        began = time.monotonic() - wall
        first, saved_round, saved_at, saving = now.round, now.round, time.monotonic(), 0.0
        begun = saved is not None  # whether there is a state to save: none before the first evaluation
        a_round = FirstRounds(self.algorithm, initial.state)
        no_memory = initial.analysis  # of the analysis, before the first round
        del initial  # which may be large
        tested, evaluation = ({}, None) if saved else self._first_evaluation(now.state)  # before a tracker opens
        recorder.start(now.round if saved else -1)
        on_start()

        def save() -> None:
            nonlocal saved_round, saved_at, saving
            if begun and (now.round > saved_round or now.round not in store.rounds()):
                attempt.at("checkpoint", now.round)
                began_saving = time.monotonic()
                recorder.sync()  # the rows of a checkpoint's rounds must be on disk before it
                rows = self.fed.client_state
                with rows.naming(now.round) as named:
                    state = pack(now.state, named, of=f"the State that {type(self.algorithm).__name__}.round gives")
                    payload = {"state": state, "federation": pack(now.federation, named)}
                payload["federation"]["client_state"] = rows.state_dict(now.round)
                rows.sync()  # and so must the clients' rows
                payload["analysis"] = pack(now.analysis)
                payload |= {"wall": time.monotonic() - began, "metrics": recorder.digest(now.round)}
                payload |= {"examples": self.examples, "layout": layout(now.state), "frozen": self.frozen}
                payload["code"] = code
                store.save(now.round, fingerprint, payload)
                rows.retain(store.rounds())
                saved_round, saved_at = now.round, time.monotonic()
                saving = saved_at - began_saving

        try:
            if not saved:
                recorder.log(0, tested, {"time/wall": time.monotonic() - began})
                begun = True
                if (reason := foreseen(self.algorithm, self.fed, self.rounds)) is not None:
                    _log.warning("the server's model will not change: %s", reason)
            if idle(self.lr_schedule, self.rounds):
                why = "in each of them the rate is local.lr; ask for more rounds or change its keys"
                _log.warning("lr_schedule has no effect in %d rounds: %s", self.rounds, why)
            attempt.at("time estimate")
            _log.info("%s; %s", self._expected_time(now.round, evaluation), takes)
            while now.round < self.rounds:
                started = time.monotonic()
                with understood(first, FAILED) if saved and saved_round == first else nullcontext():
                    memory, seen = self._analyse(now, no_memory, begins=now.round == first)
                    state, metrics = self._round(now, a_round)
                trained = time.monotonic()
                metrics |= seen | self._evaluate(state, now.round + 1)
                done = time.monotonic()
                timings = {"round": trained - started, "evaluation": done - trained, "wall": done - began}
                timings = self.fed.metrics.timings | {f"time/{key}": value for key, value in timings.items()}
                attempt.at("records")
                with signals.deferred():  # so that the checkpoint of a stopped run has the round of the last row
                    recorder.log(now.round + 1, metrics, timings)
                    now = Snapshot(now.round + 1, state, self.fed.state_dict(), memory)
                if self.evaluation.due(now.round, self.rounds):
                    evaluation = done - trained
                if now.round in (first + 1, first + WARM_ROUND):
                    self._say_time_left(now.round, trained - started, evaluation, now.round == first + WARM_ROUND)
                if checkpointing.due(now.round, saved_round, done - saved_at, saving):
                    save()
                signals.check()
                on_round(now.round)
        except Overwritten:
            raise
        except BaseException:
            try:
                save()
            except Exception as error:  # the first error is the one to report
                _log.warning("the last round could not be saved in a checkpoint: %s", error)
            raise
        save()
        attempt.at("plots and summary")
        return now.state

    def _expected_time(self, done: int, evaluation: float | None) -> str:
        """The expected time of the remaining rounds, in words. `evaluation`: the seconds of an evaluation, if known."""
        rounds = range(done + 1, self.rounds + 1)
        if not rounds:
            return "no round is left"
        left = "1 round is left" if len(rounds) == 1 else f"{len(rounds):,} rounds are left"
        computing = duration(len(rounds) * seconds_a_round(self.algorithm, self.fed))
        words = f"{left}: one after another, clients and server compute for {computing}"
        if evaluation is None:
            return words
        times = sum(self.evaluation.due(round, self.rounds) for round in rounds)
        return f"{words}; evaluation {duration(times * evaluation)}"

    def _say_time_left(self, done: int, a_round: float, evaluation: float | None, warm: bool) -> None:
        """Logs the remaining time, computed from the seconds of a round and of an evaluation.

        A round that is not `warm`, the first one, takes longer than the others, as it may measure and compile.
        """
        rounds = range(done + 1, self.rounds + 1)
        evaluations = sum(self.evaluation.due(round, self.rounds) for round in rounds) * (evaluation or 0.0)
        if (left := len(rounds) * a_round + evaluations) >= MIN_REPORTED_SECONDS:
            took, all_of_them = duration(a_round), ("" if warm else "at most ") + duration(left)
            _log.info("round %d took %s: %s for the %d that are left", done, took, all_of_them, len(rounds))

    def _initial(self) -> Snapshot:
        return Snapshot(0, first_state(self.algorithm, self.fed), self.fed.state_dict(), self.analysis.init())

    def _analyse(self, now: Snapshot, first: Any, begins: bool) -> tuple[Any, dict[str, float]]:
        """The memory of the analysis, which began as `first`, after the round that begins now, and its metrics."""
        self.fed.begin(now.round, factor_of(self.lr_schedule, now.round))
        with only_read(self.analysis, "observe", "its memory or the State", (now.analysis, begins and now.state)):
            return observed(self.analysis, first, now.analysis, now.state, self.algorithm, self.fed)

    def _round(self, now: Snapshot, a_round: Callable[..., Any]) -> tuple[Any, dict[str, float]]:
        """One round from a snapshot, as `a_round` does it: the next State and the round's metrics."""
        fed = self.fed
        fed.begin(now.round, factor_of(self.lr_schedule, now.round))
        attempt.at("algorithm", now.round + 1)
        state = a_round(now.state, fed)
        metrics = {**fed.collect(), "local/lr": fed.lr}
        check_finite(self.algorithm, fed, now.state, state, metrics)
        return state, metrics

    def _evaluate(self, state: Any, round: int) -> dict[str, float]:
        if not self.evaluation.due(round, self.rounds):
            return {}
        attempt.at("evaluation", round)
        fed, models = self.fed, self.algorithm.models(state)
        if isinstance(models, Tensor):
            metrics = self.evaluation.evaluate(fed.executor, fed.family, models, self.test)
        else:
            metrics = self._client_models.evaluate(models, self.algorithm.extra_eval_models(state, fed))
        return metrics | self._matrix.evaluate(state, round, metrics)

    def by_client(self, state: Any, round: int) -> dict[str, CellScores]:
        """The cells of the evaluation matrix client by client, for the State after `round` rounds."""
        return self._matrix.by_client(state, round)

    def evaluated(self, state: Any) -> list[tuple[ModelFamily, Tensor]]:
        """Each evaluated model [D] with its family; clients' models are in the order of the clients."""
        return list(each_model(self.fed, self.algorithm.models(state)))

    @cached_property
    def _client_models(self) -> ClientModels:
        return ClientModels(self.evaluation, self.fed, self.test)

    @cached_property
    def _matrix(self) -> Matrix:
        return Matrix(self.evaluation, self.algorithm, self.fed, self.test, self._client_models)

    def _first_evaluation(self, state: Any) -> tuple[dict[str, float], float]:
        """The metrics of the first model, and the seconds. Raises UserError if `evaluation.metric` is none of them."""
        began = time.monotonic()
        metrics, wanted = self._evaluate(state, 0), self.evaluation.metric
        if wanted not in metrics:
            raise UserError(f"evaluation.metric must be one of {', '.join(metrics)}, got {wanted}")
        return metrics, time.monotonic() - began

    def _find_damage(
        self, recorder: Recorder, checkpointing: Checkpointing, code: Code, round: int, payload: dict[str, Any]
    ) -> str | None:
        """Describes the first file of the run that differs from the time of a checkpoint; None if no file differs.

        Raises UserError if examples, code or frozen weights differ from those of the checkpoint.
        """
        with understood(round, STRANGE):
            check_beginning(payload, checkpointing, examples=self.examples, code=code, frozen=self.frozen)
            return recorder.find_damage(round, payload["metrics"]) or self.fed.client_state.find_damage(
                round, payload["federation"]["client_state"]
            )

    @cached_property
    def frozen(self) -> str:
        """A digest of the models' frozen weights, which no State holds."""
        modules = [family.module for family in self.fed.families]
        return digest_of(p.detach() for module in modules for p in module.parameters() if not p.requires_grad)

    def restored(self, round: int, payload: dict[str, Any], first: Any = None) -> Any:
        """The State in the checkpoint after `round` rounds, where the `first` one is known (None: it is not); also
        restores the federation. Raises UserError for a checkpoint of another run or version.
        """
        first = first_state(self.algorithm, self.fed) if first is None else first
        with understood(round, STRANGE):
            if not fits(payload["state"], payload["layout"], like=first):
                name = type(self.algorithm).__name__
                raise UserError(
                    f"the checkpoint after round {round} is of a version whose State of {name} had other fields: use "
                    f"that version (commands.jsonl has its commit), or give {OTHER_FOLDER}"
                )
            self.fed.load_state_dict(payload["federation"])
            self.fed.round = max(0, round - 1)  # the last one, whose minibatches a personal model may depend on
            state = self.fed.client_state.named(payload["state"])
            if differs(state, like=first):
                raise ValueError("its State has other parts, types or sizes")
            return unpack(state, like=first)

    def _resume(self, initial: Snapshot, round: int, payload: dict[str, Any]) -> tuple[Snapshot, float]:
        """The snapshot after `round` rounds, and the seconds that the run had taken until then."""
        state = self.restored(round, payload, initial.state)
        with understood(round, STRANGE):
            memory = unpack(payload["analysis"], like=initial.analysis)
            return Snapshot(round, state, self.fed.state_dict(), memory), float(payload["wall"])
