"""An own loss is tried once, before clients train with it, and leaves no trace."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlab_runner.core import trainer
from fedlab_runner.core.loss_trial import try_loss
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.core.work import Work
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import CLASSES, FEATURES, asked, federation, mlp, normed


def each(model: FunctionalModel, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


def plain(model: FunctionalModel, batch: Batch) -> Tensor:
    return each(model, batch).mean()


def logits_alone(model: FunctionalModel, batch: Batch) -> Tensor:
    return model(batch.inputs).square().mean()


@dataclass(frozen=True)
class Scaled:
    by: float

    def __call__(self, model: FunctionalModel, batch: Batch) -> Tensor:
        return self.by * plain(model, batch)


def zero() -> nn.Module:
    """A model that gives all classes the same logit."""
    module = nn.Linear(FEATURES, CLASSES)
    for value in module.parameters():
        nn.init.zeros_(value)
    return module


def trained(loss: Any, build: Any = mlp) -> Tensor:
    fed = federation(build=build)
    fed.begin(0, 1.0)
    return asked(fed, [1, 0, 2]).train(fed.family.init(0), loss=loss)


@pytest.mark.parametrize("build", [mlp, zero])
@pytest.mark.parametrize("loss", [plain, logits_alone, Scaled(1e-3), lambda *given: plain(*given)])
def test_a_mean_over_what_fills_a_minibatch_up_is_refused(loss: Any, build: Any) -> None:
    with pytest.raises(UserError, match=r"^\S*(plain|logits_alone|Scaled|<lambda>) counts .* batch\.mean\(losses\)"):
        trained(loss, build)


def test_a_loss_is_a_scalar() -> None:
    with pytest.raises(UserError, match=r"^each must give a scalar, batch\.mean\(losses\) .*, got torch float64 \[3\]"):
        trained(each)


def test_a_family_that_mixes_examples_has_no_filled_minibatches() -> None:
    trained(plain, normed)


def test_a_loss_is_tried_once_in_a_run_and_draws_from_none_of_its_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[Work]()

    def states() -> Any:
        return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()

    def watched(work: Work) -> None:
        before, start = states(), work.start.clone()
        try_loss(work)
        assert states() == before and torch.equal(work.start, start)
        tried.append(work)

    monkeypatch.setattr(trainer, "try_loss", watched)
    fed = federation(build=normed)
    for round in range(3):

        def loss(model: FunctionalModel, batch: Batch) -> Tensor:  # another closure in each round
            noise = torch.rand(1) + random.random() + np.random.rand()
            return batch.mean(each(model, batch) * noise)

        fed.begin(round, 1.0)
        asked(fed, [round]).train(fed.family.init(0), loss=loss)
    assert len(tried) == 1
