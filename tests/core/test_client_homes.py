"""What stays at home stays there, with every algorithm that has a server, and with those without one that allow it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedlab_runner.analyses.update_cosines import UpdateCosines
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.config.build import build
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.rng import Purpose
from fedlab_runner.core.update_guard import Guard
from fedlab_runner.core.work import Work
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.resource_estimate import _needs
from fedlab_runner.participation.fixed import FixedParticipation
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.kinds import by_kind
from tests.helpers.mixed import sliceable
from tests.helpers.toy import (
    ALGORITHMS,
    CLASSES,
    EQUAL,
    FEATURES,
    algorithm,
    default_home,
    federation,
    home,
    local,
    normed,
    run,
    stacked,
    tensors,
)
from tests.helpers.work import Poisoned

ALLOWING = [name for name in ALGORITHMS if algorithm(name).home_fault() is None]
REFUSING = sorted(set(ALGORITHMS) - set(ALLOWING))
SERVED = [name for name in ALLOWING if not algorithm(name).decentralized]
SERVERLESS = sorted(set(ALLOWING) - set(SERVED))
# Not FedGEN, which learns from the clients' classifiers, and FedBABU, where nobody trains what is at home.
HOLDING_HEADS = [name for name in SERVED if name not in ("fedgen", "fedbabu")]
ON_SERVER = {"fedbe", "feddf", "fedft", "fedlaw", "fedwalk", "hfcl"}  # whose servers train their own models
PERSONAL = {
    "apfl",
    "ditto",
    "fedala",
    "perfedavg",
    "pfedme",
}  # whose clients have models of their own
OTHERWISE = {"apfl", "fedsam", "fedrep", "perfedavg", "pfedme"}  # than stand-alone clients theirs train
LATE: dict[str, Any] = {"sizes": [6, 3, 9, 1, 12, 8], "cohort": 3, "std": 2.0, "build": normed}
MET: dict[str, Any] = {"sizes": [6, 3, 9, 5, 12, 8], "cohort": 3, "build": normed}
PENALISED: dict[str, dict[str, Any]] = {"fedasync": {"rho": 0.5}, "feddyn": {}, "fednova": {"mu": 0.5}, "fedprox": {}}
KEYS = PENALISED | {"fedbuff": {"buffer_size": 2}, "ca2fl": {"buffer_size": 2}, "fedcda": {"warmup": 1}}
EVERYTHING, ROUNDS = home("prefixes", prefixes=[""]), 4


def smooth() -> nn.Module:
    """Batch norm without a kink at which rounding would tell."""
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES))


def built(name: str, **more: Any) -> Any:
    return algorithm(name, **KEYS.get(name, {}) | more)


def setting(name: str) -> dict[str, Any]:
    return LATE if name in SERVED else MET


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def own_models(method: Any, state: Any, fed: Federation) -> Tensor:
    """The clients' own models [N, D]."""
    models = method.models(state)
    if isinstance(models, Tensor):
        found: Tensor = method.client_models(state, fed, np.arange(fed.num_clients))
        return found
    return stacked(models)


@pytest.mark.parametrize("name", by_kind(ALLOWING))
def test_none_and_an_empty_home_are_off_to_the_bit(name: str) -> None:
    feds = [federation(**setting(name), home=each) for each in (None, home("none"), home("prefixes"))]
    states = [run(built(name), fed, ROUNDS) for fed in feds]
    assert all(
        same(states[0], state) and fed.collect() == feds[0].collect() for fed, state in zip(feds, states, strict=True)
    )


@pytest.mark.parametrize("name", [*by_kind(sorted({*HOLDING_HEADS} - PENALISED.keys())), *PENALISED])
def test_with_everything_at_home_clients_are_stand_alone_and_the_server_stays(name: str) -> None:
    """Late ones too: a client's own model is new when its update would arrive."""
    fed, method = federation(**LATE, home=EVERYTHING), built(name)
    method.check(fed)
    state = run(method, fed, ROUNDS)
    mine = own_models(method, state, fed)
    if name not in ON_SERVER:
        first = method.models(method.init(fed))
        torch.testing.assert_close(method.models(state), first, rtol=0, atol=1e-12)
    if name not in OTHERWISE:
        alone = federation(**LATE)
        theirs = stacked(run(algorithm("standalone"), alone, ROUNDS).own)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    other = federation(**LATE, home=EVERYTHING)
    other.client_data.inputs[fed.client_data.num_examples[0] :] += 1  # of all but the first client
    apart = own_models(method, run(method, other, ROUNDS), other)
    assert torch.equal(mine[0], apart[0]) and not torch.equal(mine[1:], apart[1:])


