"""The exceptions that the command line shows in one line."""


class UserError(ValueError):
    """Something that the user can mend: one line that names the key or file and the way out."""


class RunFailed(RuntimeError):
    """A run cannot go on, by no fault of its command and config: one line that names what is lost and the way out."""


class Diverged(RunFailed):
    """The model or its loss is no longer finite."""


class Pruned(Exception):
    """The rule `pruning` has given the run up after `round`; `objective` is that of its evaluations so far."""

    def __init__(self, round: int, objective: float, reason: str) -> None:
        super().__init__(f"given up after round {round}: {reason}")
        self.round, self.objective, self.reason = round, objective, reason


class Interrupted(BaseException):
    """A signal asked the run to stop; it has been checkpointed. `signal` is its number."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"stopped by signal {signal}")
        self.signal = signal

    def __reduce__(self) -> tuple[type["Interrupted"], tuple[int]]:
        return type(self), (self.signal,)  # a launcher's worker sends it back pickled
