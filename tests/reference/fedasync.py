"""FedAsync (Xie, Koyejo and Gupta, 2019), Algorithm 1.

The paper counts the staleness t - tau in updates, this project in rounds: updates of one round arrive together. Batch
norm's statistics are a part of the model that is mixed.
"""

from collections.abc import Callable, Iterator

from tests.reference.plain import MLP, Case, Fields, Model, Problem, Sent, arrived
from tests.reference.server_step import Server, without_optimizer


def fedasync(
    p: Problem,
    *,
    alpha: float,
    staleness: str,
    a: float | None,
    b: float | None,
    rho: float,
    optimizer: Callable[[Problem], Server] = without_optimizer,
) -> Iterator[Fields]:
    a, b = (0.5 if staleness == "polynomial" else 10.0) if a is None else a, 4.0 if b is None else b  # section 6
    x, sent, server = p.x0, list[Sent](), optimizer(p)  # Server: initialise x_0
    for t in range(p.num_rounds):
        for k in p.cohort(t):  # Scheduler: trigger training tasks on some workers, send x with its time stamp
            sent.append(Sent(t, k.client, k.due, x, worker(p, k.client, x, t, rho)))
        for u in arrived(sent, t):  # Updater: receive the pair (x_new, tau) from any worker
            alpha_t = alpha * s(t - u.round, staleness, a, b)  # alpha_t <- alpha s(t - tau)
            # x_t <- (1 - alpha_t) x_{t-1} + alpha_t x_new
            mixed = ((1 - alpha_t) * old + alpha_t * new for old, new in zip(x, u.y, strict=True))
            x = server(x, Model(*mixed))
        yield {"params": x.vector}


def s(late: int, staleness: str, a: float, b: float) -> float:
    """The weight of an update that is `late`, section 5.2."""
    match staleness:
        case "constant":
            return 1.0
        case "polynomial":  # s_a(t - tau) = (t - tau + 1)^-a
            return float((late + 1) ** -a)
        case _:  # hinge: s_{a,b}(t - tau) = 1 if t - tau <= b, 1 / (a (t - tau - b) + 1) otherwise
            return 1.0 if late <= b else 1 / (a * (late - b) + 1)


def worker(p: Problem, i: int, x: Model, t: int, rho: float) -> Model:
    """Local iterations on g(w; z) = f(w; z) + rho/2 ||w - x_t||^2."""
    w, statistics = x
    for z in p.batches(i, t):
        g, statistics = p.gradient(w, statistics, z, i)
        w = w - p.local.lr * (g + rho * (w - x.w))
    return Model(w, statistics)


WHERE = "Algorithm 1, section 5.2"
CASES = [
    Case("fedasync proximal", fedasync, {"rho": 0.5}, equations=WHERE),
    Case("fedasync late", fedasync, {"alpha": 0.8}, std=1.5, equations=WHERE),
    Case("fedasync hinge, late", fedasync, {"staleness": "hinge", "a": 2.0, "b": 1.0}, std=1.5, equations=WHERE),
    Case("fedasync constant, late", fedasync, {"staleness": "constant"}, std=1.5, models=(MLP,), equations=WHERE),
]
