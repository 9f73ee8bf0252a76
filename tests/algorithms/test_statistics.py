"""Batch norm's running statistics are state: every server replaces its own by a mean of the clients', late or not."""

import copy
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlab_runner.algorithms.shared import averaging_server
from fedlab_runner.algorithms.shared.averaging import LATE_POLICIES, MODEL_POLICIES
from fedlab_runner.algorithms.shared.personal import Personal
from fedlab_runner.core.algorithm import ServerAlgorithm
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.updates import Updates
from fedlab_runner.core.work import Work
from fedlab_runner.executors.loop import Loop
from fedlab_runner.experiment.loop import Simulation, Snapshot
from fedlab_runner.lr_schedules.constant import ConstantLR
from fedlab_runner.utils.errors import Diverged
from tests.helpers.toy import ALGORITHMS, RAGGED, algorithm, federation, local, normed, run, stacked, tensors

SERVED = [name for name in ALGORITHMS if not algorithm(name).decentralized and name not in ("center", "standalone")]
ALONE = [name for name in ALGORITHMS if name not in (*SERVED, "center")]
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8, 5, 7, 2, 10], "cohort": 3, "std": 4.0, "build": normed}
# Nothing but the clients' work moves statistics then; and every step is larger than the mean of what arrives.
STILL: dict[str, Any] = {"epochs": 0, "steps": 0, "server_lr": 2.0, "buffer_size": 3}


@dataclass(frozen=True)
class Watched(Loop):
    """A loop that notes the statistics of all models that it trains."""

    seen: list[Tensor] = field(default_factory=list)

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        y, losses = super().train(work)
        self.seen.extend(y[:, work.family.num_params :].clone())
        return y, losses


def still(name: str, **changes: Any) -> Any:
    known = {each.name for each in fields(algorithm(name))}  # type: ignore[arg-type]
    return algorithm(name, **{key: value for key, value in (STILL | changes).items() if key in known})


def policies(name: str) -> list[str]:
    """What late updates may be to an algorithm; those without the choice have one way."""
    if "late_policy" not in {each.name for each in fields(algorithm(name))}:  # type: ignore[arg-type]
        return ["its own"]
    return [p for p in LATE_POLICIES if p in MODEL_POLICIES or name not in ("fedma", "gamf")]


@pytest.mark.parametrize(
    ("name", "policy", "std"),
    [
        *((name, policy, 4.0) for name in SERVED for policy in policies(name)),
        *((name, policies(name)[0], 0.0) for name in SERVED + ALONE),  # nothing is late: policies agree
    ],
)
def test_statistics_are_means_of_what_clients_had(name: str, policy: str, std: float) -> None:
    """Each, of the server's or of a client's own, lies between the least and the greatest that any client has reported,
    or that all began with.
    """
    built, watched = still(name, late_policy=policy), Watched(compile=False)
    fed = federation(**LATE | {"std": std, "executor": watched})
    state, p = built.init(fed), fed.family.num_params
    watched.seen.append(fed.family.init(0)[p:])
    moved = False
    for round in range(6):
        state = run(built, fed, 1, first=round, state=state)
        models = built.models(state)
        statistics = (models.unsqueeze(0) if isinstance(models, Tensor) else stacked(models))[:, p:]
        seen = torch.stack([each[: fed.family.num_buffers] for each in watched.seen])  # before those of joined models
        assert (statistics >= seen.amin(0) - 1e-9).all() and (statistics <= seen.amax(0) + 1e-9).all()
        moved = moved or bool((statistics != seen[0]).any())
    assert moved or policy == "discard"


def arriving(fed: Federation, statistics: Tensor, upload: Any, staleness: list[int]) -> Updates[Any]:
    """Updates with these statistics [A, B] whose parameters go in all directions, so that FedExP extrapolates."""
    a, p = len(statistics), fed.family.num_params
    own = {"statistics": statistics, "models": torch.cat([statistics.new_ones(a, p), statistics], 1)}
    own["tau"] = statistics.new_full((a,), 2.0)
    apart = torch.randn(a, p, generator=torch.Generator().manual_seed(0), dtype=statistics.dtype)
    own["squares"] = apart.square().sum(1)
    rows = [own.get(name, apart) for name in upload._fields]
    sizes = torch.arange(1, a + 1)
    return Updates(upload(*rows), torch.arange(a), sizes, torch.tensor(staleness))


