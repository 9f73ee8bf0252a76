"""Whole rounds of algorithms as one writes them in plain PyTorch, honest and tidy: a model is a vector, an update what
a client has changed of it, and what the server remembers stands in lists and dicts.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.plain import mixed, train_client
from fedlab_runner.core.federation import Federation


class Update(NamedTuple):
    """What a client sends."""

    client: int
    change: Tensor  # of the model it had received [D]
    model: Tensor  # that it ended with [D]
    examples: int
    steps: int
    loss: float  # the mean of its last epoch


Change = Callable[[nn.Module], None]  # of a module's gradients


def unchanged(model: nn.Module) -> None:
    """Leaves gradients as they are."""


def adding(values: Tensor) -> Change:
    """Adds values [D] to gradients."""

    def add(model: nn.Module) -> None:
        parts = values.split([p.numel() for p in model.parameters()])
        for p, part in zip(model.parameters(), parts, strict=True):
            assert p.grad is not None
            p.grad += part.view_as(p)

    return add


class Clients:
    """Who trains, from which model, and when the updates come."""

    def __init__(self, fed: Federation, build: Callable[[], nn.Module], delays: np.ndarray) -> None:
        self.count, self.cohort, self.local, self.lr = fed.num_clients, fed.cohort_size, fed.local, fed.lr
        self.members, self.device, self.precision = fed.client_data.members, fed.family.device, mixed(fed.family)
        self.data = TensorDataset(fed.client_data.inputs.cpu(), fed.client_data.targets.cpu())
        self.module = build().to(self.device)
        self.module.load_state_dict(fed.family.state_dict(fed.family.init(fed.seed)))
        self.delays = delays.tolist()
        self.on_their_way: dict[int, list[Update]] = defaultdict(list)
        self.busy = set[int]()

    def first_model(self) -> Tensor:
        """The server's, before any round [D]."""
        return parameters_to_vector(self.module.parameters()).detach().clone()

    def round(self, number: int, x: Tensor, change: Callable[[int], Change] | None = None) -> list[Update]:
        """What arrives in a round whose cohort trains from x [D]; `change(client)` changes gradients before a step."""
        idle = [c for c in range(self.count) if c not in self.busy] if self.busy else range(self.count)
        vector_to_parameters(x.clone(), self.module.parameters())
        for client in random.sample(idle, min(self.cohort, len(idle))):
            self.on_their_way[number + self.delays[client]].append(
                self._train(client, x, unchanged if change is None else change(client))
            )
            self.busy.add(client)
        arrived = self.on_their_way.pop(number, [])
        self.busy -= {update.client for update in arrived}
        return arrived

    def _train(self, client: int, x: Tensor, change: Change) -> Update:
        members = self.members(client).tolist()
        how = self.local, self.lr, self.device, self.precision, change
        model, losses, steps = train_client(self.module, self.data, members, *how)
        y = parameters_to_vector(model.parameters()).detach()
        return Update(client, y - x, y, len(members), steps, float(torch.stack(losses).mean()))


class FedAvg:
    """Adds the mean of the changes, weighted by examples; a call is a round, of which the model [D] is returned."""

    def __init__(self, clients: Clients) -> None:
        self.clients, self.x = clients, clients.first_model()

    def __call__(self, number: int) -> Tensor:
        self.average(self.clients.round(number, self.x))
        return self.x

    def average(self, arrived: list[Update]) -> None:
        total = sum(update.examples for update in arrived)
        for update in arrived:
            self.x = self.x + update.change * (update.examples / total)


class FedBuff(FedAvg):
    """Adds the mean of every ten changes."""

    def __init__(self, clients: Clients, buffer_size: int = 10) -> None:
        super().__init__(clients)
        self.buffer_size, self.buffer = buffer_size, list[Tensor]()

    def __call__(self, number: int) -> Tensor:
        for update in self.clients.round(number, self.x):
            self.buffer.append(update.change)
            if len(self.buffer) == self.buffer_size:
                self.x = self.x + torch.stack(self.buffer).mean(0)
                self.buffer.clear()
        return self.x


class CA2FL(FedBuff):
    """FedBuff with the last change of every client."""

    def __init__(self, clients: Clients, buffer_size: int = 10) -> None:
        super().__init__(clients, buffer_size)
        self.last, self.mean = dict[int, Tensor](), torch.zeros_like(self.x)

    def __call__(self, number: int) -> Tensor:
        for update in self.clients.round(number, self.x):
            known = self.last.get(update.client)
            self.buffer.append(update.change if known is None else update.change - known)
            self.last[update.client] = update.change
            if len(self.buffer) == self.buffer_size:
                news = torch.stack(self.buffer)
                self.x = self.x + self.mean + news.mean(0)
                self.mean = self.mean + news.sum(0) / self.clients.count
                self.buffer.clear()
        return self.x


