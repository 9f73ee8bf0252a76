"""FedProx: identities with other methods, and closed forms of its steps."""

import torch

from tests.helpers.identities import close, evaluated
from tests.helpers.toy import algorithm, federation, local, normed, run


def test_fedprox_without_pull_is_fedavg() -> None:
    close(evaluated("fedprox", mu=0.0), evaluated("fedavg"))
    assert not torch.allclose(evaluated("fedprox", mu=1.0), evaluated("fedavg"))


def test_fedprox_pulls_with_mu_times_the_distance() -> None:
    """One full-batch step: the gradient of mu/2 ||w - x||^2 is zero at x and mu (w - x) after it."""
    fed = federation([8], training=local(epochs=2, lr=0.1))
    x = fed.family.init(0)
    after_one = run(algorithm("fedavg"), federation([8], training=local(epochs=1, lr=0.1)), 1).params
    after_two = run(algorithm("fedavg"), fed, 1).params
    pulled = run(algorithm("fedprox", mu=0.7), federation([8], training=local(epochs=2, lr=0.1)), 1).params
    close(pulled, after_two - 0.1 * 0.7 * (after_one - x))


def test_fedprox_leaves_batch_norm_statistics_out_of_the_distance() -> None:
    fed = federation([8], build=normed, training=local(epochs=1))
    one_step = evaluated("fedprox", 1, fed={"sizes": [8], "build": normed}, mu=5.0)
    assert torch.isfinite(one_step[fed.family.num_params :]).all()
    shared = federation([8], build=normed, training=local(epochs=1))
    close(run(algorithm("fedprox", mu=5.0), shared, 1).params, run(algorithm("fedavg"), fed, 1).params)
