"""Whole rounds in plain PyTorch of algorithms whose clients follow more than the gradient of their loss."""

from collections import defaultdict

import torch
from torch import Tensor, nn

from benchmarks.plain_rounds import Change, Clients, FedAvg


def pulling(x: Tensor, mu: float) -> Change:
    """Adds mu (w - x) to gradients, for the model x [D]."""

    @torch.no_grad()
    def pull(model: nn.Module) -> None:
        for p, part in zip(model.parameters(), x.split([p.numel() for p in model.parameters()]), strict=True):
            assert p.grad is not None
            p.grad.add_(p - part.view_as(p), alpha=mu)

    return pull


class FedProx(FedAvg):
    """FedAvg whose clients stay near the model that they received."""

    def __init__(self, clients: Clients, mu: float) -> None:
        super().__init__(clients)
        self.mu = mu

    def __call__(self, number: int) -> Tensor:
        pull = pulling(self.x, self.mu)
        self.average(self.clients.round(number, self.x, lambda client: pull))
        return self.x


class FedNova(FedProx):
    """FedProx's clients; each change is divided by the client's steps, as the pull shortens them."""

    def __call__(self, number: int) -> Tensor:
        pull, shrinkage = pulling(self.x, self.mu), self.clients.lr * self.mu
        arrived = self.clients.round(number, self.x, lambda client: pull)
        total, change, tau = sum(update.examples for update in arrived), torch.zeros_like(self.x), 0.0
        for update in arrived:
            share = update.examples / total
            work = sum((1 - shrinkage) ** step for step in range(update.steps))
            change += share / work * update.change
            tau += share * (update.steps if self.mu else work)
        self.x = self.x + tau * change
        return self.x


class FedDyn(FedAvg):
    """Clients remember a gradient each, and the server their mean."""

    def __init__(self, clients: Clients, alpha: float) -> None:
        super().__init__(clients)
        self.alpha, self.h = alpha, torch.zeros_like(self.x)
        self.g = defaultdict[int, Tensor](lambda: torch.zeros_like(self.x))

    def __call__(self, number: int) -> Tensor:
        arrived = self.clients.round(number, self.x, self._change)
        for update in arrived:
            self.g[update.client] = self.g[update.client] - self.alpha * update.change
        changes = torch.stack([update.change for update in arrived])
        self.h = self.h - self.alpha / self.clients.count * changes.sum(0)
        self.x = self.x + changes.mean(0) - self.h / self.alpha
        return self.x

    def _change(self, client: int) -> Change:
        # g is subtracted with the pull: alpha (w - x) - g = alpha (w - (x + g / alpha))
        return pulling(self.x + self.g[client] / self.alpha, self.alpha)
