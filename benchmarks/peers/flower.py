"""Flower's simulation engine: a ServerApp with its FedAvg, a ClientApp as in its quickstart for PyTorch, two actors."""

from typing import Any

from benchmarks.peers.task import Stopwatch, Workload, asked, cnn, datasets, fit


def main() -> None:
    """Train for the rounds asked for."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    options = asked()
    workload: Workload = options.workload
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        module = cnn()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        dataset = datasets(workload)[int(context.node_config["partition-id"])]
        fit(module, dataset, workload.batch)
        content = {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": len(dataset)}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        def end_of_round(round: int, arrays: ArrayRecord) -> Any:
            if round:  # 0: before the first
                watch.lap()

        strategy = FedAvg(
            fraction_train=workload.cohort / workload.clients,
            min_train_nodes=workload.cohort,
            min_available_nodes=workload.clients,
            fraction_evaluate=0.0,
        )
        initial, watch = ArrayRecord(cnn().state_dict()), Stopwatch()
        strategy.start(grid=grid, initial_arrays=initial, num_rounds=options.rounds, evaluate_fn=end_of_round)

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=workload.clients,
        backend_config={"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main()