@pytest.mark.parametrize("name", sorted(OTHERWISE - {"fedrep"}))
def test_with_everything_at_home_a_client_has_what_it_would_have_alone_with_the_server(name: str) -> None:
    how: dict[str, Any] = {"sizes": [6, 9], "build": smooth}
    found = []
    for more in ({"home": EVERYTHING}, {"participation": FixedParticipation([0], 0)}):
        fed, method = federation(**how, **more), built(name, **({"adaptive": True} if name == "apfl" else {}))
        found.append(method.client_models(run(method, fed, ROUNDS), fed, np.arange(1)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", by_kind(ALLOWING))
def test_a_run_resumes_to_the_same_bits_and_executors_agree(name: str) -> None:
    how = setting(name) | {"build": smooth, "home": home("norm")}
    fed, method = federation(**how), built(name)
    state, saved = method.init(fed), dict[str, Any]()
    for round in range(ROUNDS):
        if round == ROUNDS - 1:  # with late clients, whose updates arrive in the last round
            saved = pack({"state": state, "fed": fed.state_dict()})
        state = run(method, fed, 1, first=round, state=state)
    again = federation(**how)
    other = unpack(saved["state"], like=method.init(again))
    again.load_state_dict(saved["fed"])
    other = run(method, again, 1, first=ROUNDS - 1, state=other)
    assert same(state, other) and fed.collect() == again.collect()
    assert bool(saved["fed"]["home"]["away"]) == (name in SERVED) and same(
        fed.home.state_dict(), again.home.state_dict()
    )
    mine = own_models(method, state, fed)
    assert torch.equal(mine, own_models(method, other, again))
    fast = federation(**how, executor=Vectorized(2, compile=False))
    theirs = own_models(method, run(method, fast, ROUNDS), fast)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kept", ["head", "norm"])
@pytest.mark.parametrize("name", [*by_kind(sorted({*ALLOWING} - PERSONAL - {"fedbabu"})), *sorted(PERSONAL)])
def test_clients_differ_at_home_alone_and_the_server_never_learns_of_it(name: str, kept: str) -> None:
    if name == "fedgen" and kept == "head":
        return
    fed, method = federation(**setting(name), home=home(kept)), built(name)
    mask, first = fed.home.mask(fed.family), fed.family.init(fed.seed)
    state = run(method, fed, ROUNDS)
    mine = own_models(method, state, fed)
    parameters = torch.arange(len(mask)) < fed.family.num_params
    for part in (mask & parameters, mask & ~parameters):  # batch norm's statistics too
        moved = (mine[:, part] != first[part]).any(1)
        assert int(moved.sum()) > 1 or not part.any()
    if name in SERVERLESS:
        return
    if name not in PERSONAL:
        shared = mine[:, ~mask]
        assert torch.equal(shared, method.models(state)[~mask].expand_as(shared))
    if name not in ON_SERVER:
        torch.testing.assert_close(method.models(state)[mask], first[mask], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ALLOWING)
def test_what_stays_at_home_is_not_sent(name: str) -> None:
    """Neither a model's values there, nor those of what is sent beside it."""
    feds = [federation(**setting(name), home=each) for each in (None, home("body"), EVERYTHING)]
    if name == "fedgen":
        feds[2] = feds[1]
    sent = []
    for fed in feds:
        run(built(name), fed, 1)
        ways = ["up"] if name == "dpsgd" else ["up", "down"]
        sent.append(np.array([fed.collect()[f"comm/{way}load_mb"] for way in ways]) * 1e6 / 4)
    whole, part, nothing = sent
    d, h = feds[0].family.size, feds[1].home.size
    assert h and (part < whole).all()
    if name not in {"fedgen", "fedcda", "fednova", "fedwalk", "qfedavg"}:  # which send other values too
        np.testing.assert_allclose(part / whole, 1 - h / d, atol=0.05)
        np.testing.assert_allclose(nothing, 0, atol=1e-6)
    if name == "fedavg":
        np.testing.assert_allclose(whole - part, [h * feds[1].collect()["late/arrived"], 3 * h])


def test_a_number_of_each_client_is_no_statistic() -> None:
    """As many clients as a model has values of batch norm."""
    sent = []
    for clients in (11, 12, 13):
        fed = federation([8] * clients, build=normed, home=home("norm"))
        assert fed.family.num_buffers == 12
        run(algorithm("fednova"), fed, 1)
        sent.append(round(fed.collect()["comm/upload_mb"] * 1e6 / 4) / clients)
    assert len(set(sent)) == 1


@pytest.mark.parametrize("name", SERVERLESS)
def test_without_a_server_clients_that_keep_everything_are_stand_alone(name: str) -> None:
    fed, other = (federation(**MET, home=EVERYTHING) for _ in range(2))
    mine = own_models(built(name), run(built(name), fed, ROUNDS), fed)
    other.client_data.inputs[6:] += 1
    theirs = own_models(built(name), run(built(name), other, ROUNDS), other)
    assert torch.equal(mine[0], theirs[0]) and not torch.equal(mine[1:], theirs[1:])
    assert not torch.equal(mine[0], fed.family.init(fed.seed))
    assert fed.collect().get("algorithm/consensus_distance", 0.0) == 0, "they differ in nothing that they share"


@pytest.mark.parametrize("name", SERVERLESS)
def test_without_a_server_those_who_meet_share_the_rest(name: str) -> None:
    fed = federation([8] * 6, cohort=5, home=home("head"))
    mask = fed.home.mask(fed.family)
    mine = own_models(built(name), run(built(name), fed, 1), fed)
    met = (mine != fed.family.init(fed.seed)).any(1)
    shared = mine[met][:, ~mask]
    torch.testing.assert_close(shared, shared[:1].expand_as(shared), rtol=0, atol=1e-12)
    assert int(met.sum()) > 2 and len(torch.unique(mine[met][:, mask], dim=0)) == int(met.sum())


def test_gossip_among_widths_keeps_each_clients_own() -> None:
    how: dict[str, Any] = {"sizes": [8] * 6, "cohort": 6, "builds": [sliceable(4), sliceable(2)]}
    name = next(k for k, _ in sliceable(4)().named_parameters())
    fed = federation(**how, home=home("prefixes", prefixes=[name]))
    state = run(algorithm("dpsgd"), fed, 1)
    for a, family in enumerate(fed.families):
        stack = torch.stack([state.models[i] for i in range(a, 6, 2)])
        mask = fed.home.mask(family)
        assert len(torch.unique(stack[:, mask], dim=0)) == len(stack)
        torch.testing.assert_close(stack[:, ~mask], stack[:1, ~mask].expand(len(stack), -1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("policy", ["drop", "zero", "clip"])
def test_a_client_whose_model_is_not_finite_keeps_its_old_home(policy: str) -> None:
    """Under `clip` only the values that are not finite stay, as in the part that it sends."""
    training = local(update_norm=100.0 if policy == "clip" else None)
    fed = federation(EQUAL, home=home("head"), executor=Poisoned(compile=False, client=1, column=-1), training=training)
    fed.trainer.guard = Guard(policy)
    method = algorithm("fedavg")
    state = run(method, fed, 2)
    old = own_models(method, state, fed)
    new = own_models(method, run(method, fed, 1, first=2, state=state), fed)
    kept = fed.home.mask(fed.family)
    stays = (old == new)[:, kept]
    assert stays[1].sum() == (1 if policy == "clip" else kept.sum()) and stays[1, -1]
    assert not stays[[0, 2, 3]].any()


@pytest.mark.parametrize("place", ["device", "host", "disk"])
@pytest.mark.parametrize("due", [0, 3])
def test_a_lost_upload_takes_the_new_home_with_it(place: str, due: int, tmp_path: Path) -> None:
    """The row that the client had is written again where it lies in a file; late clients lose only what was to come."""
    fed = federation(EQUAL, home=home("head", store_on=place), folder=tmp_path)
    fed.trainer.guard = Guard("drop")
    method, state = algorithm("fedavg"), None
    state = run(method, fed, 2)
    old = own_models(method, state, fed)
    fed.begin(2, 1.0)
    cohort = fed.start_cohort(method.broadcast(state))
    cohort.due[:] = 2 + due
    method.client_update(state, cohort)  # clients may train several times in a round
    upload = method.client_update(state, cohort)
    lost = int(cohort.client_ids[0])
    upload.rows[0, 0] = float("nan")
    fed.collect_updates(cohort, upload)
    fed.begin(3, 1.0)
    new = own_models(method, state, fed)
    kept = fed.home.mask(fed.family)
    changed = (old != new)[:, kept].any(1)
    assert changed.tolist() == [due == 0 and i != lost for i in range(4)]
    fed.begin(5, 1.0)
    if due:
        fed.collect_updates(fed.cohort(np.zeros(0, np.int64)), type(upload)(*(t[:0] for t in upload)))
        assert (old != own_models(method, state, fed))[:, kept].any(1).tolist() == [i != lost for i in range(4)]


def test_places_give_the_same_bits(tmp_path: Path) -> None:
    found = []
    for place in ("device", "host", "disk"):
        fed = federation(**LATE, home=home("norm", store_on=place), folder=tmp_path / place)
        found.append(own_models(built("scaffold"), run(built("scaffold", store_on=place), fed, ROUNDS), fed))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert list((tmp_path / "disk").rglob("*.bin")) and not list((tmp_path / "host").rglob("*.bin"))


def test_memory_is_part_of_the_estimate() -> None:
    def needed(place: str) -> dict[str, float]:
        fed = federation(EQUAL, home=home("head", store_on=place))
        return {need.what: need.bytes for need in _needs(algorithm("fedavg"), fed, 3) if need.place == "host"}

    rows = 8 * 4 * federation(home=home("head")).home.size
    assert needed("disk")["the parts of their models that stay at home"] == rows
    assert needed("device")["the clients' rows (home.store_on)"] == rows
    assert "the clients' rows (home.store_on)" not in needed("disk")


@pytest.mark.parametrize("name", REFUSING)
def test_others_say_in_one_line_why_they_refuse_it(name: str) -> None:
    assert re.fullmatch(r"wh(ich|ose) [^\n]{10,}[^.\n]", algorithm(name).home_fault() or "")


def test_the_refusal_is_one_line_before_anything_is_built() -> None:
    with pytest.raises(UserError, match=r"^home must be none with algorithm=fedma, which moves neurons [^\n]*$"):
        build(composed("algorithm=fedma", "home=head"))
    build(composed("algorithm=fedma", "home=none"))


def test_a_base_that_refuses_it_makes_fedwalk_refuse_it() -> None:
    with pytest.raises(
        UserError, match=r"^home must be none with algorithm=fedwalk, which moves neurons to new places"
    ):
        build(composed("algorithm=fedwalk", "algorithm@algorithm.base=fedma", "home=head"))


def test_fedgen_and_the_analysis_of_updates_refuse_it() -> None:
    with pytest.raises(UserError, match=r"^home must keep no part of the classifier with algorithm=fedgen"):
        algorithm("fedgen").check(federation(home=home("head")))
    algorithm("fedgen").check(federation(home=home("body")))
    with pytest.raises(UserError, match=r"^home must be none with analysis=update_cosines"):
        UpdateCosines(every=1, clients=None).check(algorithm("fedavg"), federation(home=home("head")))


def test_homes_of_another_size_are_refused() -> None:
    fed = federation(home=home("head"))
    run(algorithm("fedavg"), fed, 2)
    saved = pack(fed.state_dict())
    for other in (None, home("body")):
        with pytest.raises(ValueError, match="at home"):
            federation(home=other).load_state_dict(saved)
    federation(home=home("head")).load_state_dict(saved)


@dataclass(frozen=True)
class PoisonedBefore(Loop):
    """Client 1's head or weights, trained before its model, are not finite in round 2, counted from 0."""

    def train(self, work: Work) -> tuple[Tensor, Tensor]:
        y, losses = super().train(work)
        before = work.client_data.streams.batches is Purpose.PERSONAL_BATCHES
        for k in np.flatnonzero(work.ids == 1) if work.round == 2 and before else ():
            y[k, work.family.num_params - 1] = float("nan")
        return y, losses


@pytest.mark.parametrize("std", [0.0, 1.5])
@pytest.mark.parametrize("name", ["fedrep", "fedala"])
def test_a_client_that_fails_before_it_trains_its_model_is_as_it_was(name: str, std: float) -> None:
    """It does not answer, and what it had trained by then is lost with it."""
    fed = federation([8] * 6, home=default_home(name), executor=PoisonedBefore(compile=False), std=std)
    fed.trainer.guard = Guard("drop")
    method = algorithm(name)
    state = run(method, fed, 2)
    old = own_models(method, state, fed)
    after = run(method, fed, 1, first=2, state=state)
    new = own_models(method, after, fed)
    mine = fed.home.mask(fed.family) if fed.home.acts else torch.ones(fed.family.size, dtype=torch.bool)
    assert torch.equal(old[1, mine], new[1, mine]) and int((old[:, mine] != new[:, mine]).any(1).sum()) >= 2
    assert fed.collect()["updates/not_finite"] == 1
