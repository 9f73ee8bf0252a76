"""What a network must do is tried before a run."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlab_runner.core.client_losses import client_losses
from fedlab_runner.core.joined_models import Pair
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.network_trial import try_network
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.executors._autotune.ways import fitting
from fedlab_runner.executors.auto import Auto
from fedlab_runner.executors.compiled import in_layers
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.precision import gpu_precisions
from fedlab_runner.utils.torch_settings import usual_settings
from tests.helpers.toy import CLASSES, FEATURES, federation, mlp, model_family, normed
from tests.helpers.work import work_of

INPUTS = torch.ones(1, FEATURES)

Change = Callable[[Tensor, bool], Any]  # (logits, whether it trains) -> what the network gives


class Changed(nn.Module):
    def __init__(self, change: Change) -> None:
        super().__init__()
        self.inner, self.change = mlp(), change

    def forward(self, inputs: Tensor) -> Any:
        return self.change(self.inner(inputs), self.training)


DRAWING: dict[str, Change] = {
    "dropout": lambda logits, training: F.dropout(logits, 0.5, training),
    "noise": lambda logits, training: logits + torch.randn_like(logits) if training else logits,
}
REFUSED: dict[str, tuple[Change, str]] = {
    "draws always": (lambda logits, training: F.dropout(logits), "draws random numbers in evaluation too"),
    "numpy's": (lambda logits, training: logits * (np.random.random() if training else 1), "numpy or Python"),
    "few classes": (
        lambda logits, training: logits[:, :2],
        rf"logits .*here \[3, {CLASSES}\], got \[3, 2\] of torch.float64",
    ),
    "no numbers": (lambda logits, training: logits > 0, "of torch.bool"),
    "mixes": (lambda logits, training: logits - logits.mean(0), "depend in evaluation on the other examples"),
    "probabilities": (lambda logits, training: logits.softmax(1), "gives probabilities, .*leave the softmax out"),
    "probabilities in evaluation": (
        lambda logits, training: logits if training else logits.softmax(1),
        "gives probabilities, .*leave the softmax out",
    ),
    "more in training": (lambda logits, training: (logits, logits) if training else logits, "got a tuple"),
}


@pytest.mark.parametrize("name", DRAWING)
def test_training_that_draws_is_noted(name: str) -> None:
    """No layer tells it; what is derived from the network draws as well."""
    family, still = model_family(lambda: Changed(DRAWING[name])), model_family()
    assert not family.draws
    try_network(family, INPUTS)
    assert family.draws and family.like(mlp).draws and Pair(still, family).family.draws


MIXING: dict[str, Change] = {
    "mean": lambda logits, training: logits - logits.mean(0) if training else logits,
    "scale": lambda logits, training: logits / logits.square().mean() if training else logits,
}


@pytest.mark.parametrize("name", MIXING)
def test_training_that_mixes_examples_is_noted(name: str) -> None:
    """No layer tells it. Examples that fill up a minibatch would be seen."""
    fed, still = federation((9, 20, 5), build=lambda: Changed(MIXING[name])), model_family()
    family = fed.family
    assert not family.mixes
    try_network(family, INPUTS)
    assert family.mixes and family.like(mlp).mixes
    assert Pair(still, family).family.mixes and Pair(family, still).family.mixes
    work = work_of(fed)
    assert not in_layers(work)
    expected, _ = Loop(compile=False).train(work)
    for chunk_size in (2, None):
        y, _ = Vectorized(chunk_size=chunk_size, compile=False).train(work)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_run_could_use_is_one_line(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        try_network(model_family(lambda: Changed(change)), INPUTS)


def test_logits_of_more_digits_than_the_run_has_are_no_fault() -> None:
    family = model_family(lambda: Changed(lambda logits, training: logits.double()), torch.float32)
    try_network(family, torch.rand(3, FEATURES))


class Keeping(nn.Module):
    """Keeps a product of its weights from the first call in `kept_in` on, until it trains again."""

    def __init__(self, kept_in: str) -> None:
        super().__init__()
        self.inner, self.scale, self.kept_in, self.kept = mlp(), nn.Parameter(torch.zeros(1)), kept_in, None

    def train(self, mode: bool = True) -> "Keeping":
        self.kept = None if mode else self.kept
        return super().train(mode)

    def forward(self, inputs: Tensor) -> Tensor:
        own = self.scale.exp()
        kept = own if self.training or self.kept is None else self.kept
        if self.training == (self.kept_in == "training"):
            self.kept = kept.detach()
        logits: Tensor = self.inner(inputs) * kept
        return logits


class Once(Keeping):
    """Keeps it from the first call in evaluation on, for good."""

    def train(self, mode: bool = True) -> "Once":
        nn.Module.train(self, mode)
        return self


class Turning(nn.Module):
    """Keeps what it makes of a buffer, which no training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.kept = mlp(), None
        self.register_buffer("angle", torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.kept = self.angle.cos() if self.kept is None or self.training else self.kept
        logits: Tensor = self.inner(inputs) * self.kept.detach()
        return logits


@pytest.mark.parametrize("kind", [Keeping, Once])
@pytest.mark.parametrize("kept_in", ["training", "evaluation"])
def test_values_of_an_earlier_model_are_found(kind: Callable[[str], nn.Module], kept_in: str) -> None:
    """Also where the models' logits hardly differ."""
    with pytest.raises(ValueError, match="depend on the model that the network had before"):
        try_network(model_family(lambda: kind(kept_in)), INPUTS)


def test_what_is_kept_of_a_constant_is_no_fault() -> None:
    try_network(model_family(Turning), INPUTS)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(self.inner(inputs.unsqueeze(2))[0][:, -1])
        return out


def branching(logits: Tensor, training: bool) -> Tensor:
    return logits * 2 if training and logits.mean() > 0 else logits


@pytest.mark.parametrize("build", [Recurrent, lambda: Changed(branching)])
def test_what_torch_cannot_compute_side_by_side_trains_alone(build: Callable[[], nn.Module]) -> None:
    fed = federation((9, 20, 5), build=build)
    try_network(fed.family, INPUTS)
    assert fed.family.alone and fed.family.like(mlp).alone and Pair(model_family(), fed.family).family.alone
    work = work_of(fed)
    assert all(way.chunk_size == 1 for way in fitting(work, compile=True))
    y, _ = Auto(seconds=1e9, workers=1, compile=False).train(work)
    torch.testing.assert_close(y, Loop(compile=False).train(work)[0], rtol=0, atol=1e-9)
    with pytest.raises(UserError, match=r"cannot train side by side \(.*take executor=loop"):
        Vectorized(chunk_size=None, compile=False).check(fed.family)
    ids = np.arange(3)
    for models in (y, y[0]):
        found = client_losses(fed.family, fed.client_data, ids, models)
        for client, w in enumerate(models.expand(3, -1)):
            inputs, targets = fed.client_data.examples(torch.from_numpy(fed.client_data.members(client)))
            expected = F.cross_entropy(fed.family.predict(w, inputs), targets).item()
            assert found[client].item() == pytest.approx(expected, abs=1e-12)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.own, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        seen = self.inner(inputs.unsqueeze(2).expand(-1, -1, 4).contiguous())
        out: Tensor = self.head(self.own(seen, seen, seen, need_weights=False)[0][:, -1])
        return out


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch computes attention itself row by row
def test_layers_of_attention_train_side_by_side() -> None:
    """With the settings of a run: torch's fast path in evaluation has no gradient, so the trial would fail."""
    family = model_family(Attending)
    with usual_settings():
        try_network(family, INPUTS)
    assert family.alone is None


@pytest.mark.parametrize("build", [mlp, normed])
def test_what_can_is_known(build: Callable[[], nn.Module]) -> None:
    family = model_family(build)
    try_network(family, INPUTS)
    assert family.alone is None and family.mixes == (build is normed)


def wrong_where(condition: Callable[[], bool], by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of models side by side are larger then."""

    def wrong(one: Callable[..., Any], *rows: Tensor) -> Any:
        found = [one(*row) for row in zip(*rows, strict=True)]
        return tuple((by if condition() else 1.0) * torch.stack(part) for part in zip(*found, strict=True))

    monkeypatch.setattr("fedlab_runner.core.network_trial.vmap", lambda one, **_: lambda *rows: wrong(one, *rows))


@pytest.mark.parametrize("build", [mlp, normed])
@pytest.mark.parametrize("in_training", [False, True])
def test_other_numbers_side_by_side_are_found(
    build: Callable[[], nn.Module], in_training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation, and in training where no batch norm over two examples makes rounding large."""
    family = model_family(build)
    wrong_where(lambda: family.module.training == in_training, 1.05, monkeypatch)
    try_network(family, INPUTS)
    rounding = build is normed and in_training
    assert family.alone == (None if rounding else "side by side they give other numbers than alone")


def test_the_rounding_of_autocast_keeps_no_network_from_training_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"normalize": Normalize(None, None), "device": torch.device("cpu")}
    family, before = ModelFamily(mlp, CLASSES, **how, autocast=torch.bfloat16), gpu_precisions()
    wrong_where(lambda: family.autocast is not None or gpu_precisions() != ["ieee"] * 3, 1.3, monkeypatch)
    try_network(family, INPUTS)
    assert family.alone is None and family.autocast is torch.bfloat16 and gpu_precisions() == before != ["ieee"] * 3


def diverged() -> nn.Module:
    net = mlp()
    nn.init.constant_(next(net.parameters()), torch.nan)
    return net


def masked() -> nn.Module:
    net = mlp()
    net.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    return net


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(CLASSES)), "no sizes, such as LazyLinear"),
        (lambda: mlp().requires_grad_(False), "the model has no parameter to train"),
        (diverged, "the model's parameter 0.weight must be finite before the first round"),
        (masked, "the model's buffer mask must be finite, because clients send it"),
    ],
)
def test_what_cannot_be_a_vector_is_refused(build: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        try_network(model_family(build), INPUTS)


def test_inputs_must_stay() -> None:
    """Those of an evaluation are views of the test set."""
    first = nn.Sequential(nn.ReLU(inplace=True), mlp())
    with pytest.raises(ValueError, match="writes into its inputs"):
        try_network(model_family(lambda: first), -INPUTS)


@pytest.mark.parametrize("build", [mlp, normed])
def test_a_trial_leaves_no_trace(build: Callable[[], nn.Module]) -> None:
    family, state = model_family(build), torch.random.get_rng_state()
    before = family.vector(family.module)
    try_network(family, INPUTS)
    assert not family.draws and torch.equal(family.vector(family.module), before)
    assert torch.equal(torch.random.get_rng_state(), state)
