"""Clients' own models: a round, its checks, an evaluation and a checkpoint touch those that it changed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlab_runner.core.architectures import ClientGroup
from fedlab_runner.core.client_state import PLACES, RowStore
from fedlab_runner.core.own_models import changed_models, first_models, models_of, updated
from fedlab_runner.core.row_file import RowFile
from fedlab_runner.evaluation.client_models import ClientModels
from fedlab_runner.experiment.run import run_in
from fedlab_runner.utils.errors import Diverged
from tests.helpers.composed import composed
from tests.helpers.mixed import mixed

MANY, MEET, ROUNDS = 40, 3, 4  # clients, those that meet in a round, and rounds
RUN = (
    *("model=logistic", f"num_clients={MANY}", f"participation.cohort_size={MEET - 1}", f"rounds={ROUNDS}"),
    *("local.epochs=1", "logger=none", "device=cpu", "delay=none", "server_data=none", "evaluation.every=1"),
    *("executor=loop", "checkpoint.seconds=null", "checkpoint.rounds=1", "checkpoint.keep=1", "dataset=synthetic"),
    *(
        "dataset.num_train=80",
        "dataset.num_test=20",
        "dataset.image_size=4",
        "partition=iid",
        "logger.save_model=false",
    ),
)


@pytest.mark.parametrize("name", ["dec_fedavg", "dfml", "standalone"])
@pytest.mark.parametrize("place", ["device", "disk"])
def test_a_run_touches_the_models_that_it_changes(
    place: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = dict.fromkeys(("put", "get", "write", "score"), 0)

    def spied(owner: Any, method: str, key: str, much: Any = lambda *_, **__: 1) -> None:
        before = getattr(owner, method)

        def spy(*arguments: Any, **named: Any) -> Any:
            counts[key] += much(*arguments, **named)
            return before(*arguments, **named)

        monkeypatch.setattr(owner, method, spy)

    spied(RowStore, "put", "put")
    spied(RowStore, "get", "get")
    spied(RowFile, "put", "write")
    spied(ClientModels, "_score", "score", lambda self, family, models: len(models))
    run_in(tmp_path, composed(*RUN, f"algorithm={name}", f"algorithm.store_on={place}", small=False))
    new = ROUNDS * MEET * (2 if name == "dfml" else 1)  # models and peaks
    assert 0 < counts["put"] <= new and 0 < counts["write"] <= new
    assert counts["get"] <= 4 * new + 5, "to train, to look for what is not finite, to tell and score equal models"
    assert counts["score"] <= new + 1, "and the first one"
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    (rows,) = (tmp_path / "client_state").iterdir()
    assert checkpoint.stat().st_size < 20_000 and rows.stat().st_size <= new * 170 * 4


@pytest.mark.parametrize("place", PLACES)
def test_first_models_are_shared_and_a_group_may_share_one_later(place: str) -> None:
    fed = mixed()
    first = first_models(fed)
    assert len({id(row) for row in first.values()}) == 3
    group = ClientGroup(1, fed.families[1], np.array([4, 1]))
    (model,), w = models_of(fed, first, group)[:1], torch.rand(fed.families[1].size, dtype=torch.float64)
    assert torch.equal(model, fed.families[1].init(0))
    second = updated(fed, place, first, [(group, w)])
    assert torch.equal(models_of(fed, second, group), w.expand(2, -1)) and first[1] is first[4]
    assert (second[1] is second[4]) == (place != "disk"), "a slot is one client's"
    found = list(changed_models(fed, first, second))
    assert len(found) == (2 if place == "disk" else 1)
    assert all(family is fed.families[1] and torch.equal(new, w) for family, new in found)
    assert list(changed_models(fed, second, second)) == []
    fed.client_state.begin(1)
    third = updated(fed, place, second, [(group._replace(ids=np.array([4])), (w + 1).unsqueeze(0))])
    assert torch.equal(models_of(fed, third, group), torch.stack([w + 1, w]))
    assert torch.equal(models_of(fed, second, group), w.expand(2, -1)), "the State before is as it was"


@pytest.mark.parametrize("place", PLACES)
def test_an_aggregated_model_that_is_not_finite_ends_the_run(place: str, tmp_path: Path, monkeypatch: Any) -> None:
    """What training gave was finite: the algorithm spoilt it."""
    cfg = composed(*RUN, "algorithm=standalone", f"algorithm.store_on={place}", small=False)
    replace_all = RowStore.replace_all

    def spoilt(self: RowStore, rows: Any, clients: Any, next: torch.Tensor) -> None:
        replace_all(self, rows, clients, next.clone().index_fill_(-1, torch.tensor([3]), torch.nan))

    monkeypatch.setattr(RowStore, "replace_all", spoilt)
    line = r"^the run diverged in round 1 \(train/loss [\d.]+\): the loss is finite, but not the model that Standalone"
    with pytest.raises(Diverged, match=line):
        run_in(tmp_path, cfg)
