"""FedAvg: identities with other methods, and closed forms of its steps."""

import torch

from tests.helpers.identities import Sent, arrivals, close, evaluated
from tests.helpers.toy import EQUAL, RAGGED, algorithm, federation, normed


def test_fedavg_is_the_mean_weighted_by_examples() -> None:
    fed = federation(RAGGED, build=normed)
    x = fed.family.init(0)
    fed.begin(0, 1.0)
    y = fed.start_cohort((x,)).train(x)
    order = federation(RAGGED).start_cohort((x,)).ids
    weights = torch.tensor(RAGGED, dtype=torch.float64)[order]
    close(evaluated("fedavg", 1, fed={"build": normed}), (weights.unsqueeze(1) * y).sum(0) / weights.sum())
    close(evaluated("fedavg", 1, fed={"build": normed}, weighting="uniform"), y.mean(0))


def test_uniform_weights_are_size_weights_for_equal_clients() -> None:
    close(evaluated("fedavg", fed={"sizes": EQUAL}, weighting="uniform"), evaluated("fedavg", fed={"sizes": EQUAL}))


def test_late_policies_differ_as_they_say() -> None:
    x = torch.tensor([10.0, 10.0])
    rows, state = torch.tensor([[1.0, 0.0], [3.0, 2.0]]), type(algorithm("fedavg").init(federation([4])))
    sent = arrivals(rows, staleness=[2, 0], num_examples=[1, 3], upload=Sent)
    policies = ("delta", "model", "discard")
    step = {p: algorithm("fedavg", late_policy=p).server_step(state(x), sent, None).params for p in policies}
    assert step["delta"].tolist() == [12.5, 11.5], "x + (1/4 [1, 0] + 3/4 [3, 2])"
    assert step["model"].tolist() == [2.5, 1.5], "1/4 [1, 0] + 3/4 [3, 2]"
    assert step["discard"].tolist() == [13.0, 12.0], "x + [3, 2]"
