"""Augmentations are what torchvision does, and a function of the key: the same in every executor and after a pause."""

import itertools
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as V
from torch import Tensor, nn

from fedlab_runner.algorithms.shared.feature_blocks import check_blocks
from fedlab_runner.algorithms.shared.mutual_learning import MutualJob
from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.algorithms.shared.server_training import train_as_client
from fedlab_runner.augment.base import Augment
from fedlab_runner.augment.crop_flip import CropFlip
from fedlab_runner.augment.cutout import Cutout
from fedlab_runner.augment.none import NoAugment
from fedlab_runner.checkpoints.state_packing import pack, unpack
from fedlab_runner.config.build import build
from fedlab_runner.core.algorithm import Algorithm
from fedlab_runner.core.client_data import ClientData, Plan
from fedlab_runner.core.client_losses import client_losses
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.local_training import LocalTraining
from fedlab_runner.core.rng import Purpose
from fedlab_runner.executors._lasting import packed
from fedlab_runner.executors.auto import Auto
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.processes import Processes
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.run import prepare, run_in
from fedlab_runner.utils.errors import UserError
from tests.executors.test_contract import EVERYONE, train
from tests.helpers.composed import composed, files
from tests.helpers.kinds import by_kind
from tests.helpers.toy import (
    ALGORITHMS,
    CLASSES,
    CPU,
    FEATURES,
    RAGGED,
    algorithm,
    federation,
    local,
    run,
    tensors,
    vectors,
)

CHANNELS, HEIGHT, WIDTH = 2, 6, 7
SHAPE = torch.Size((CHANNELS, HEIGHT, WIDTH))
CROP_FLIP, CUTOUT = CropFlip(padding=2, flip=0.3), Cutout(padding=1, flip=0.5, size=4)


