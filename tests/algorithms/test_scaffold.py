"""SCAFFOLD: identities with other methods, and closed forms of its steps."""

from typing import Any

import pytest
import torch

from fedlab_runner.core.update_guard import Guard
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.utils.errors import UserError
from tests.helpers.identities import close, evaluated
from tests.helpers.toy import EQUAL, aggregator, algorithm, federation, local, mlp, normed, run
from tests.helpers.work import BAD, ROUND, Poisoned


def test_scaffold_starts_as_fedavg() -> None:
    fed = {"sizes": EQUAL}
    close(evaluated("scaffold", 1, fed), evaluated("fedavg", 1, fed))
    assert not torch.allclose(evaluated("scaffold", 2, fed), evaluated("fedavg", 2, fed))


@pytest.mark.parametrize(("build", "weighting"), [(mlp, "uniform"), (normed, "size")])
def test_the_server_control_is_the_mean_of_all_clients(build: Any, weighting: str) -> None:
    """But of those that are held out."""
    chosen = UniformParticipation(2, None, 2)
    fed = federation([6, 3, 9, 2, 12, 8, 20], participation=chosen, std=1.5, build=build)
    state = run(algorithm("scaffold", weighting=weighting), fed, 9)
    sizes = {i: int(fed.client_data.num_examples[i]) if weighting == "size" else 1 for i in fed.participants.tolist()}
    close(state.c, sum(sizes[i] * c_i for i, c_i in state.c_i.items()) / sum(sizes.values()))
    assert 2 < len(state.c_i) <= len(sizes) == 5, "others are zero"
    assert state.c.abs().sum() > 0


@pytest.mark.parametrize(("name", "mean", "own"), [("scaffold", "c", "c_i"), ("feddyn", "h", "g_k")])
def test_an_aggregator_acts_on_the_mean_of_what_clients_keep(name: str, mean: str, own: str) -> None:
    state = run(algorithm(name), federation(EQUAL, cohort=3, rule=aggregator("median")), 1)
    kept = torch.stack(list(getattr(state, own).values()))
    close(getattr(state, mean), kept.median(0).values * 3 / 4)


def test_one_client_learns_its_own_gradient() -> None:
    """One full-batch step from x: c_plus = (x - y) / lr = the gradient at x."""
    fed = federation([8], training=local(epochs=1))
    state = run(algorithm("scaffold"), fed, 1)
    close(state.c_i[0], (fed.family.init(0) - state.params) / 0.1)
    close(state.c, state.c_i[0])


def test_scaffold_steps_are_those_of_line_10() -> None:
    """Two rounds of two clients with one full-batch step each, written out."""
    fed = federation([8, 8], training=local(epochs=1))
    built = algorithm("scaffold", server_lr=0.5)
    first = run(built, fed, 1)
    second = run(built, fed, 1, first=1, state=first)
    other = federation([8, 8], training=local(epochs=1))
    other.begin(1, 1.0)
    cohort = other.start_cohort((first.params,))
    y = cohort.train(first.params)
    g = (first.params - y) / 0.1
    corrected = first.params - 0.1 * (g - torch.stack([first.c_i[i] for i in cohort.ids.tolist()]) + first.c)
    close(second.params, first.params + 0.5 * (corrected - first.params).mean(0))


@pytest.mark.parametrize("option", [1, 2])
def test_without_a_learning_rate_controls_stay_what_they_are(option: int) -> None:
    """A schedule may end at zero. Steps of no length tell no gradient (option 2)."""
    fed, built = federation(EQUAL), algorithm("scaffold", option=option)
    first = run(built, fed, 1)
    fed.begin(1, 0.0)
    second = built.round(first, fed)
    assert torch.equal(second.params, first.params)
    controls, before = (torch.stack([state.c_i[i] for i in range(len(EQUAL))]) for state in (second, first))
    assert torch.equal(controls, before) == (option == 2)
    close(second.c, controls.mean(0))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"optimizer": "adam"}, "use local=sgd"),
        ({"optimizer": "adamw"}, "use local=sgd"),
        ({"update_norm": 1.0}, "set local.update_norm=null"),
    ],
)
def test_option_2_refuses_what_is_not_sgd(changes: dict[str, Any], remedy: str) -> None:
    fed = federation(training=local(**changes))
    said = f"^option 2 of algorithm=scaffold computes gradients from the steps of SGD: {remedy}, or algorithm"
    for call in (algorithm("scaffold").check, algorithm("scaffold").init):
        with pytest.raises(UserError, match=said):
            call(fed)
    run(algorithm("scaffold", option=1), fed, 1)


@pytest.mark.parametrize("option", [1, 2])
@pytest.mark.parametrize("into", ["model", "loss"])
def test_a_client_that_counts_with_no_change_keeps_its_control(option: int, into: str) -> None:
    """`nonfinite=zero`: a model that did not move tells no gradient."""
    fed, built = federation(EQUAL, executor=Poisoned(compile=False, into=into)), algorithm("scaffold", option=option)
    fed.trainer.guard = Guard("zero")
    before = run(built, fed, ROUND)
    after = run(built, fed, 1, first=ROUND, state=before)
    assert fed.collect()["late/arrived"] == len(EQUAL) and torch.equal(after.c_i[BAD], before.c_i[BAD])
    assert all(not torch.equal(after.c_i[i], before.c_i[i]) for i in range(BAD))
    close(after.c, sum(after.c_i.values()) / fed.num_clients)
