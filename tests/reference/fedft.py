"""Fed+FT, a baseline of Feddle (section 5, a2): FedAvg, then fine-tuning on the server's examples."""

from collections.abc import Iterator

from tests.reference.plain import Adam, Case, Fields, Model, Problem, Sent, arrived, fedavg_step, gradient, sgd


def fedft(
    p: Problem, *, lr: float, epochs: int, batch_size: int, max_steps: int | None, late_policy: str, weighting: str
) -> Iterator[Fields]:
    x, sent = p.x0, list[Sent]()
    for t in range(p.num_rounds):
        for k in p.cohort(t):
            sent.append(Sent(t, k.client, k.due, x, sgd(p, x, k.client, t)))
        w, s = fedavg_step(p, x, arrived(sent, t, late_policy), late_policy, weighting)  # Feddle, Eq 1 and 3
        adam = Adam(w)  # fresh in each round
        for b in p.server_batches(t, epochs, batch_size, max_steps):
            g, s = gradient(p.net, w, s, p.server.x[b], p.server.y[b])
            w = adam.step(w, g, lr)
        x = Model(w, s)
        yield {"params": x.vector}


CASES = [
    Case("fedft", fedft, {"epochs": 2, "batch_size": 16, "lr": 0.01}, equations="Feddle, section 5"),
    # minibatches of 89 leave one of a single example
    Case(
        "fedft late",
        fedft,
        {"epochs": 2, "batch_size": 89, "max_steps": 3, "weighting": "uniform"},
        std=1.5,
        equations="Feddle, section 5",
    ),
]
