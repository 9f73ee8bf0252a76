"""FedRolex: where its orders equal HeteroFL, and where its own puts models back."""

import itertools
from typing import Any

import pytest
import torch

from fedlab_runner.algorithms.fedrolex import ORDERS
from fedlab_runner.algorithms.shared.decentralized import pick_participants
from fedlab_runner.algorithms.shared.width_slicing import places
from tests.helpers.identities import close, equal_widths_average_whole_models
from tests.helpers.mixed import WIDTHS, mixed
from tests.helpers.toy import algorithm, local, run, vectors


@pytest.mark.parametrize("order", ORDERS)
def test_equal_widths_are_uniform_decentralised_fedavg(order: str) -> None:
    equal_widths_average_whole_models("fedrolex", order=order)


def test_fedrolex_begins_as_heterofl_and_a_window_in_order_changes_nothing_without_a_server() -> None:
    def after(name: str, rounds: int, **how: Any) -> Any:
        return run(algorithm(name, **how), mixed(builds=WIDTHS, cohort=4), rounds)

    for order in ORDERS:
        close(after("fedrolex", 1, order=order).models, after("heterofl", 1).models)
    close(after("fedrolex", 5).models, after("heterofl", 5).models)
    later = [vectors(after("fedrolex", 5, order=order).models) for order in ORDERS]
    for one, other in itertools.combinations(later, 2):
        assert not torch.allclose(one, other, atol=1e-3)


def test_fedrolex_puts_models_back_where_they_were_cut_from() -> None:
    """Where nobody learns there is one widest model and all others are windows of it: today's, or that of the round in
    which a client met last. By the indices of one round alone the widest model would be stirred.
    """
    fed = mixed(builds=WIDTHS, cohort=4, training=local(lr=1e-300))
    wide = max(fed.families, key=lambda family: family.num_params)
    built, whole = algorithm("fedrolex", order="returned"), wide.init(5)

    def part(family: Any, t: int) -> torch.Tensor:
        return whole[places(family, wide, lambda label, k, of: ((t + torch.arange(k)) % of).sort().values)]

    state = built.init(fed)
    state = state._replace(
        models={client: part(fed.families[client % len(fed.families)], 0) for client in state.models}
    )
    last = [0] * fed.num_clients
    for t in range(7):
        fed.begin(t, 1.0)
        for client in pick_participants(fed, state.aggregator).participants.tolist():
            last[client] = t
        state = built.round(state, fed)
        for client, when in enumerate(last):
            mine = part(fed.families[client % len(fed.families)], when)
            torch.testing.assert_close(state.models[client], mine, rtol=0, atol=1e-12)
    assert len(set(last)) > 1


def test_a_channel_that_nobody_at_the_meeting_has_is_kept() -> None:
    """Two clients of one width meet; today's window has a channel that neither was cut from."""
    fed, built = (
        mixed([5] * 6, builds=WIDTHS, cohort=1, training=local(lr=1e-300)),
        algorithm("fedrolex", order="returned"),
    )
    wide, narrow = fed.families[:2]

    def narrow_ones_meet(t: int) -> bool:
        fed.begin(t, 1.0)
        return set(pick_participants(fed, 1).participants.tolist()) == {1, 4}

    t = next(t for t in range(1, 400, 4) if narrow_ones_meet(t))  # of 4 channels the second and third
    state = built.init(fed)._replace(aggregator=1)
    before, after = state.models[1], built.round(state, fed).models[1]
    cut = [places(narrow, wide, lambda label, k, of, s=s: ((s + torch.arange(k)) % of).sort().values) for s in (0, t)]
    there = dict(zip(cut[0].tolist(), before, strict=True))
    expected = torch.stack([there.get(place, own) for place, own in zip(cut[1].tolist(), before, strict=True)])
    assert any(place in there for place in cut[1].tolist()) and not torch.equal(before, expected)
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-12)
