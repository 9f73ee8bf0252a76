"""A cohort that cannot fit is refused before it is trained."""

import numpy as np
import pytest

from fedlab_runner.core import memory_check
from fedlab_runner.core.federation import Federation
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import RAGGED, federation


def train(fed: Federation) -> None:
    fed.cohort(np.arange(len(RAGGED))).train(fed.family.init(0))


def test_a_round_that_cannot_fit_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "MIN_CHECKED_BYTES", 0)
    model = federation().family.size * 8
    monkeypatch.setattr(memory_check, "memory_bytes", lambda: 2 * 3 * model)
    with pytest.raises(
        UserError, match=r"^a round needs 0.0 GB for the models of 8 clients .*cohort_size to 3 or less"
    ):
        train(federation())
    monkeypatch.setattr(memory_check, "memory_bytes", lambda: 2 * 8 * model)
    train(federation())
    monkeypatch.setattr(memory_check, "memory_bytes", lambda: None)
    train(federation())


def test_small_rounds_do_not_ask_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "memory_bytes", lambda: 0)
    train(federation())
