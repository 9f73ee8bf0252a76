"""This package: rounds of FedAvg with two worker processes of one thread each."""

from benchmarks.peers.task import Stopwatch, asked
from benchmarks.workloads import Shape, cnn
from fedlab_runner.algorithms.fedavg import FedAvg
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.utils.system import keep_freed_memory


def main() -> None:
    """Train for the rounds asked for, without the run around them: no evaluation, no log, no checkpoint."""
    options = asked("compile")
    keep_freed_memory()  # as a run does
    executor = Processes(workers=2, inner=Loop(compile=options.compile))
    fed = Shape(*options.workload).federation(cnn, executor)
    algorithm = FedAvg(late_policy="delta", weighting="size", server_lr=1.0)
    state, watch = algorithm.init(fed), Stopwatch()
    for round in range(options.rounds):
        fed.begin(round, 1.0)
        state = algorithm.round(state, fed)
        watch.lap()


if __name__ == "__main__":
    main()
