"""Networks that change or keep what no model's vector holds are refused; other odd ones train as a plain loop does."""

import threading
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune, weight_norm

from fedlab_runner.core.network_trial import try_network
from fedlab_runner.core.separate_module import SeparateModule
from fedlab_runner.core.work import Work
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from tests.helpers.toy import CLASSES, FEATURES, federation, mlp, model_family
from tests.helpers.work import work_of

WIDTH = 6
INPUTS = torch.linspace(-2, 2, 4 * FEATURES, dtype=torch.float64).sin().view(4, FEATURES)

Build = Callable[[], nn.Module]


class Written(nn.Linear):
    """Keeps its weights small by writing into them."""

    def __init__(self, *, assigns: bool) -> None:
        super().__init__(FEATURES, CLASSES)
        self.assigns = assigns

    def forward(self, inputs: Tensor) -> Tensor:
        small = self.weight.detach().renorm(2, 0, 0.3)
        if self.assigns:
            self.weight.data = small
        else:
            self.weight.detach().copy_(small)
        return super().forward(inputs)


class Centred(nn.Module):
    """Subtracts the running mean of all inputs."""

    mean: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.inner, self.how = mlp(), how
        self.register_buffer("mean", torch.zeros(FEATURES), persistent=how != "unsaved")

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.inner(inputs - self.mean)
        with torch.no_grad():
            if self.how == "assigned":
                self.mean = 0.9 * self.mean + 0.1 * inputs.mean(0)
            elif self.training or self.how == "in evaluation":
                self.mean.mul_(0.9).add_(0.1 * inputs.mean(0))
        return logits


class Projecting(nn.Module):
    """Turns its inputs by a table that no saved model has: one that is drawn, or constant."""

    table: Tensor

    def __init__(self, drawn: bool) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_buffer("table", torch.rand(FEATURES) if drawn else torch.ones(FEATURES), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.inner(inputs * self.table)
        return logits


class Counting(nn.Module):
    """Warms up with its number of steps, which it keeps as an attribute, an integer buffer or a float buffer."""

    def __init__(self, start: int | Tensor) -> None:
        super().__init__()
        self.inner = mlp()
        if isinstance(start, Tensor):
            self.register_buffer("steps", start)
        else:
            self.steps = start

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        logits: Tensor = self.inner(inputs) / (1 + 0.1 * self.steps)
        return logits


class Silent(nn.Module):
    """Counts its steps and does not use them."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, inputs: Tensor) -> Tensor:
        self.steps += self.training
        logits: Tensor = self.inner(inputs)
        return logits


class Remembering(nn.Module):
    """Adds the features of the last minibatch in training."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head, self.last = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES), None

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.inner(inputs).tanh()
        if self.training:
            last, self.last = self.last, features.detach().mean(0)
            features = features if last is None else features + 0.1 * last
        logits: Tensor = self.head(features)
        return logits


class Teacher(nn.Module):
    """Averages its head's weights over the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.slow = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES).requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.slow.weight.lerp_(self.head.weight.detach(), 0.1)
        logits: Tensor = self.head(inputs) + self.slow(inputs)
        return logits


class Merging(nn.Linear):
    """A frozen layer with low-rank weights, which it adds to its own for evaluation."""

    def __init__(self) -> None:
        super().__init__(FEATURES, CLASSES)
        self.weight.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, FEATURES)), nn.Parameter(torch.zeros(CLASSES, 2))
        self.merged = False

    def train(self, mode: bool = True) -> "Merging":
        if self.merged == mode:
            self.weight.data += (self.b @ self.a) * (-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)

    def forward(self, inputs: Tensor) -> Tensor:
        logits = super().forward(inputs)
        return logits if self.merged else logits + inputs @ self.a.T @ self.b.T


def hooked(kind: str) -> nn.Module:
    """Trains every second weight alone."""
    net = mlp()
    mask = (torch.arange(WIDTH * FEATURES) % 2).view(WIDTH, FEATURES).double()
    weight = net.get_parameter("0.weight")
    if kind == "hook":
        weight.register_hook(lambda g: g * mask)
    else:
        weight.register_post_accumulate_grad_hook(lambda p: None if p.grad is None else p.grad.mul_(mask))
    return net


class Listed(nn.Module):
    """Has its weights in a list too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)
        self.weights = [self.inner.weight]

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weights[0], self.inner.bias)


