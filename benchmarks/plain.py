"""Local training, mutual learning and evaluation as one writes them in plain PyTorch, honest and tidy."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fedlab_runner.executors.work import Work
from fedlab_runner.local import LocalTraining
from fedlab_runner.population import Population

Call = Callable[[Tensor], Tensor]


def train_cohort(work: Work, build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Federated averaging as most code has it: a copy of the server's module, a DataLoader and an optimiser for each
    client. The mean of the clients' models, weighted by examples.
    """
    data = TensorDataset(work.population.inputs.cpu(), work.population.targets.cpu())
    server = _server(work, build)
    models, sizes = [], []
    for client in work.ids.tolist():
        members = work.population.members(client).tolist()
        model, *_ = train_client(server, data, members, work.local, work.lr, work.task.device)
        models.append(model.state_dict())
        sizes.append(len(members))
    names = [name for name, value in server.state_dict().items() if value.is_floating_point()]
    return {name: sum(n / sum(sizes) * m[name] for n, m in zip(sizes, models, strict=True)) for name in names}


def train_client(
    server: nn.Module,
    data: Dataset[tuple[Tensor, ...]],
    members: list[int],
    local: LocalTraining,
    lr: float,
    device: torch.device,
    correct: Callable[[nn.Module], None] = lambda model: None,
) -> tuple[nn.Module, list[Tensor], int]:
    """A trained copy of the server's module, the losses of the last epoch and the number of steps; `correct` changes
    the gradients before each.
    """
    model, losses, steps = copy.deepcopy(server).train(), list[Tensor](), 0
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr)
    loader = DataLoader(Subset(data, members), batch_size=local.batch_size, shuffle=True)
    for _ in range(local.epochs or 1):
        losses.clear()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            correct(model)
            optimizer.step()
            losses.append(loss.detach())
            steps += 1
    return model, losses, steps


def train_cohort_lean(
    work: Work, build: Callable[[], nn.Module], prepared: Callable[[nn.Module], Call] = lambda module: module
) -> dict[str, Tensor]:
    """The same by someone who has looked at a profile: one module, loaded with the server's weights for each client,
    minibatches by index and a running mean; `prepared` makes of the module what is called.
    """
    inputs, targets = work.population.inputs, work.population.targets
    module, mean = _server(work, build).train(), dict[str, Tensor]()
    forward = prepared(module)
    sent = {k for k, p in module.named_parameters() if p.requires_grad} | {k for k, _ in module.named_buffers()}
    server = {k: v for k, v in work.task.state_dict(work.start).items() if k in sent}
    trained = [p for p in module.parameters() if p.requires_grad]
    total = int(work.population.num_examples[work.ids].sum())
    for client in work.ids.tolist():
        members = torch.from_numpy(work.population.members(client)).to(inputs.device)
        module.load_state_dict(server, strict=False)
        optimizer = torch.optim.SGD(trained, lr=work.lr)
        for _ in range(work.local.epochs or 1):
            for rows in members[torch.randperm(len(members), device=inputs.device)].split(work.local.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(forward(inputs[rows]), targets[rows]).backward()
                optimizer.step()
        values = module.state_dict()
        for name in server:
            share = values[name] * (len(members) / total)
            mean[name] = mean[name] + share if name in mean else share
    return mean


def channels_last(module: nn.Module) -> Call:
    """The module with the channels of images side by side, as a GPU's convolutions have it."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return lambda inputs: module(inputs.contiguous(memory_format=torch.channels_last))


def learn_mutually(
    population: Population, client: int, models: list[nn.Module], batch_size: int, lr: float, alpha: float
) -> None:
    """An epoch of mutual learning on one client's examples: every model follows its loss on the labels and the mean of
    its divergences from the others.
    """
    optimizers = [torch.optim.SGD(model.parameters(), lr=lr) for model in models]
    members = torch.from_numpy(population.members(client)).to(population.inputs.device)
    for rows in members[torch.randperm(len(members), device=members.device)].split(batch_size):
        inputs, targets = population.inputs[rows], population.targets[rows]
        logits = [model(inputs) for model in models]
        taught = [F.softmax(each.detach(), 1) for each in logits]
        for i, (optimizer, mine) in enumerate(zip(optimizers, logits, strict=True)):
            log_p, others = F.log_softmax(mine, 1), [q for j, q in enumerate(taught) if j != i]
            apart = sum(F.kl_div(log_p, q, reduction="batchmean") for q in others) / len(others)
            optimizer.zero_grad()
            ((1 - alpha) * F.cross_entropy(mine, targets) + alpha * apart).backward()
        for optimizer in optimizers:
            optimizer.step()


@torch.no_grad()
def accuracy(work: Work, build: Callable[[], nn.Module], batch_size: int) -> float:
    """Of the server's model on all examples."""
    module = _server(work, build).eval()
    pairs = zip(work.population.inputs.split(batch_size), work.population.targets.split(batch_size), strict=True)
    right = sum(int((module(inputs).argmax(1) == targets).sum()) for inputs, targets in pairs)
    return right / len(work.population.targets)


def _server(work: Work, build: Callable[[], nn.Module]) -> nn.Module:
    module = build().to(work.task.device)
    module.load_state_dict(work.task.state_dict(work.start))
    return module
