"""Local training, mutual learning and evaluation as one writes them in plain PyTorch, honest and tidy."""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.work import Work

Call = Callable[[Tensor], Tensor]


def train_cohort(work: Work, build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Federated averaging as most code has it: a copy of the server's module, a DataLoader and an optimiser for each
    client. The mean of the clients' models, weighted by examples.
    """
    data = TensorDataset(work.client_data.inputs.cpu(), work.client_data.targets.cpu())
    server = _server(work, build)
    models, sizes = [], []
    for client in work.ids.tolist():
        members = work.client_data.members(client).tolist()
        model, *_ = train_client(server, data, members, work.local, work.lr, work.family.device, mixed(work.family))
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
    precision: torch.autocast,
    correct: Callable[[nn.Module], None] = lambda model: None,
) -> tuple[nn.Module, list[Tensor], int]:
    """A trained copy of the server's module, the losses of the last epoch and the number of steps; `correct` changes
    the gradients before each. Forward passes are in a `precision`.
    """
    model, losses, steps = copy.deepcopy(server).train(), list[Tensor](), 0
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=lr)
    loader = DataLoader(Subset(data, members), batch_size=local.batch_size, shuffle=True)
    for _ in range(local.epochs or 1):
        losses.clear()
        for inputs, targets in loader:
            optimizer.zero_grad()
            with precision:
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
    inputs, targets = work.client_data.inputs, work.client_data.targets
    module, mean, precision = _server(work, build).train(), dict[str, Tensor](), mixed(work.family)
    forward = prepared(module)
    sent = {k for k, p in module.named_parameters() if p.requires_grad} | {k for k, _ in module.named_buffers()}
    server = {k: v for k, v in work.family.state_dict(work.start).items() if k in sent}
    trained = [p for p in module.parameters() if p.requires_grad]
    total = int(work.client_data.num_examples[work.ids].sum())
    for client in work.ids.tolist():
        members = torch.from_numpy(work.client_data.members(client)).to(inputs.device)
        module.load_state_dict(server, strict=False)
        optimizer = torch.optim.SGD(trained, lr=work.lr)
        for _ in range(work.local.epochs or 1):
            for rows in members[torch.randperm(len(members), device=inputs.device)].split(work.local.batch_size):
                optimizer.zero_grad()
                with precision:
                    loss = F.cross_entropy(forward(inputs[rows]), targets[rows])
                loss.backward()
                optimizer.step()
        values = module.state_dict()
        for name in server:
            share = values[name] * (len(members) / total)
            mean[name] = mean[name] + share if name in mean else share
    return mean


def train_cohort_stacked(work: Work, build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """All clients side by side, as the tutorials of torch.func have it: stacked parameters and vmapped gradients. The
    clients have equally many examples, in whole minibatches, and the module has no buffers.
    """
    module, local, device = _server(work, build).train(), work.local, work.client_data.inputs.device
    params = {
        name: p.detach().expand(len(work.ids), *p.shape).clone()
        for name, p in module.named_parameters()
        if p.requires_grad
    }
    members = torch.stack([torch.from_numpy(work.client_data.members(client)) for client in work.ids.tolist()]).to(
        device
    )

    def loss(params: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        with mixed(work.family):
            return F.cross_entropy(functional_call(module, params, (inputs,)), targets)

    gradient = vmap(grad(loss), randomness="different")
    for _ in range(local.epochs or 1):
        shuffled = members.gather(1, torch.rand(members.shape, device=device).argsort(1))
        for rows in shuffled.split(local.batch_size, 1):
            gradients = gradient(params, work.client_data.inputs[rows], work.client_data.targets[rows])
            params = {name: p - work.lr * gradients[name] for name, p in params.items()}
    return {name: p.mean(0) for name, p in params.items()}


def mixed(family: ModelFamily) -> torch.autocast:
    """The precision of a task's forward passes, to be entered."""
    return torch.autocast(family.device.type, family.autocast, enabled=family.autocast is not None)


def channels_last(module: nn.Module) -> Call:
    """The module with the channels of images side by side, as a GPU's convolutions have it."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return lambda inputs: module(inputs.contiguous(memory_format=torch.channels_last))


def learn_mutually(work: Work, client: int, models: list[nn.Module], alpha: float) -> None:
    """An epoch of mutual learning on one client's examples: every model follows its loss on the labels and the mean of
    its divergences from the others.
    """
    client_data, precision = work.client_data, mixed(work.family)
    optimizers = [torch.optim.SGD(model.parameters(), lr=work.lr) for model in models]
    members = torch.from_numpy(client_data.members(client)).to(client_data.inputs.device)
    for rows in members[torch.randperm(len(members), device=members.device)].split(work.local.batch_size):
        inputs, targets = client_data.inputs[rows], client_data.targets[rows]
        with precision:
            logits = [model(inputs).float() for model in models]
        taught = [F.softmax(each.detach(), 1) for each in logits]
        for i, (optimizer, mine) in enumerate(zip(optimizers, logits, strict=True)):
            log_p, others = F.log_softmax(mine, 1), [q for j, q in enumerate(taught) if j != i]
            apart = sum(F.kl_div(log_p, q, reduction="batchmean") for q in others) / len(others)
            optimizer.zero_grad()
            ((1 - alpha) * F.cross_entropy(mine, targets) + alpha * apart).backward()
        for optimizer in optimizers:
            optimizer.step()


@torch.no_grad()
def accuracy(
    work: Work,
    build: Callable[[], nn.Module],
    batch_size: int,
    prepared: Callable[[nn.Module], Call] = lambda module: module,
) -> float:
    """Of the server's model on all examples."""
    forward = prepared(_server(work, build).eval())
    pairs = zip(work.client_data.inputs.split(batch_size), work.client_data.targets.split(batch_size), strict=True)
    with mixed(work.family):
        right = sum(int((forward(inputs).argmax(1) == targets).sum()) for inputs, targets in pairs)
    return right / len(work.client_data.targets)


def _server(work: Work, build: Callable[[], nn.Module]) -> nn.Module:
    module = build().to(work.family.device)
    module.load_state_dict(work.family.state_dict(work.start))
    return module