class Features(nn.Module):
    """Its head takes what a hook, or forward(), has kept of the first layer."""

    def __init__(self, *, by_hook: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.kept: dict[str, list[Tensor]] = {}
        self.by_hook = by_hook
        if by_hook:
            self.body.register_forward_hook(lambda layer, inputs, out: self.kept.update(body=[out]))

    def forward(self, inputs: Tensor) -> Tensor:
        out = self.body(inputs)
        if not self.by_hook:
            self.kept["body"] = [out]
        logits: Tensor = self.head(self.kept["body"][0].tanh())
        return logits


class Words(nn.Module):
    """The mean of embeddings."""

    def __init__(self, **how: object) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(4, WIDTH, **how), nn.Linear(WIDTH, CLASSES)  # type: ignore[arg-type]

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.words(inputs.abs().clamp(max=3).long()).mean(1))
        return logits


class Unused(nn.Module):
    """A frozen parameter has a value that is not a number and that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)
        self.scales = nn.Parameter(torch.tensor([1.0, torch.nan]), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(inputs) * self.scales[0]
        return logits


class Locking(Unused):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Branching(nn.Module):
    """Which layer computes depends on the minibatch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        first = self.training and inputs.mean() > 0.6
        logits: Tensor = self.one(inputs) if first else self.other(inputs)
        return logits


def with_first(change: Callable[[nn.Module], nn.Module]) -> Build:
    """A network whose first layer is changed."""

    def build() -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the old weight norm
            return nn.Sequential(change(nn.Linear(FEATURES, WIDTH)), nn.Tanh(), nn.Linear(WIDTH, CLASSES))

    return build


def sharing(tie: Callable[[nn.Linear, nn.Linear], object]) -> Build:
    """A network of which two layers have one memory."""

    def build() -> nn.Module:
        first, second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        tie(first, second)
        return nn.Sequential(first, second, nn.Linear(FEATURES, CLASSES))

    return build


def in_columns(first: nn.Linear, second: nn.Linear) -> None:
    """The layers' weights are the halves of the rows of one tensor: they lie between each other and share no value."""
    halves = torch.cat([first.weight.detach(), second.weight.detach()], 1).chunk(2, dim=1)
    first.weight.data, second.weight.data = halves


def in_columns_with_one_of_the_first(first: nn.Linear, second: nn.Linear) -> None:
    in_columns(first, second)
    second.register_buffer("corner", first.weight.detach()[-1, -1:])