def pixels(n: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """No two of an image's are alike, and none is black."""
    values = torch.arange(1, 1 + CHANNELS * HEIGHT * WIDTH).view(1, *SHAPE)
    return (values + torch.arange(n).view(-1, 1, 1, 1)).to(dtype)


def small(normed: bool = True) -> nn.Module:
    norm = [nn.BatchNorm2d(3)] if normed else []
    return nn.Sequential(
        *(nn.Conv2d(CHANNELS, 3, 3), *norm, nn.Tanh(), nn.Flatten()), nn.Linear(3 * (HEIGHT - 2) * (WIDTH - 2), CLASSES)
    )


def of_images(
    augment: Augment, executor: Executor | None = None, *, normed: bool = True, device: torch.device = CPU
) -> Federation:
    """Ragged clients with small images, stored as bytes."""
    fed = federation(build=lambda: small(normed), executor=executor, device=device)
    inputs = torch.from_numpy(np.random.default_rng(3).integers(1, 4, (sum(RAGGED), *SHAPE), dtype=np.uint8))
    split = [fed.client_data.members(client) for client in EVERYONE.tolist()]
    fed.trainer.client_data = ClientData(inputs, fed.client_data.targets, split, device, augment=augment)
    return fed


@dataclass(frozen=True)
class Rolled(Augment):
    """Of features, which no choice of the package is for: any of their cyclic orders."""

    numbers: ClassVar[int] = 1

    def num_views(self, shape: torch.Size) -> int:
        return shape[0]

    def views(self, drawn: np.ndarray, shape: torch.Size) -> np.ndarray:
        views: np.ndarray = (drawn[:, 0] * shape[0]).astype(np.int64)
        return views

    def apply(self, inputs: Tensor, views: Tensor) -> Tensor:
        length = inputs.shape[1]
        return inputs.gather(1, (torch.arange(length, device=views.device) + views.unsqueeze(1)) % length)


# Pixels


def places(count: int) -> np.ndarray:
    """A number for each of so many places, in the middle of what stands for it."""
    return (np.arange(count) + 0.5) / count


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_every_crop_and_mirror_image_is_torchvisions(padding: int, dtype: torch.dtype) -> None:
    augment, span = CropFlip(padding=padding, flip=0.5), 2 * padding + 1
    drawn = np.array([*itertools.product(places(span), places(span), (0.25, 0.75))])
    inputs = pixels(len(drawn), dtype)
    views = torch.from_numpy(augment.views(drawn, SHAPE))
    assert sorted(views.tolist()) == list(range(augment.num_views(SHAPE))), "each view has its number"
    found = augment.apply(inputs, views)
    assert found.dtype == dtype and torch.equal(inputs, pixels(len(drawn), dtype))
    for image, mine, (top, left, mirrored) in zip(inputs, found, drawn, strict=True):
        expected = V.crop(V.pad(image, [padding]), int(top * span), int(left * span), HEIGHT, WIDTH)
        assert torch.equal(mine, V.horizontal_flip(expected) if mirrored < 0.5 else expected)


@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_every_square_that_is_cut_out_is_torchvisions(size: int) -> None:
    augment = Cutout(padding=1, flip=0.5, size=size)
    drawn = np.array([*itertools.product((0.1, 0.5), (0.9,), (0.25, 0.75), places(HEIGHT), places(WIDTH))])
    views = torch.from_numpy(augment.views(drawn, SHAPE))
    assert len(set(views.tolist())) == len(drawn) and int(views.max()) < augment.num_views(SHAPE)
    before = CropFlip(padding=1, flip=0.5)
    inputs = before.apply(pixels(len(drawn)), torch.from_numpy(before.views(drawn[:, :3], SHAPE)))
    for image, mine, numbers in zip(inputs, augment.apply(pixels(len(drawn)), views), drawn, strict=True):
        (top, bottom), (left, right) = (
            (max(0, int(at * side) - size // 2), min(side, int(at * side) - size // 2 + size))
            for at, side in zip(numbers[3:], (HEIGHT, WIDTH), strict=True)
        )
        black = torch.zeros((), dtype=torch.uint8)
        assert torch.equal(mine, V.erase(image, top, left, bottom - top, right - left, black))


def test_a_minibatch_has_the_examples_and_targets_of_its_plan() -> None:
    """Whatever its leading dimensions, and padded with the first example."""
    client_data = of_images(CROP_FLIP).client_data
    index = torch.tensor([[5, 7, 0], [98, 3, 99]]) * client_data.num_views + torch.tensor([[3, 49, 0], [12, 0, 24]])
    inputs, targets = client_data.minibatch(index)
    for row, view in itertools.product(range(2), range(3)):
        example, number = divmod(int(index[row, view]), client_data.num_views)
        expected = CROP_FLIP.apply(client_data.inputs[example : example + 1], torch.tensor([number]))
        assert torch.equal(inputs[row, view], expected[0]) and targets[row, view] == client_data.targets[example]


# Draws


def plan(fed: Federation, ids: list[int], round: int = 0, training: LocalTraining | None = None, seed: int = 0) -> Plan:
    return fed.client_data.plan(np.array(ids), training or fed.local, seed=seed, round=round, drop_single=False)


def drawn(fed: Federation, *how: Any, **more: Any) -> Tensor:
    """The views in a plan [K, T, b]."""
    return plan(fed, *how, **more).indices % fed.client_data.num_views


def test_an_augmentation_leaves_the_minibatches_as_they_are() -> None:
    """Beside its draws there is one stream more, and no other has moved."""
    plain, augmented = federation(), federation(augment=Rolled())
    ids, training = EVERYONE.tolist(), local(epochs=3)
    assert torch.equal(plan(plain, ids, 2, training).indices, plan(augmented, ids, 2, training).indices // FEATURES)


def test_a_draw_is_a_function_of_seed_round_client_and_step() -> None:
    """Not of who else trains, nor of how many steps follow."""
    fed = federation(augment=Rolled())
    alone = drawn(fed, [5])[0]
    assert torch.equal(drawn(fed, [7, 2, 5])[2, : len(alone)], alone)
    for steps in (1, 3, 9):
        part = drawn(fed, [5], training=local(epochs=None, steps=steps))[0]
        together = min(steps, len(alone))
        sizes = plan(fed, [5]).sizes[0]
        for t in range(together):
            assert torch.equal(part[t, : sizes[t]], alone[t, : sizes[t]])
    others = drawn(fed, [7])[0, : len(alone)], drawn(fed, [5], 1)[0], drawn(fed, [5], seed=1)[0], alone.roll(3, 0)
    assert not any(torch.equal(alone, other) for other in others), "a client, a round, a seed and an epoch of its own"


def test_draws_have_the_distribution_that_is_asked_for() -> None:
    """Chi-square at a fixed seed, each beyond its 99.9 % quantile once in a thousand seeds, by Wilson and Hilferty."""
    fed = of_images(CROP_FLIP)
    views = torch.cat([drawn(fed, [7], round).flatten()[:40] for round in range(250)])
    top, left, mirrored = CROP_FLIP.parts(views)
    span = 2 * CROP_FLIP.padding + 1
    uniform = [1 / span] * span
    for found, shares in (
        (top, uniform),
        (left, uniform),
        (top * span + left, [1 / span**2] * span**2),
        (mirrored.long(), [0.7, 0.3]),
        (mirrored * span + top, [p * q for p in (0.7, 0.3) for q in uniform]),
    ):
        counts = torch.bincount(found, minlength=len(shares)).double().numpy()
        expected, freedom = np.array(shares) * len(views), len(shares) - 1
        quantile = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
        assert ((counts - expected) ** 2 / expected).sum() < quantile
    assert not CropFlip(padding=1, flip=0.0).parts(torch.from_numpy(CropFlip(1, 0.0).views(np.zeros((1, 3)), SHAPE)))[2]


# Executors

OTHERS: dict[str, Executor] = {
    "whole_cohort": Vectorized(chunk_size=None, compile=False),
    "chunks_of_3": Vectorized(chunk_size=3, compile=False),
    "chunks_of_1": Vectorized(chunk_size=1, compile=False),
    "processes": Processes(workers=2, inner=Loop(compile=False)),
    "auto": Auto(seconds=30.0, workers=2, compile=False),
}


@pytest.mark.parametrize("executor", OTHERS)
@pytest.mark.parametrize("augment", [CROP_FLIP, CUTOUT])
def test_every_executor_sees_the_same_views(augment: Augment, executor: str) -> None:
    """Ragged clients, partial minibatches, batch norm, bytes; and none sees what is stored."""
    reference, found = train(of_images(augment)), train(of_images(augment, OTHERS[executor]))
    for mine, theirs in zip(found, reference, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    plain, _ = train(of_images(NoAugment()))
    assert ((plain - reference[0]).abs().amax(1) > 1e-4).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns about is not ours
@pytest.mark.parametrize("compiled", [Loop(True), Vectorized(None, True), Vectorized(3, True)], ids=str)
def test_compiled_steps_see_the_same_views(compiled: Executor) -> None:
    ours, theirs = of_images(CUTOUT, compiled, normed=False), of_images(CUTOUT, normed=False)
    for round in range(2):
        ours.begin(round, 1.0)
        theirs.begin(round, 1.0)
        for mine, reference in zip(train(ours), train(theirs), strict=True):
            torch.testing.assert_close(mine, reference, rtol=0, atol=1e-9)


def test_clients_data_take_their_augmentation_to_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.cloudpickle", cloudpickle)  # of which Ray's is a copy
    client_data = of_images(CUTOUT).client_data
    sent, index = packed(client_data).client_data(CPU), torch.tensor([3 * client_data.num_views + 17])
    assert sent.augment == CUTOUT and torch.equal(sent.minibatch(index)[0], client_data.minibatch(index)[0])


# Algorithms

LATE: dict[str, Any] = {"cohort": 3, "std": 1.5}
LEARNING = [name for name in ALGORITHMS if algorithm(name).model_copies]  # where clients train


@pytest.mark.parametrize("name", by_kind(ALGORITHMS))
def test_every_algorithm_trains_on_views_in_any_chunks_and_after_a_pause(name: str) -> None:
    def fed(executor: Executor | None = None, augment: Augment = Rolled()) -> Federation:
        return federation(executor=executor, augment=augment, **LATE)

    built: Algorithm[Any] = algorithm(name)
    whole = fed()
    middle = run(built, whole, 2)
    saved = pack({"state": middle, "fed": whole.state_dict()})
    end = run(built, whole, 2, first=2, state=middle)
    chunks = run(built, fed(Vectorized(chunk_size=2, compile=False)), 4)
    torch.testing.assert_close(vectors(chunks), vectors(end), rtol=0, atol=1e-8)
    resumed = fed()
    state = unpack(saved["state"], like=built.init(resumed))
    resumed.load_state_dict(saved["fed"])
    state = run(built, resumed, 2, first=2, state=state)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(tensors(state), tensors(end), strict=True))
    plain = run(built, fed(augment=NoAugment()), 4)
    assert torch.equal(vectors(plain), vectors(end)) != (name in LEARNING)


def test_models_that_teach_each_other_see_one_view_and_it_is_not_that_of_local_training() -> None:
    fed, seven, training = federation(augment=Rolled()), np.array([7]), local(epochs=2)
    first, again = (list(MutualJob.of(fed, 7, fed.families, 0, 2, lambda z, _: z).batches()) for _ in range(2))
    locally, mutually = (
        fed.client_data.plan(seven, training, seed=0, round=0, drop_single=False, purpose=purpose).indices[0]
        for purpose in (None, Purpose.DISTILLATION)
    )
    for batch, same, index in zip(first, again, mutually, strict=True):
        assert torch.equal(batch.inputs, same.inputs) and torch.equal(batch.inputs, fed.client_data.minibatch(index)[0])
    assert not torch.equal(locally % FEATURES, mutually % FEATURES), "streams of their own"


def test_the_servers_examples_and_what_is_evaluated_stay_as_they_are() -> None:
    plain, augmented = federation(), federation(augment=Rolled())
    x = plain.family.init(0)
    models = torch.stack([plain.family.init(seed) for seed in EVERYONE])
    assert torch.equal(train_as_client(plain, x), train_as_client(augmented, x))
    batches = zip(server_batches(plain, 1, 8), server_batches(augmented, 1, 8), strict=True)
    assert all(torch.equal(mine.inputs, theirs.inputs) for mine, theirs in batches)
    losses = [client_losses(fed.family, fed.client_data, EVERYONE, models) for fed in (plain, augmented)]
    assert torch.equal(*losses)


# Runs


def test_runs_have_the_same_bytes_among_workers_and_after_a_pause(tmp_path: Path) -> None:
    chosen = ("algorithm=fedbuff", "augment=crop_flip", "augment.padding=1", "delay.std=2", "evaluation.every=1")
    run_in(tmp_path / "whole", composed(*chosen, "rounds=4", "executor=loop"))
    for rounds in (2, 4):
        run_in(tmp_path / "paused", composed(*chosen, f"rounds={rounds}", "executor=loop"))
    run_in(tmp_path / "workers", composed(*chosen, "rounds=4", "executor=processes", "executor.workers=2"))
    run_in(tmp_path / "plain", composed(*chosen[:1], *chosen[3:], "rounds=4", "executor=loop"))
    whole = files(tmp_path / "whole")
    assert files(tmp_path / "paused") == whole == files(tmp_path / "workers")
    assert files(tmp_path / "plain")["metrics.jsonl"] != whole["metrics.jsonl"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("augment=crop_flip", "augment.padding=-1"), r"^augment\.padding must be >= 0, got -1$"),
        (
            ("augment=crop_flip", "augment.padding=8"),
            r"^augment\.padding must be less than the images' 8 pixels, got 8$",
        ),
        (("augment=crop_flip", "augment.flip=1.5"), r"^augment\.flip must be in \[0, 1\], got 1\.5$"),
        (("augment=cutout", "augment.flip=-0.5"), r"^augment\.flip must be in \[0, 1\], got -0\.5$"),
        (("augment=cutout", "augment.size=0"), r"^augment\.size must be >= 1, got 0$"),
        (
            ("augment=cutout", "augment.size=15"),
            r"^augment\.size must be less than 15, .* covers all of 8x8 pixels, got 15$",
        ),
    ],
)
def test_what_cannot_be_is_one_line(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(build(composed(*overrides)))


def test_features_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^augment must be none where examples are not images, got shape \[5\]$"):
        federation(augment=CROP_FLIP)


def test_the_shorter_side_bounds_the_padding() -> None:
    with pytest.raises(ValueError, match=r"^padding must be less than the images' 6 pixels, got 6$"):
        CropFlip(padding=HEIGHT, flip=0.5).num_views(SHAPE)


def test_feature_blocks_are_refused_beside_an_augmentation() -> None:
    fed = federation(augment=Rolled())
    check_blocks(algorithm("fedavg"), fed)
    fed.blocks = np.ones((len(RAGGED), 1), dtype=bool)
    with pytest.raises(UserError, match=r"^augment must be none where clients hold feature blocks: "):
        check_blocks(algorithm("fedavg"), fed)
