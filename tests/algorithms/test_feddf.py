"""FedDF: identities with other methods, and closed forms of its steps."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedlab_runner.algorithms.shared.averaging import LATE_POLICIES, ModelUpdate
from fedlab_runner.core.updates import Updates
from tests.helpers.identities import LATE, OUT_OF_DOMAIN, close, evaluated
from tests.helpers.toy import algorithm, federation, local, normed, run, server_data


@pytest.mark.parametrize("server", [None, OUT_OF_DOMAIN], ids=["in", "out"])
@pytest.mark.parametrize("off", [{"epochs": 0}, {"max_steps": 0}])
def test_feddf_without_steps_is_fedavg(server: Any, off: dict[str, int]) -> None:
    for policy in LATE_POLICIES:
        mine = evaluated("feddf", 4, LATE | {"server": server}, late_policy=policy, **off)
        close(mine, evaluated("fedavg", 4, LATE, late_policy=policy))


@pytest.mark.parametrize("policy", LATE_POLICIES)
def test_feddf_with_one_teacher_changes_nothing(policy: str) -> None:
    """Adam would step by `lr` from a gradient that is rounding."""
    one, other = (run(algorithm(name, late_policy=policy), federation([12]), 3) for name in ("feddf", "fedavg"))
    assert torch.equal(one.params, other.params)


def test_feddf_with_one_teacher_adapts_batch_norm() -> None:
    one, other = (run(algorithm(name), federation([12], build=normed), 1) for name in ("feddf", "fedavg"))
    assert not torch.isclose(one.params, other.params, atol=1e-4).all()


@pytest.mark.parametrize("server", [None, OUT_OF_DOMAIN], ids=["in", "out"])
def test_teachers_may_be_asked_once_or_at_every_epoch(server: Any) -> None:
    one, other = (
        evaluated("feddf", 3, {"build": normed, "server": server}, epochs=3, batch_size=16, cache_teachers=cached)
        for cached in (True, False)
    )
    close(one, other, atol=1e-7)


@pytest.mark.parametrize("cosine", [True, False])
def test_feddf_is_distillation_written_out(cosine: bool) -> None:
    fed = federation([8, 20], server=server_data(40))
    built: Any = algorithm("feddf", lr=0.01, epochs=3, batch_size=40, temperature=2.0, clip_norm=0.05, cosine=cosine)
    fed.begin(0, 1.0)
    x = fed.family.init(0)
    y = fed.start_cohort((x,)).train(x)
    other = federation([8, 20], server=server_data(40))
    result = run(built, other, 1).params
    module = fed.family.module
    module.load_state_dict(fed.family.state_dict(run(algorithm("fedavg"), federation([8, 20]), 1).params))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    assert fed.server_data is not None
    inputs = fed.server_data.inputs
    teacher = torch.stack([federation().family.predict(w, inputs) for w in y]).mean(0)
    for t in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * ((1 + math.cos(math.pi * t / 3)) / 2 if cosine else 1)
        optimizer.zero_grad()
        p, q = (teacher / 2).softmax(1), (module(inputs) / 2).log_softmax(1)
        (p * (p.log() - q)).sum(1).mean().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.05)
        optimizer.step()
    close(result, fed.family.vector(module), atol=1e-6)  # torch adds 1e-6 to the norm that it clips


def test_feddf_learns_from_the_models_that_clients_had_not_from_changes() -> None:
    """A late client's model is what it trained, whatever has become of the server's since."""
    fed = federation([8, 8], server=server_data(40))
    built: Any = algorithm("feddf", epochs=400, batch_size=40, lr=0.02, cosine=False)
    state = built.init(fed)
    good = run(algorithm("fedavg"), federation([60], training=local(epochs=30)), 1).params
    zero = torch.zeros_like(good).unsqueeze(0)
    upload = ModelUpdate(zero, zero[:, :0], good.unsqueeze(0))
    late = Updates(upload, torch.tensor([0]), torch.tensor([8]), torch.tensor([3]))
    after = built.server_step(state, late, fed)
    assert fed.server_data is not None
    loss = [
        float(F.kl_div(*(fed.family.predict(w, fed.server_data.inputs).log_softmax(1) for w in (student, good)),
                       reduction="batchmean", log_target=True))
        for student in (state.params, after.params)
    ]  # fmt: skip
    assert loss[1] < 0.02 * loss[0]


def test_feddf_ignores_labels() -> None:
    server = server_data(40)
    shuffled = type(server)(server.inputs, server.targets.flip(0), server.num_classes, True)
    close(evaluated("feddf", 2, {"server": server}), evaluated("feddf", 2, {"server": shuffled}))


def test_feddf_skips_rounds_without_arrivals() -> None:
    fed = federation([8, 8], std=1e6)
    state = run(algorithm("feddf"), fed, 2)
    assert torch.equal(state.params, fed.family.init(0))