REFUSED: dict[str, tuple[Build, str]] = {
    "one memory": (
        sharing(lambda a, b: setattr(b.weight, "data", a.weight.data)),
        r"the model's 0.weight and 1.weight share memory and would part in training: assign the tensor itself",
    ),
    "the memory of a row": (
        sharing(lambda a, b: b.register_buffer("row", a.weight.detach()[2])),
        "0.weight and 1.row share memory",
    ),
    "the memory of a buffer": (
        sharing(lambda a, b: (a.register_buffer("mean", row := torch.zeros(2)), b.register_buffer("first", row[:1]))),
        "(0.mean and 1.first|1.first and 0.mean) share memory",
    ),
    "the memory of a value between others": (
        sharing(in_columns_with_one_of_the_first),
        "0.weight and 1.corner share memory",
    ),
    "a weight assigned": (
        lambda: Written(assigns=True),
        "in the place of its parameter weight, as self.weight",
    ),
    "a weight written": (lambda: Written(assigns=False), "changes its parameter weight in forward"),
    "max_norm": (lambda: Words(max_norm=0.1), "changes its parameter words.weight in forward"),
    "a buffer assigned": (lambda: Centred("assigned"), r"in the place of its buffer mean, .* as self.mean.copy_\("),
    "a buffer in evaluation": (lambda: Centred("in evaluation"), "changes its buffer mean in evaluation too"),
    "a buffer that is not saved": (lambda: Centred("unsaved"), r"state_dict\(\) lacks mean, .* persistent=True"),
    "a table that is drawn": (lambda: Projecting(drawn=True), r"state_dict\(\) lacks table, .* persistent=True"),
    "steps as an attribute": (lambda: Counting(0), "logits or buffers in training depend on earlier calls"),
    "steps as integers": (lambda: Counting(torch.tensor(0)), "changes steps, which no model's vector holds"),
    "steps for nothing": (Silent, "changes steps, which no model's vector holds"),
    "the last minibatch": (Remembering, "logits or buffers in training depend on earlier calls"),
    "a slow copy": (Teacher, "changes slow.weight, which no model's vector holds"),
    "merging": (Merging, "changes weight, which no model's vector holds, .* merge no weights in train"),
    "a hook on a gradient": (lambda: hooked("hook"), "parameter 0.weight has a hook for its gradient"),
    "a hook after a gradient": (lambda: hooked("post"), "parameter 0.weight has a hook for its gradient"),
    "a list of weights": (Listed, "does not compute with the parameters that it has by name"),
    "a hook that refers to the network": (lambda: Features(by_hook=True), "a copy of the model gives other logits"),
    "torch.jit": (
        lambda: torch.jit.script(mlp()),
        "torch cannot compute the model as a function .* torch.jit",
    ),
    "DataParallel": (lambda: nn.DataParallel(mlp()), "torch cannot compute the model as a function .*DataParallel"),
    "a lock": (Locking, r"the model cannot be copied \(.*lock.*\): keep no lock"),
    "sparse": (lambda: Words(sparse=True), "torch cannot compute the model as a function .* and sparse gradients"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
@pytest.mark.parametrize("name", REFUSED)
def test_what_executors_would_compute_differently_is_one_line(name: str) -> None:
    build, words = REFUSED[name]
    with pytest.raises(ValueError, match=f"^[^\n]*{words}[^\n]*$"):
        try_network(model_family(build), INPUTS)


# What trains, with whether examples mix in training, and whether models cannot compute side by side.
TRAINS: dict[str, tuple[Build, bool, bool]] = {
    "a running mean": (lambda: Centred("in place"), True, False),
    "steps as floats": (lambda: Counting(torch.tensor(0.0)), False, False),
    "a constant table": (lambda: Projecting(drawn=False), False, False),
    "kept features": (lambda: Features(by_hook=False), False, False),
    "padding": (lambda: Words(padding_idx=0), False, True),
    "frequencies": (lambda: Words(scale_grad_by_freq=True), False, True),
    "a branch": (Branching, False, True),
    "unused": (Unused, False, False),
    "tied": (sharing(lambda a, b: setattr(b, "weight", a.weight)), False, False),
    "columns of one tensor": (sharing(in_columns), False, False),
    "weight norm": (with_first(parametrizations.weight_norm), False, False),
    "old weight norm": (with_first(weight_norm), False, False),
    "spectral norm": (with_first(parametrizations.spectral_norm), False, True),
    "orthogonal": (with_first(parametrizations.orthogonal), False, False),
    "pruned": (with_first(lambda layer: prune.random_unstructured(layer, "weight", 0.5)), False, False),
}


def by_hand(build: Build, work: Work, row: int) -> Tensor:
    """A client's model [D] after plain SGD with PyTorch's own means."""
    torch.manual_seed(0)
    network, plan, layout = build().double().train(), work.plan(work.ids), work.family.layout
    values = dict(network.named_parameters()) | dict(network.named_buffers())
    for name, (begin, shape) in layout.items():
        values[name].detach().copy_(work.start[begin : begin + shape.numel()].view(shape))
    optimizer = torch.optim.SGD(network.parameters(), lr=work.lr)
    for t in range(int(work.num_steps[row])):
        inputs, targets = work.client_data.minibatch(plan.indices[row, t, : plan.sizes[row, t]])
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), targets).backward()
        optimizer.step()
    return torch.cat([values[name].detach().reshape(-1) for name in layout])


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap says so of weight norm
@pytest.mark.parametrize("name", TRAINS)
def test_other_odd_networks_train_as_a_plain_loop_does(name: str) -> None:
    build, mixes, alone = TRAINS[name]
    fed = federation((9, 20, 5), build=build)
    family, inputs = fed.family, fed.client_data.inputs
    try_network(family, inputs)
    assert (family.mixes, bool(family.alone)) == (mixes, alone)
    work = work_of(fed)
    expected = torch.stack([by_hand(build, work, row) for row in range(3)])
    for executor in [Loop(compile=False), *([] if alone else [Vectorized(size, False) for size in (None, 2)])]:
        y, _ = executor.train(work)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-9)
        family.mode(False)
        network = SeparateModule(family, y[0].clone())
        network.follow_mode()
        torch.testing.assert_close(network(inputs), family.predict(y[0], inputs), rtol=0, atol=1e-12)


def test_random_numbers_hide_no_mixing() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, inputs: Tensor) -> Tensor:
            logits: Tensor = self.inner(inputs)
            return F.dropout(logits - logits.mean(0), 0.2) if self.training else logits

    family = model_family(Mixing)
    try_network(family, INPUTS)
    assert family.draws and family.mixes