class SCAFFOLD(FedAvg):
    """Corrects gradients by control variates, option II."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self.c, self.c_i = torch.zeros_like(self.x), defaultdict[int, Tensor](lambda: torch.zeros_like(self.x))

    def __call__(self, number: int) -> Tensor:
        arrived = self.clients.round(number, self.x, lambda client: adding(self.c - self.c_i[client]))
        changes = list[Tensor]()
        for update in arrived:
            before = self.c_i[update.client]
            self.c_i[update.client] = before - self.c - update.change / (update.steps * self.clients.lr)
            changes.append(self.c_i[update.client] - before)
        self.x = self.x + torch.stack([update.change for update in arrived]).mean(0)
        self.c = self.c + torch.stack(changes).sum(0) / self.clients.count
        return self.x


class FedCDA(FedAvg):
    """Averages one of the last models of each client, chosen in groups among all combinations."""

    def __init__(
        self, clients: Clients, memory: int = 3, batches: int = 3, warmup: int = 2, smooth: float = 1.0
    ) -> None:
        super().__init__(clients)
        self.memory, self.batches, self.warmup, self.smooth = memory, batches, warmup, smooth
        self.caches = defaultdict[int, list[tuple[Tensor, float, float]]](list)  # models, losses, squared lengths
        self.chosen = dict[int, tuple[Tensor, float, float]]()

    def __call__(self, number: int) -> Tensor:
        arrived = self.clients.round(number, self.x)
        for update in arrived:
            model = update.model.double()
            cache = self.caches[update.client]
            cache.insert(0, (model, update.loss, float(model.square().sum())))
            del cache[self.memory :]
        if number < self.warmup:
            self.average(arrived)
            self.chosen |= {update.client: self.caches[update.client][0] for update in arrived}
            return self.x
        for update in arrived:
            self.chosen.pop(update.client, None)
        order = random.sample(arrived, len(arrived))
        for group in np.array_split(np.array([update.client for update in order]), min(self.batches, len(order))):
            self.choose(group.tolist())
        self.x = torch.stack([model for model, *_ in self.chosen.values()]).mean(0).to(self.x.dtype)
        return self.x

    def choose(self, group: list[int]) -> None:
        """Of the group's combinations the one with the smallest mean loss and divergence, beside what is chosen."""
        fixed, count = list(self.chosen.values()), len(self.chosen) + len(group)
        start = torch.stack([model for model, *_ in fixed]).sum(0) if fixed else torch.zeros_like(self.x).double()

        def objective(combination: Sequence[tuple[Tensor, float, float]]) -> float:
            total = start.clone()
            for model, *_ in combination:
                total += model
            everyone = [*fixed, *combination]
            spread = sum(square for *_, square in everyone) / count - float((total / count).square().sum())
            return sum(loss for _, loss, _ in everyone) / count + self.smooth / 2 * spread

        best = min(itertools.product(*(self.caches[client] for client in group)), key=objective)
        self.chosen |= dict(zip(group, best, strict=True))


class FedFT(FedAvg):
    """FedAvg, then epochs of Adam on the server's examples."""

    def __init__(self, clients: Clients, fed: Federation, epochs: int, lr: float, batch_size: int) -> None:
        super().__init__(clients)
        data = fed.server_data
        assert data is not None
        self.epochs, self.lr = epochs, lr
        self.loader = DataLoader(TensorDataset(data.inputs.cpu(), data.targets.cpu()), batch_size, shuffle=True)

    def __call__(self, number: int) -> Tensor:
        super().__call__(number)
        module, device = self.clients.module, self.clients.device
        vector_to_parameters(self.x.clone(), module.parameters())
        optimizer = torch.optim.Adam(module.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            for inputs, targets in self.loader:
                optimizer.zero_grad()
                with self.clients.precision:
                    loss = F.cross_entropy(module(inputs.to(device)), targets.to(device))
                loss.backward()
                optimizer.step()
        self.x = parameters_to_vector(module.parameters()).detach().clone()
        return self.x


class Feddle(FedFT):
    """Searches the coefficients of the clients' last changes by Adam, through the sum that they make."""

    def __init__(self, clients: Clients, fed: Federation, epochs: int, lr: float, batch_size: int) -> None:
        super().__init__(clients, fed, epochs, lr, batch_size)
        self.size, self.anchors, self.scores = 2 * clients.cohort, list[Tensor](), list[float]()

    def __call__(self, number: int) -> Tensor:
        for update in self.clients.round(number, self.x):
            if len(self.anchors) == self.size:
                least = self.scores.index(min(self.scores))
                del self.anchors[least], self.scores[least]
            self.anchors.append(update.change)
            self.scores.append(float("inf"))
        anchors, new = torch.stack(self.anchors), torch.tensor(self.scores, device=self.x.device).isinf()
        lengths = anchors.norm(dim=1, keepdim=True)
        scales = lengths.quantile(0.5) / lengths
        anchors, fallback = anchors * scales, new / new.sum() / scales.squeeze(1)
        c, module, device = fallback.clone().requires_grad_(), self.clients.module, self.clients.device
        optimizer = torch.optim.Adam([c], lr=self.lr)
        names, shapes = zip(*((name, p.shape) for name, p in module.named_parameters()), strict=True)
        for _ in range(self.epochs):
            for inputs, targets in self.loader:
                parts = (self.x + c @ anchors).split([shape.numel() for shape in shapes])
                params = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
                optimizer.zero_grad()
                with self.clients.precision:
                    loss = F.cross_entropy(functional_call(module, params, inputs.to(device)), targets.to(device))
                loss.backward()
                optimizer.step()
        self.x = self.x + c.detach() @ anchors
        self.scores = c.detach().abs().tolist()
        return self.x
