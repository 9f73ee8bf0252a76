"""What is timed: synthetic federations of fixed shape."""

import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.clock import RoundClock
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.core.rng import Purpose, generator
from fedlab_runner.core.server_data import ServerData
from fedlab_runner.core.work import Work
from fedlab_runner.delays.half_normal import HalfNormalDelay
from fedlab_runner.executors._run_notes import noted
from fedlab_runner.executors.auto import EXECUTORS, Auto
from fedlab_runner.executors.loop import Loop
from fedlab_runner.participation.uniform import UniformParticipation

CLASSES, SIDE, SEED = 10, 28, 0
ROUNDS = 10_000  # of the run that executor=auto chooses for
CPU, FLOAT = torch.device("cpu"), torch.float32


def cnn() -> nn.Module:
    """582,026 parameters: the FedAvg CNN of PFLlib and FL-bench."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, CLASSES)),
    )


def mlp() -> nn.Module:
    """199,210 parameters."""
    widths = (nn.Linear(SIDE**2, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, CLASSES))
    return nn.Sequential(nn.Flatten(), *widths)


def wide_mlp() -> nn.Module:
    """1,796,010 parameters."""
    widths = (nn.Linear(SIDE**2, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, CLASSES))
    return nn.Sequential(nn.Flatten(), *widths)


def logistic() -> nn.Module:
    """7,850 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, CLASSES))


def empty() -> nn.Module:
    """11 parameters: what is left is the cost of a round itself."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, CLASSES, bias=False), nn.Softplus())


def cnn_feddle() -> nn.Module:
    """Feddle's CNN for CIFAR-10."""
    return _model("cnn_feddle").build(3, 32, CLASSES)


def dfml_cnn() -> nn.Module:
    """DFML's CNN for CIFAR-10."""
    return _model("dfml_cnn").build(3, 32, CLASSES)


def resnet18() -> nn.Module:
    """11,173,962 parameters: ResNet-18 with the stem for CIFAR."""
    return _model("resnet18").build(3, 32, CLASSES)


def lora_vit() -> nn.Module:
    """The smallest Vision Transformer of timm with LoRA of rank 4, on 16 patches."""
    return _model("vit_lora", name="vit_tiny_patch16_224", image_size=64).build(3, 64, CLASSES)


def counted_flops(fed: Federation) -> float:
    """The operations that the last round of a federation has counted, of clients and server."""
    return 1e9 * sum(fed.metrics.values.get(f"cost/{who}_gflops", 0.0) for who in ("client", "server"))


def _model(choice: str, **changes: Any) -> Any:
    return _built("model", choice, changes)


def algorithm(choice: str, **changes: Any) -> Any:
    """One of the package's, with its defaults but for the changes."""
    return _built("algorithm", choice, changes)


def evaluation(**changes: Any) -> Any:
    """The default evaluation with some changes."""
    return _built("evaluation", "default", changes)


def chosen(choice: str) -> dict[str, Any]:
    """A choice such as `home=head`, with its defaults, as Federation takes it; of an empty one, nothing."""
    group, _, name = choice.partition("=")
    return {group: _built(group, name, {})} if name else {}


def _built(group: str, choice: str, changes: dict[str, Any]) -> Any:
    import hydra.utils
    from omegaconf import OmegaConf

    from fedlab_runner.config.build import conf_dir

    return hydra.utils.instantiate(OmegaConf.load(conf_dir() / group / f"{choice}.yaml"), **changes, _convert_="all")


def automatic(cores: int, compile: bool) -> tuple[Executor, Callable[[], str]]:
    """executor=auto in a run of many rounds, and what says what it has chosen."""
    folder = Path(tempfile.mkdtemp(prefix="fedlab-bench-"))
    executor = Auto(seconds=0.0, workers=cores, compile=compile).bind_run(folder, ROUNDS)
    weakref.finalize(executor, shutil.rmtree, folder, ignore_errors=True)

    def choice() -> str:
        return ", ".join(noted(folder).get(EXECUTORS, {}).values())

    return executor, choice


@dataclass(frozen=True)
class Shape:
    """N clients with `examples` each, K of them in a round, in minibatches of `batch`."""

    clients: int
    examples: int
    cohort: int
    batch: int
    side: int = SIDE  # of an image
    channels: int = 1

    def delays(self, std: float) -> np.ndarray:
        """Of each client, in rounds, half-normal [N]."""
        return HalfNormalDelay(std=std, draw="client").sample(generator(SEED, Purpose.DELAY), np.arange(self.clients))

    def federation(
        self,
        build: Callable[[], nn.Module],
        executor: Executor | None = None,
        delay: float = 0.0,
        device: torch.device = CPU,
        precision: torch.dtype = FLOAT,
        **parts: Any,
    ) -> Federation:
        """With delays from a half-normal distribution of this spread, in rounds, and other `parts`; bfloat16 is
        autocast.
        """
        rng = np.random.default_rng(0)
        n = self.clients * self.examples
        targets = torch.from_numpy(rng.integers(CLASSES, size=n))
        inputs = torch.from_numpy(rng.random((n, self.channels, self.side, self.side), dtype=np.float32))
        client_data = ClientData(inputs, targets, np.split(np.arange(n), self.clients), device)
        mixed = precision == torch.bfloat16
        family = ModelFamily(
            build,
            CLASSES,
            normalize=Normalize(None, None),
            device=device,
            dtype=FLOAT if mixed else precision,
            autocast=precision if mixed else None,
        )
        delays = HalfNormalDelay(std=delay, draw="client")
        return Federation(
            family=family,
            client_data=client_data,
            clock=RoundClock(client_data.num_examples, UniformParticipation(self.cohort, None, 0), delays, SEED),
            executor=executor or Loop(compile=False),
            local=training(self.batch),
            seed=SEED,
            server_data=ServerData(client_data.inputs[:500], client_data.targets[:500], CLASSES, True),
            **parts,
        )


W1, W2 = Shape(100, 100, 10, 20), Shape(1000, 20, 50, 10)


def training(batch: int) -> LocalTraining:
    """One epoch of plain SGD."""
    plain = {"momentum": 0.0, "nesterov": False, "betas": None, "eps": None, "weight_decay": 0.0}
    bounds = {"clip_norm": None, "update_norm": None}
    return LocalTraining(optimizer="sgd", lr=0.05, epochs=1, steps=None, batch_size=batch, **plain, **bounds)  # type: ignore[arg-type]


def work_of(fed: Federation) -> Work:
    """The local training of one cohort."""
    ids = np.arange(fed.cohort_size)
    steps = fed.client_data.num_steps(ids, fed.local, fed.family.has_batch_norm)
    return Work(fed.family, fed.client_data, ids, steps, fed.local, fed.lr, 0, 0, fed.family.init(0))


def of_round(work: Work, round: int) -> Work:
    """The same in another round, with other minibatches."""
    return replace(work, round=round)
