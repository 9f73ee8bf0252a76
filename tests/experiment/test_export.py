"""Saved weights of timm's architectures are a folder that timm itself loads; others leave no config.json."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config

from fedlab_runner import load
from fedlab_runner.config.build import build
from fedlab_runner.experiment.export import DESCRIPTION_FILE, read_models, save_models, saved_round
from fedlab_runner.experiment.run import run_in
from tests.helpers import pictures
from tests.helpers.composed import composed
from tests.helpers.toy import model_family

SAVED = ("algorithm=fedavg", "delay=none", "server_data=none", "rounds=1", "threads=1", "logger.save_model=true")
SMALL_DATA = ("dataset=synthetic", "dataset.num_train=60", "dataset.num_test=20", "dataset.num_classes=3")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pictures, and without a network."""
    pictures.leave_out(monkeypatch.setattr)

    def refuse(*args: Any) -> None:
        raise AssertionError("timm asks the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("test_resnet", ["dataset.channels=3"]),  # batch norm
        ("test_vit", ["dataset.channels=3", "model.image_size=32"]),  # of a fixed size: timm's default is another one
        ("test_efficientnet", ["dataset.channels=1", "model.channels=1"]),  # another first convolution than timm's
        ("test_vit", ["dataset.channels=3", "model.image_size=32", "+model.kwargs.depth=2"]),
    ],
)
def test_timm_loads_the_folder(name: str, changes: list[str], tmp_path: Path) -> None:
    run_in(tmp_path, composed(*SAVED, *SMALL_DATA, "model=timm", f"model.name={name}", "model.image_size=40", *changes))
    theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    ours = load(tmp_path)
    inputs = torch.stack([ours.test[i][0] for i in range(20)])
    torch.testing.assert_close(theirs(inputs), ours.module(inputs), rtol=1e-5, atol=1e-6)
    config = resolve_data_config({}, model=theirs)
    assert config["input_size"] == tuple(inputs.shape[1:]) and theirs.num_classes == 3
    assert json.loads((tmp_path / DESCRIPTION_FILE).read_text())["label_names"] == list(ours.class_names)


def test_timm_prepares_images_as_the_run_did(tmp_path: Path) -> None:
    """The same picture through timm's transform and through the run's: resized as a whole, normalised alike."""
    cfg = composed(*SAVED, *SMALL_DATA, "dataset.channels=3", "model=timm", "model.name=test_resnet")
    cfg.model.image_size = 40
    run_in(tmp_path, cfg)
    picture = Image.fromarray(build(cfg).dataset.load(0).test.inputs[0].permute(1, 2, 0).numpy())
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    theirs = create_transform(**resolve_data_config({}, model=model))(picture)
    torch.testing.assert_close(theirs, load(tmp_path).test[0][0], atol=0.05, rtol=0)


def test_other_models_leave_none(tmp_path: Path) -> None:
    run_in(tmp_path, composed(*SAVED, *SMALL_DATA))
    assert not (tmp_path / DESCRIPTION_FILE).exists()


def test_equal_models_are_equal_bytes(tmp_path: Path) -> None:
    """safetensors writes several keys of metadata in a random order."""
    models = [(model_family(), torch.zeros(model_family().size))] * 2
    for i in range(20):
        save_models(tmp_path / str(i), models, round=3)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert len(read_models(tmp_path / "0")) == 2 and saved_round(tmp_path / "0") == 3
