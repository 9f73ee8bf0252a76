"""The exceptions that the command line shows without a traceback."""

from signal import SIGINT


class UserError(ValueError):
    """A fault that the user can mend: one line that names the key or file and the remedy."""


class RunFailed(RuntimeError):
    """A run cannot continue, although its command and config are right: one line with the loss and the remedy."""


class Diverged(RunFailed):
    """The model or its loss is no longer finite."""


class Pruned(Exception):
    """The rule `pruning` ended the run after `round`; `objective` is that of the evaluations so far."""

    def __init__(self, round: int, objective: float, reason: str) -> None:
        super().__init__(f"pruned after round {round}: {reason}")
        self.round, self.objective, self.reason = round, objective, reason


class Interrupted(BaseException):
    """A signal, with this number, asked the run to stop; the run has been checkpointed."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by {'Ctrl-C' if signal == SIGINT else f'signal {signal}'}")
        self.signal = signal

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[int]]:
        return type(self), (self.signal,)  # a launcher's worker returns it pickled
