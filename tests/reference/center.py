"""Center, a baseline of Feddle (section 5, a1): Adam on the server's examples alone, one epoch a round."""

from collections.abc import Iterator

from tests.reference.plain import Adam, Case, Fields, Model, Problem, gradient


def center(p: Problem, *, lr: float, epochs: int, batch_size: int, max_steps: int | None) -> Iterator[Fields]:
    w, s = p.x0
    adam = Adam(w)  # one Adam through the whole training
    for t in range(p.num_rounds):
        left = None if max_steps is None else max_steps - adam.t
        for b in p.server_batches(t, 1 if t < epochs else 0, batch_size, left):
            g, s = gradient(p.net, w, s, p.server.x[b], p.server.y[b])
            w = adam.step(w, g, lr)
        yield {"params": Model(w, s).vector, "slots": [adam.m, adam.v], "steps": adam.t}


CASES = [
    Case("center", center, {"lr": 0.01, "batch_size": 16}, equations="Feddle, section 5"),
    Case("center ends", center, {"lr": 0.01, "epochs": 4, "max_steps": 5}, equations="Feddle, section 5"),
]
