"""CE, ACE and WSM against their definitions; every algorithm trains with the one that is chosen."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedlab_runner.core.losses import ACE, CE, WSM, losses
from fedlab_runner.core.model_family import Batch, FunctionalModel
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers.kinds import by_kind
from tests.helpers.toy import ALGORITHMS, CLASSES, RAGGED, algorithm, federation, run, tensors

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(6, 4, dtype=torch.float64, generator=GENERATOR)
TARGETS = torch.tensor([0, 1, 3, 3, 0, 1])
COUNTS = torch.tensor([2, 2, 0, 2])


def value_and_gradient(offsets: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    logits = LOGITS.clone().requires_grad_()
    value = losses(logits, TARGETS, offsets)
    return value.detach(), torch.autograd.grad(value.mean(), logits)[0]


def test_wsm_is_its_definition() -> None:
    """DFML, Eq 2."""
    beta = COUNTS.double() / COUNTS.sum()
    expected = -LOGITS[range(6), TARGETS] + torch.log((beta * LOGITS.exp()).sum(1))
    offsets = WSM().offsets(torch.stack([COUNTS, COUNTS + 1]))  # of two clients
    torch.testing.assert_close(value_and_gradient(offsets[0])[0], expected, rtol=0, atol=1e-12)


def test_wsm_has_the_gradient_of_the_authors_form() -> None:
    logits = LOGITS.clone().requires_grad_()
    theirs = F.cross_entropy(logits + WSM().offsets(COUNTS), TARGETS)  # which adds log beta_y to the label's logit too
    torch.testing.assert_close(
        value_and_gradient(WSM().offsets(COUNTS))[1], torch.autograd.grad(theirs, logits)[0], rtol=0, atol=1e-12
    )


def test_wsm_of_equal_classes_is_cross_entropy_less_log_c() -> None:
    (ours, gradient), (ce, of_ce) = value_and_gradient(WSM().offsets(torch.full((4,), 7))), value_and_gradient(None)
    torch.testing.assert_close(ours, ce - torch.tensor(4.0, dtype=torch.float64).log(), rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient, of_ce, rtol=0, atol=1e-12)


def test_ace_is_wsm_with_weights_of_zero_and_one_and_cross_entropy_over_the_classes_that_are_there() -> None:
    ours, _ = value_and_gradient(ACE().offsets(COUNTS))
    present = torch.tensor([0, 1, 3])
    expected = F.cross_entropy(LOGITS[:, present], torch.searchsorted(present, TARGETS), reduction="none")
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("signal", [ACE(), WSM()])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_absent_class_has_no_gradient_at_all(signal: ACE | WSM, dtype: torch.dtype) -> None:
    offsets = signal.offsets(COUNTS)
    assert offsets is not None
    logits = LOGITS.to(dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(losses(logits, TARGETS, offsets.to(dtype)).mean(), logits)
    assert (gradient[:, 2] == 0).all() and (gradient[:, [0, 1, 3]] != 0).all()


def test_a_client_of_one_class_learns_nothing_from_its_labels() -> None:
    """One-hot shares: the loss is 0 and so is its gradient (algorithms, section 6)."""
    value, gradient = value_and_gradient(WSM().offsets(torch.tensor([0, 0, 0, 9])))
    assert value[TARGETS == 3].abs().max() == 0 and gradient[TARGETS == 3].abs().max() == 0


def test_cross_entropy_adds_nothing() -> None:
    assert CE().offsets(COUNTS) is None
    torch.testing.assert_close(value_and_gradient(None)[0], F.cross_entropy(LOGITS, TARGETS, reduction="none"))


def test_each_client_has_its_own_shares() -> None:
    fed = federation(RAGGED, loss_function=WSM())
    seen: list[torch.Tensor] = []

    def loss(model: FunctionalModel, batch: Batch) -> torch.Tensor:
        assert batch.offsets is not None
        seen.append(batch.offsets)
        return model.family.loss(model, batch)

    def train(client: int) -> None:
        fed.cohort(np.array([client])).train(fed.family.init(0), loss=loss)

    train(0)  # the first time the loss is tried too, on two models side by side
    for client in range(fed.num_clients):
        seen.clear()
        train(client)
        targets = fed.client_data.targets[fed.client_data.members(client)]
        shares = torch.bincount(targets, minlength=CLASSES).double() / len(targets)
        assert seen and all(torch.allclose(each.exp(), shares, rtol=0, atol=1e-12) for each in seen)


@pytest.mark.parametrize("name", by_kind(sorted(set(ALGORITHMS) - {"center"})))
def test_every_algorithm_trains_with_the_chosen_signal_in_every_executor(name: str) -> None:
    def outcome(**how) -> list[torch.Tensor]:
        return tensors(run(algorithm(name), federation([9, 4, 12, 7], cohort=2, **how), 2))

    plain, wsm = outcome(), outcome(loss_function=WSM())
    together = outcome(loss_function=WSM(), executor=Vectorized(2, compile=False))
    assert any(not torch.equal(a, b) for a, b in zip(plain, wsm, strict=True))
    for mine, theirs in zip(wsm, together, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


def test_an_own_loss_has_its_offsets_without_further_notice() -> None:
    class Own:
        def offsets(self, counts: torch.Tensor) -> torch.Tensor:
            return (counts + 1).log()

    data, ids = federation().client_data, np.array([1, 0])
    given = data.offsets(Own(), ids, CLASSES)
    assert given is not None and torch.equal(given, (data.label_counts(ids, CLASSES) + 1).log())
