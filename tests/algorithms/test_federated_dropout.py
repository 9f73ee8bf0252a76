"""Federated Dropout: models are random channels of the widest one, drawn for each client, layer and round."""

from typing import Any

import pytest
import torch

from fedlab_runner.algorithms import federated_dropout
from tests.helpers.identities import equal_widths_average_whole_models
from tests.helpers.mixed import WIDTHS, mixed
from tests.helpers.toy import algorithm


def test_equal_widths_are_uniform_decentralised_fedavg() -> None:
    equal_widths_average_whole_models("federated_dropout")


def test_channels_ascend_and_are_drawn_by_client_layer_and_round(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(federated_dropout, "partial_training", lambda *given, **how: drawn.append(given[4]) or given[1])
    built, fed = algorithm("federated_dropout"), mixed(builds=WIDTHS, cohort=3)
    state = built.init(fed)

    def channels(t: int, client: int) -> list[torch.Tensor]:
        fed.begin(t, 1.0)
        built.round(state, fed)
        choose = drawn[-1](client)
        return [choose("first", 8, 32), choose("second", 8, 32)]

    first, second = channels(0, 1)
    for found in (first, second):
        assert len(found) == 8 and bool((found.diff() > 0).all()) and found.min() >= 0 and found.max() < 32
    assert all(torch.equal(a, b) for a, b in zip(channels(0, 1), (first, second), strict=True)), "of the same key"
    assert not torch.equal(first, second), "of another layer"
    assert not torch.equal(first, channels(0, 2)[0]), "of another client"
    assert not torch.equal(first, channels(1, 1)[0]), "of another round"
