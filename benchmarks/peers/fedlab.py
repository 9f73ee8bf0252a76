"""FedLab's standalone pipeline, as in its example standalone-mnist."""

from typing import Any

from torch.utils.data import DataLoader

from benchmarks.peers.task import LR, Stopwatch, Workload, asked, cnn, datasets


def main() -> None:
    """Train for the rounds asked for."""
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import FedDataset
    from fedlab.core.standalone import StandalonePipeline

    options = asked()
    workload: Workload = options.workload

    class Clients(FedDataset):
        def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader[Any]:
            return DataLoader(datasets(workload)[id], batch_size=batch_size, shuffle=True)

    class Timed(StandalonePipeline):
        def evaluate(self) -> None:  # called at the end of each round
            watch.lap()

    model = cnn()
    handler = SyncServerHandler(model, options.rounds, workload.cohort / workload.clients)
    trainer = SGDSerialClientTrainer(model, workload.clients)
    trainer.setup_dataset(Clients())
    trainer.setup_optim(epochs=1, batch_size=workload.batch, lr=LR)
    datasets(workload)
    pipeline, watch = Timed(handler, trainer), Stopwatch()
    pipeline.main()


if __name__ == "__main__":
    main()