def upload_of(built: ServerAlgorithm[Any, Any], fed: Federation) -> Any:
    fed.begin(0, 1.0)
    state = built.init(fed)
    return type(built.client_update(state, fed.start_cohort(built.broadcast(state))))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("fedavg", [1, 2, 3, 4]),
        ("fedexp", [1, 2, 3, 4]),
        ("fednova", [1, 2, 3, 4]),
        ("feddyn", [1, 1, 1, 1]),
        ("scaffold", [1, 1, 1, 1]),
        ("feddle", [1, 1, 1, 1]),
        ("fedbuff", [1, 1, 0, 0]),
        ("ca2fl", [1, 1, 0, 0]),
    ],
)
def test_which_mean(name: str, weights: list[int]) -> None:
    """By the weights of the rule; buffers of two: of those that make a buffer full, however late (here three come)."""
    built, fed = still(name, buffer_size=2, server_lr=0.3, staleness_exp=1.0), federation(**LATE)
    count = 3 if 0 in weights else 4
    statistics = torch.arange(1.0, 1 + count * fed.family.num_buffers, dtype=torch.float64).view(count, -1)
    arrivals = arriving(fed, statistics, upload_of(built, fed), [5, 0, 3, 1][:count])
    after = built.server_step(built.init(fed), arrivals, fed).params
    w = torch.tensor(weights[:count], dtype=torch.float64)
    expected = w / w.sum() @ statistics
    torch.testing.assert_close(after[fed.family.num_params :], expected, rtol=0, atol=1e-10)


def test_learned_weights_average_statistics_too() -> None:
    """FedLAW's lambda, which is far from the clients' sizes after some steps."""
    fed, built = federation(**LATE), algorithm("fedlaw", epochs=20, lr=0.3)
    state, p = built.init(fed), fed.family.num_params
    fed.begin(0, 1.0)
    cohort = fed.start_cohort((state.params,))
    y = cohort.train(state.params)[cohort.due == 0]
    if not len(y):
        pytest.fail("the toy has someone in time")
    other = federation(**LATE)
    after = run(built, other, 1).params
    shrunk = torch.linalg.lstsq(y[:, :p].T, after[:p]).solution  # gamma times lambda
    torch.testing.assert_close(after[p:], shrunk / shrunk.sum() @ y[:, p:], rtol=0, atol=1e-8)


def test_what_is_exported_is_what_was_evaluated() -> None:
    fed = federation(**LATE)
    w = run(algorithm("fedbuff", buffer_size=3), fed, 20).params
    plain = normed().double()
    plain.load_state_dict(fed.family.state_dict(w))
    plain.eval()
    inputs = fed.client_data.inputs
    assert torch.equal(plain(inputs), fed.family.predict(w, inputs))


def test_an_algorithm_that_steps_statistics_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Tensor, *_: Any) -> Tensor:
        return torch.cat([x[:-1], x[-1:] - 3.0])  # the last is a running variance

    fed, built = federation(build=normed), algorithm("fedavg")
    monkeypatch.setattr(averaging_server, "average", wrong)
    unused: Any = None
    simulation = Simulation(built, fed, unused, unused, unused, ConstantLR(), 1, "")
    with pytest.raises(Diverged, match=r"diverged in round 1 .*running variance of batch norm below zero"):
        simulation._round(Snapshot(0, built.init(fed), fed.state_dict(), None), built.round)


@pytest.mark.parametrize("name", [name for name in SERVED if "discard" in policies(name)])
def test_discarded_updates_teach_nothing(name: str) -> None:
    """The server's step is that without them, in everything that the State holds but what clients keep themselves."""
    built: Any = algorithm(name, late_policy="discard")
    fed = federation([8, 9, 10], build=normed)
    fed.begin(0, 1.0)
    state = built.init(fed)
    cohort = fed.start_cohort(built.broadcast(state))
    upload = built.client_update(state, cohort)
    late = torch.tensor([True, False, False])
    everyone = Updates(upload, cohort.ids, cohort.num_examples, 4 * late.long())
    steps = [built.server_step(copy.deepcopy(state), each, fed) for each in (everyone, everyone.select(~late))]
    kept = built.server_step(
        copy.deepcopy(state), Updates(upload, cohort.ids, cohort.num_examples, 0 * late.long()), fed
    )
    steps = [step._replace(personal={}) if isinstance(built, Personal) else step for step in steps]
    assert all(torch.equal(a, b) for a, b in zip(*map(tensors, steps), strict=True))
    assert not torch.equal(kept.params, steps[0].params), "it would have"


@pytest.mark.parametrize("option", [1, 2])
def test_scaffolds_controls_are_gradients(option: int) -> None:
    """Option I is the gradient at the server's model over all examples; with one full minibatch, option II is too."""
    whole = local(epochs=1, batch_size=40, weight_decay=0.0)
    fed = federation(RAGGED, training=whole if option == 2 else local(epochs=3, batch_size=8, optimizer="adam"))
    built: Any = algorithm("scaffold", option=option)
    x = built.init(fed).params
    after = run(built, fed, 1)
    leaf = x.clone().requires_grad_()
    for i in range(len(RAGGED)):
        inputs, targets = fed.client_data.examples(torch.from_numpy(fed.client_data.members(i)))
        logits = fed.family.forward(fed.family.views(leaf), inputs)
        (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, targets), leaf)
        torch.testing.assert_close(after.c_i[i], g, rtol=0, atol=1e-10)
