"""Models: sizes, gradients, `vmap`, weights from files; and the configs of models, delays and schedules."""

import pickle
import re
import socket
import time
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.network_trial import try_network
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.models.blocks_cnn import BlocksCNN
from fedlab_runner.models.blocks_mlp import BlocksMLP
from fedlab_runner.models.blocks_resnet import BlocksResNet
from fedlab_runner.models.cnn_feddle import FeddleCNN
from fedlab_runner.models.cnn_lenet import LeNetCNN
from fedlab_runner.models.cnn_mcmahan import McMahanCNN
from fedlab_runner.models.cnn_pfllib import PFLlibCNN
from fedlab_runner.models.cnn_small import SmallCNN
from fedlab_runner.models.dfml_cnn import DFMLCNN
from fedlab_runner.models.logistic import Logistic
from fedlab_runner.models.mlp import MLP
from fedlab_runner.models.preact_resnet import PreActResNet
from fedlab_runner.models.pretrained import Pretrained
from fedlab_runner.models.resnet18 import ResNet18
from fedlab_runner.models.resnet18_torchvision import TorchvisionResNet18
from fedlab_runner.models.timm import Timm
from fedlab_runner.models.vit_small import SmallViT
from fedlab_runner.utils.errors import UserError
from tests.helpers.paths import ROOT

CONF = ROOT / "conf"
GROUPS = {"model": "models", "delay": "delays", "lr_schedule": "lr_schedules"}


def modules(group: str) -> set[str]:
    package = import_module(f"fedlab_runner.{GROUPS[group]}")
    names = {module.name for module in iter_modules(package.__path__) if not module.name.startswith("_")}
    return names - {"base"}


def timm_model(name="test_vit", pretrained=False, weights=None, drop_rate=0.0, **kwargs):
    return Timm(3, 32, name, pretrained, weights, drop_rate, kwargs)


# Every model with the inputs of one test: (channels, image size). ResNets on small images, to be quick.
MODELS = {
    "logistic": (Logistic(None, None, False), (2, 7)),
    "logistic on features": (Logistic(None, None, False), (30, 1)),
    "logistic with a reference": (Logistic(None, None, True), (30, 1)),
    "mlp": (MLP(None, None, [20, 10]), (1, 8)),
    "mlp without hidden layers": (MLP(None, None, []), (1, 8)),
    "cnn_small": (SmallCNN(1, 16), (1, 16)),
    "cnn_small on odd sizes": (SmallCNN(None, None), (3, 19)),
    "cnn_mcmahan": (McMahanCNN(1, 28), (1, 28)),
    "cnn_pfllib": (PFLlibCNN(1, 16), (1, 16)),
    "cnn_lenet": (LeNetCNN(None, None), (1, 28)),
    "cnn_lenet on odd sizes": (LeNetCNN(None, None), (3, 17)),
    "cnn_feddle each": (FeddleCNN(3, 32, "each"), (3, 32)),
    "cnn_feddle last": (FeddleCNN(3, 32, "last"), (3, 17)),
    "resnet18 batch": (ResNet18(3, 32, "batch"), (3, 12)),
    "resnet18 group": (ResNet18(3, 32, "group"), (1, 12)),
    "dfml_cnn": (DFMLCNN(None, None, [4, 6, 3]), (2, 17)),
    "preact_resnet": (PreActResNet(None, None, [4, 6, 6]), (1, 9)),
    "vit_small cardinal": (SmallViT(None, None, 12, 2, 4, 2, 3, 0.0, "cardinal"), (3, 8)),
    "vit_small diagonal": (SmallViT(None, None, 12, 1, 4, 2, 3, 0.0, "diagonal"), (1, 8)),
    "resnet18_torchvision": (TorchvisionResNet18(3, 224, None), (3, 48)),
    "resnet18_torchvision on grey": (TorchvisionResNet18(3, 224, None), (1, 48)),
    "blocks_cnn": (BlocksCNN(None, None, 2, 2, 1, None, [4, 6], [10], [25]), (3, 16)),
    "blocks_cnn of two blocks": (BlocksCNN(None, None, 2, 1, None, [1, 0], [4], [10], None), (2, 6)),
    "blocks_resnet": (BlocksResNet(None, None, 18, "small", 1, 1, 1, None, [10, 7], [25, 7]), (2, 12)),
    "blocks_mlp": (BlocksMLP(None, None, [9, 20, 1], None, [8, 5], [10], [12]), (30, 1)),
    "timm without BatchNorm": (timm_model("test_vit"), (3, 32)),
    "timm with BatchNorm": (timm_model("test_resnet", zero_init_last=False), (3, 64)),
}
every_model = pytest.mark.parametrize("name", MODELS)
LARGE = {"resnet18 batch", "resnet18 group", "resnet18_torchvision on grey", "blocks_resnet"}
LARGER = LARGE | {"resnet18_torchvision", "cnn_mcmahan"}


def all_but(large: set[str]) -> pytest.MarkDecorator:
    """Every model, the large ones where slow tests run."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.slow) if name in large else name for name in MODELS]
    )


every_small_model = all_but(LARGE)


def build(name: str, num_classes: int = 5, seed: int = 0) -> nn.Module:
    model, (channels, size) = MODELS[name]
    torch.manual_seed(seed)
    return model.build(channels, size, num_classes)


def examples(name: str, *shape: int, num_classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    channels, size = MODELS[name][1]
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(*shape, channels, size, size, generator=generator)
    return inputs, torch.randint(num_classes, shape, generator=generator)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# configs


def load(group: str, name: str) -> Any:
    """A config as its file has it, with the choice that the file's own defaults name."""
    config = OmegaConf.load(CONF / group / f"{name}.yaml")
    for choice in config.pop("defaults", ["_self_"])[:-1]:
        ((key, chosen),) = choice.items()
        config[key.partition("@")[2]] = load(group, chosen)
    return config


@pytest.mark.parametrize("group", GROUPS)
def test_each_module_has_a_config_and_each_config_a_module(group):
    assert modules(group) == {file.stem for file in (CONF / group).glob("*.yaml")}
    assert modules(group)


@pytest.mark.parametrize("group,name", [(group, name) for group in GROUPS for name in sorted(modules(group))])
def test_a_config_names_its_class_and_has_exactly_its_fields(group, name):
    config = load(group, name)
    target = config.pop("_target_")
    assert target.startswith(f"fedlab_runner.{GROUPS[group]}.{name}.")
    assert list(config) == [field.name for field in fields(get_class(target))]


@pytest.mark.parametrize("group,name", [(group, name) for group in GROUPS for name in sorted(modules(group))])
def test_a_config_as_it_stands_is_valid(group, name):
    root = OmegaConf.create({"rounds": 10, "local": {"lr": 0.1}, "node": load(group, name)})
    for key in OmegaConf.missing_keys(root):
        assert key in {"node.path", "node.weights"}  # a file that only the user can name
        OmegaConf.update(root, key, "a file")
    component = instantiate(root.node, _convert_="all")
    for field in fields(component):
        value = getattr(component, field.name)
        if field.type in (int, float, str, bool):
            assert type(value) is field.type, f"{field.name} is written as {type(value).__name__}"


# sizes


def test_parameter_counts():
    assert count(McMahanCNN(1, 28).build(1, 28, 10)) == 1_663_370
    assert count(PFLlibCNN(1, 28).build(1, 28, 10)) == 582_026
    assert count(ResNet18(3, 32, "batch").build(3, 32, 10)) == 11_173_962
    assert count(ResNet18(3, 32, "group").build(3, 32, 100)) == 11_220_132
    assert count(TorchvisionResNet18(3, 224, None).build(3, 224, 20)) == 11_176_512 + 513 * 20
    assert count(SmallCNN(1, 16).build(1, 16, 10)) == 9_930
    assert count(Logistic(None, None, False).build(1, 28, 10)) == 7_850
    assert count(Logistic(None, None, True).build(13, 1, 2)) == 14
    assert count(LeNetCNN(None, None).build(1, 28, 10)) == 44_426
    assert count(LeNetCNN(None, None).build(3, 32, 10)) == 62_006
    assert count(DFMLCNN(None, None, [32, 64]).build(3, 32, 10)) == 94_858
    assert count(PreActResNet(None, None, [64, 128, 256, 512]).build(3, 32, 10)) == 11_172_170
    assert count(SmallViT(None, None, 512, 2, 4, 8, 64, 0.1, "cardinal").build(3, 32, 10)) == 4_366_316
    assert count(MLP(None, None, [200, 200]).build(1, 28, 10)) == 199_210  # the paper's 2NN


@pytest.mark.parametrize("pool,millions", [("each", 8.1), ("last", 59.6)])
def test_the_place_of_feddles_pooling_sets_the_cost(pool, millions):
    model = FeddleCNN(3, 32, pool).build(3, 32, 10)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() / 2e6 == pytest.approx(millions, abs=0.05)


def test_the_stem_of_resnet18_keeps_the_size_of_small_images():
    model = ResNet18(3, 32, "batch").build(3, 32, 10)
    seen = []
    model.layer1.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    model(torch.zeros(2, 3, 32, 32))
    assert seen == [(2, 64, 32, 32)]


@every_model
def test_logits_and_gradients(name):
    model = build(name)
    inputs, targets = examples(name, 4)
    logits = model(inputs)
    assert logits.shape == (4, 5) and logits.dtype == torch.float32
    cross_entropy(logits, targets).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, key


@every_model
def test_initial_weights_are_a_function_of_the_global_seed(name):
    first, again, other = build(name, seed=3), build(name, seed=3), build(name, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@every_model
@pytest.mark.parametrize("training", [True, False])
def test_what_an_activation_overwrites_is_not_asked_for_again(name, training, monkeypatch):
    """Bit for bit what it is otherwise; test_vmap_of_training_equals_a_loop says the same of many models at once."""
    inputs, targets = examples(name, 4)

    def found(inputs):
        torch.manual_seed(0)
        model = build(name).train(training)
        logits = model(inputs)
        cross_entropy(logits, targets).backward()
        return [logits, *(p.grad for p in model.parameters())]

    ours, relu = found(inputs.clone()), F.relu
    monkeypatch.setattr(F, "relu", lambda x, inplace=False: relu(x))
    for mine, theirs in zip(ours, found(inputs), strict=True):
        assert mine is theirs is None or torch.equal(mine, theirs)


@every_small_model
def test_vmap_of_training_equals_a_loop(name):
    """Gradients and BatchNorm statistics of three different models, stacked, in training mode."""
    model = build(name)
    assert model.training
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.num_batches_tracked = None  # an in-place count that vmap cannot batch; unused with a fixed momentum
    models = [dict(build(name, seed=seed).named_parameters()) for seed in range(3)]
    params = {key: torch.stack([each[key].detach() for each in models]) for key in models[0]}
    offsets = torch.arange(3.0)
    buffers = {
        key: torch.stack([buffer + offset if buffer.is_floating_point() else buffer for offset in offsets])
        for key, buffer in model.named_buffers()
    }
    inputs, targets = examples(name, 3, 6)

    def loss(params, buffers, inputs, targets):
        buffers = {key: buffer.clone() for key, buffer in buffers.items()}
        logits = functional_call(model, params | buffers, (inputs,))
        return cross_entropy(logits, targets), buffers

    grads, after = vmap(grad(loss, has_aux=True))(params, buffers, inputs, targets)
    for i in range(3):
        own = ({k: v[i] for k, v in params.items()}, {k: v[i] for k, v in buffers.items()}, inputs[i], targets[i])
        grads_i, after_i = grad(loss, has_aux=True)(*own)
        for key, own_grad in grads_i.items():  # float32, and another order of sums: single values may be far apart
            apart = (grads[key][i] - own_grad).norm()
            assert apart <= 1e-2 * own_grad.norm() + 2e-4, f"{key} differs by {apart:.1e}"
        torch.testing.assert_close({k: v[i] for k, v in after.items()}, after_i, rtol=1e-4, atol=1e-5)
    norms = [key for key in buffers if key.endswith("running_mean")]
    assert bool(norms) == any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    assert all((after[key] != buffers[key]).any() for key in norms)


@all_but(LARGER)
@pytest.mark.parametrize("autocast", [None, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_the_trial_before_a_run_finds_no_fault(name, autocast):
    """Nor does it keep models from training side by side, or take another layer than the last for the classifier."""
    how = {"normalize": Normalize(None, None), "device": torch.device("cpu"), "autocast": autocast}
    family, (inputs, _) = ModelFamily(lambda: build(name), 5, **how), examples(name, 4)
    last = family.classifier
    try_network(family, inputs)
    assert family.classifier == last
    assert family.alone is None and not family.draws and family.mixes == family.has_batch_norm


def test_two_classes_with_a_reference_are_binary_logistic_regression():
    model = Logistic(None, None, True).build(30, 1, 2)
    inputs = torch.randn(6, 30, 1, 1, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 1, 1, 0, 1, 0])
    logits = model(inputs)
    z = model[1](inputs.flatten(1))[:, 0]
    assert torch.equal(logits, torch.stack([torch.zeros(6), z], 1))
    torch.testing.assert_close(cross_entropy(logits, targets), F.binary_cross_entropy(z.sigmoid(), targets.float()))


# refusals


@pytest.mark.parametrize(
    "make,message",
    [
        (lambda: Logistic(0, None, False), "channels must be >= 1, got 0"),
        (lambda: SmallCNN(1, -3), "image_size must be >= 1, got -3"),
        (lambda: MLP(None, None, [10, 0]), "hidden must be a list of widths >= 1, got [10, 0]"),
        (lambda: MLP(0, None, [10]), "channels must be >= 1, got 0"),
        (lambda: FeddleCNN(3, 32, "none"), "pool must be one of each, last, got none"),
        (lambda: ResNet18(3, 32, "layer"), "norm must be one of batch, group, got layer"),
        (lambda: SmallCNN(1, 16).build(1, 3, 10), "image_size must be >= 4 (two 2x2 poolings), got 3"),
        (
            lambda: PFLlibCNN(1, 28).build(1, 15, 10),
            "image_size must be >= 16 (two 5x5 convolutions and poolings), got 15",
        ),
        (
            lambda: LeNetCNN(None, None).build(1, 15, 10),
            "image_size must be >= 16 (two 5x5 convolutions and two 2x2 poolings), got 15",
        ),
        (lambda: FeddleCNN(3, 32, "each").build(3, 7, 10), "image_size must be >= 8 with pool 'each', got 7"),
        (lambda: FeddleCNN(3, 32, "last").build(3, 1, 10), "image_size must be >= 2 with pool 'last', got 1"),
        (
            lambda: TorchvisionResNet18(3, 224, "w.pth").build(1, 224, 10),
            "channels must be 3 with pretrained weights, got 1",
        ),
        (
            lambda: timm_model(pretrained=True, weights="w.pth"),
            "weights must be null when pretrained is true, got 'w.pth'",
        ),
        (lambda: timm_model(drop_rate=1.0), "drop_rate must be in [0, 1), got 1.0"),
        (lambda: timm_model(num_classes=3, img_size=8), "kwargs must not set what .* does, got img_size, num_classes"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(make, message):
    pattern = message if ".*" in message else re.escape(message)
    with pytest.raises(ValueError, match=f"^{pattern}$"):
        make()


@pytest.mark.parametrize(
    "smallest",
    [
        (SmallCNN(1, 4), 4),
        (McMahanCNN(1, 4), 4),
        (PFLlibCNN(1, 16), 16),
        (FeddleCNN(3, 8, "each"), 8),
        (LeNetCNN(None, None), 16),
    ],
)
def test_the_smallest_size_that_is_accepted_works(smallest):
    model, size = smallest
    assert model.build(2, size, 3)(torch.zeros(1, 2, size, size)).shape == (1, 3)


# weights from files

IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32)


def save_resnet(path: Path, num_classes: int) -> nn.Module:
    """A file in torchvision's format, whose state dicts have no counters of BatchNorm steps."""
    torch.manual_seed(7)
    model = TorchvisionResNet18(3, 224, None).build(3, 32, num_classes)
    torch.save({k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}, path)
    return model


def test_torchvision_weights_with_the_same_classes_are_loaded_whole(tmp_path):
    saved = save_resnet(tmp_path / "w.pth", 5).eval()
    loaded = TorchvisionResNet18(3, 224, str(tmp_path / "w.pth")).build(3, 32, 5).eval()
    assert torch.equal(loaded(IMAGES), saved(IMAGES))


def test_torchvision_weights_with_other_classes_get_a_new_classifier(tmp_path):
    saved = save_resnet(tmp_path / "w.pth", 1000).eval()
    loaded = TorchvisionResNet18(3, 224, str(tmp_path / "w.pth")).build(3, 32, 5).eval()
    assert loaded.fc.weight.shape == (5, 512) and not torch.equal(loaded.fc.weight, saved.fc.weight[:5])
    saved.fc = loaded.fc
    assert torch.equal(loaded(IMAGES), saved(IMAGES))


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("classes", [5, 7])
def test_weights_of_a_run_begin_a_network_whose_classifier_is_new_for_other_classes(tmp_path, norm, classes):
    saved = ResNet18(3, 8, norm).build(3, 8, 5).eval()
    save_file(saved.state_dict(), tmp_path / "model.safetensors")
    model = Pretrained(3, 8, ResNet18(3, 8, norm), str(tmp_path / "model.safetensors"))
    loaded = model.build(3, 8, classes).eval()
    if classes != 5:
        assert loaded.fc.weight.shape == (7, 512)
        saved.fc = loaded.fc
    images = IMAGES[..., :8, :8]
    assert torch.equal(loaded(images), saved(images))


def test_weights_of_a_run_in_float64_keep_all_their_digits(tmp_path):
    saved = MLP(1, 8, [20]).build(1, 8, 5).double()
    torch.nn.init.normal_(next(saved.parameters()))
    save_file(saved.state_dict(), tmp_path / "model.safetensors")
    loaded = Pretrained(1, 8, MLP(1, 8, [20]), str(tmp_path / "model.safetensors")).build(1, 8, 5)
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, saved.state_dict()[name])


@pytest.mark.parametrize(
    ("base", "prefix", "what"),
    [
        (MLP(1, 8, [20, 10, 10]), "", "lacks 7.bias (2 such) and has 5.bias of another shape (2 such)"),
        (MLP(1, 8, [20, 11]), "", "has 3.bias of another shape (3 such)"),
        (MLP(1, 8, [20]), "", "has 5.bias, which the network lacks (2 such)"),
        (
            MLP(1, 8, [20, 10]),
            "module.",
            "lacks 1.bias (6 such) and has module.1.bias, which the network lacks (6 such)",
        ),
    ],
)
def test_weights_of_another_network_are_refused(tmp_path, base, prefix, what):
    weights = MLP(1, 8, [20, 10]).build(1, 8, 5).state_dict()
    save_file({prefix + name: value for name, value in weights.items()}, tmp_path / "w.safetensors")
    words = rf"^weights must fit model.base, got .*w.safetensors', which {re.escape(what)}; "
    with pytest.raises(UserError, match=words):
        Pretrained(1, 8, base, str(tmp_path / "w.safetensors")).build(1, 8, 5)


class Surprise:
    """Pickles to code that would run on loading."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code in a weights file was run')",))


def damage(path: Path, how: str) -> None:
    if how == "empty file":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("<html>404 not found</html>")
    elif how == "cut off":
        save_resnet(path, 5)
        path.write_bytes(path.read_bytes()[:100_000])
    elif how == "code":
        torch.save({"fc.weight": Surprise()}, path)
    elif how == "list":
        torch.save([torch.zeros(3)], path)
    elif how == "empty dict":
        torch.save({}, path)


DAMAGES = {
    "missing": "which does not exist",
    "empty file": "which cannot be read",
    "text": "which cannot be read",
    "cut off": "which cannot be read",
    "code": "which cannot be read",
    "list": "which is not one",
    "empty dict": "which is not one",
}


@pytest.mark.parametrize(
    "make,way_out",
    [
        (lambda w: TorchvisionResNet18(3, 224, w), "https://"),
        (lambda w: timm_model(weights=w), "https://"),
        (lambda w: Pretrained(3, 224, TorchvisionResNet18(3, 224, None), w), "logger.save_model"),
    ],
)
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_weights_file_is_refused_in_one_line(tmp_path, make, way_out, how):
    damage(tmp_path / "w.pth", how)
    with pytest.raises(UserError, match=rf"^weights must .*w\.pth.*{way_out}[^\n]*$") as caught:
        make(str(tmp_path / "w.pth")).build(3, 32, 5)
    assert DAMAGES[how] in str(caught.value)


@pytest.mark.parametrize(
    "change,named",
    [
        (lambda weights: weights.pop("layer3.0.conv1.weight"), "lacks layer3.0.conv1.weight"),
        (lambda weights: weights.pop("fc.bias"), "lacks fc.bias"),
        (lambda weights: weights.update(extra=torch.zeros(1)), "has extra, which the network lacks"),
        (lambda weights: weights.update({"bn1.bias": torch.zeros(3)}), "has bn1.bias of another shape"),
    ],
)
def test_torchvision_weights_of_another_architecture_are_refused(tmp_path, change, named):
    save_resnet(tmp_path / "w.pth", 5)
    weights = torch.load(tmp_path / "w.pth")
    change(weights)
    torch.save(weights, tmp_path / "w.pth")
    with pytest.raises(
        UserError, match=rf"^weights must fit torchvision's resnet18, .*which {re.escape(named)} \(1 such\)"
    ):
        TorchvisionResNet18(3, 224, str(tmp_path / "w.pth")).build(3, 32, 5)


# timm


def save_timm(path: Path, num_classes: int, name: str = "test_vit") -> nn.Module:
    torch.manual_seed(8)
    model = timm_model(name).build(3, 32, num_classes)
    if path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(model.state_dict(), path)
    else:
        torch.save(model.state_dict(), path)
    return model.eval()


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_timm_weights_with_the_same_classes_are_loaded_whole(tmp_path, suffix):
    saved = save_timm(tmp_path / f"w.{suffix}", 5)
    loaded = timm_model(weights=str(tmp_path / f"w.{suffix}")).build(3, 32, 5)
    assert loaded.training and "state_dict" not in loaded.pretrained_cfg
    assert torch.equal(loaded.eval()(IMAGES), saved(IMAGES))


@pytest.mark.parametrize("name,head", [("test_vit", "head"), ("test_resnet", "fc")])
def test_timm_weights_with_other_classes_get_a_new_classifier(tmp_path, name, head):
    saved = save_timm(tmp_path / "w.pth", 1000, name)
    loaded = timm_model(name, weights=str(tmp_path / "w.pth")).build(3, 32, 5).eval()
    assert loaded(IMAGES).shape == (2, 5)
    for key, value in loaded.state_dict().items():
        assert key.startswith(f"{head}.") or torch.equal(value, saved.state_dict()[key]), key


@pytest.mark.parametrize("num_classes", [5, 7])
@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_timm_weights_in_float64_keep_all_their_digits(tmp_path, name, num_classes):
    saved = timm_model(name).build(3, 32, 5).double().state_dict()
    saved = {key: value / 3 if value.is_floating_point() else value for key, value in saved.items()}
    save_file(saved, tmp_path / "w.safetensors")
    loaded = timm_model(name, weights=str(tmp_path / "w.safetensors")).build(3, 32, num_classes).state_dict()
    kept = [key for key in saved if loaded[key].shape == saved[key].shape]
    assert len(saved) - len(kept) == (0 if num_classes == 5 else 2)  # the classifier's weight and bias
    assert all(torch.equal(loaded[key], saved[key]) for key in kept)
    assert {value.dtype for value in loaded.values()} <= {torch.float64, torch.int64}
    assert torch.get_default_dtype() == torch.float32


def test_timm_weights_without_a_classifier_are_taken(tmp_path):
    saved = save_timm(tmp_path / "w.pth", 5)
    torch.save({k: v for k, v in saved.state_dict().items() if not k.startswith("head.")}, tmp_path / "w.pth")
    loaded = timm_model(weights=str(tmp_path / "w.pth")).build(3, 32, 5)
    assert torch.equal(loaded.patch_embed.proj.weight, saved.patch_embed.proj.weight)
    assert loaded.head.weight.shape[0] == 5


def test_timm_weights_are_adapted_to_other_sizes_and_channels(tmp_path):
    saved = save_timm(tmp_path / "w.pth", 5)
    loaded = timm_model(weights=str(tmp_path / "w.pth")).build(1, 64, 5)
    assert torch.equal(loaded.head.weight, saved.head.weight)
    assert loaded.pos_embed.shape[1] > saved.pos_embed.shape[1]
    torch.testing.assert_close(loaded.patch_embed.proj.weight, saved.patch_embed.proj.weight.sum(1, keepdim=True))


@pytest.mark.parametrize(
    ("name", "size", "saved", "wanted", "classes"),
    [
        ("test_vit", 32, 1, 3, 5),
        ("test_vit", 32, 1, 1, 7),
        ("test_vit", 32, 4, 4, 5),
        ("crossvit_9_240", 240, 1, 3, 7),  # two first convolutions
        ("tresnet_m", 64, 1, 1, 5),  # the first convolution reads 4 x 4 pixels
        ("tresnet_m", 64, 3, 1, 7),
    ],
)
def test_timm_weights_of_any_channels_are_taken(tmp_path, caplog, name, size, saved, wanted, classes):
    source = Timm(saved, size, name, False, None, 0.0, {}).build(saved, size, 5)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    weights = str(tmp_path / "w.safetensors")
    loaded = Timm(wanted, size, name, False, weights, 0.0, {}).build(wanted, size, classes)
    stems = loaded.pretrained_cfg["first_conv"]
    for stem in [stems] if isinstance(stems, str) else stems:
        found, given = (model.get_submodule(stem).weight.sum(1) for model in (loaded, source))
        torch.testing.assert_close(found, given)
    assert not caplog.records


@pytest.mark.parametrize("num_classes", [5, 1000])  # with other classes timm alone would ignore every foreign name
def test_timm_weights_of_another_architecture_are_refused(tmp_path, num_classes):
    save_timm(tmp_path / "w.pth", num_classes, "test_resnet")
    with pytest.raises(UserError, match=r"^weights must fit timm's 'test_vit', got '.*w\.pth': .* \"cls_token\"$"):
        timm_model(weights=str(tmp_path / "w.pth")).build(3, 32, 5)


SMALL = {"embed_dims": [16, 16, 32, 32], "depths": [1, 1, 1, 1]}
KEEPING = {  # timm's networks that keep attention's biases in evaluation
    "tiny_vit_5m_224": (64, SMALL | {"num_heads": [1, 2, 2, 2], "window_sizes": [4, 4, 4, 4]}),
    "levit_128s": (64, {"embed_dim": (16, 16, 16), "num_heads": (1, 1, 1), "depth": (1, 1, 1)}),
    "efficientformer_l1": (224, {"embed_dims": (8, 8, 8, 8), "depths": (1, 1, 1, 1)}),
    "efficientformerv2_s0": (64, {"embed_dims": (8, 8, 8, 8), "depths": (1, 1, 1, 1)}),
    "efficientvit_m0": (64, {"embed_dim": (16, 16, 16), "depth": (1, 1, 1), "num_heads": (1, 1, 1)}),
}


@pytest.mark.parametrize("name", KEEPING)
def test_timm_keeps_no_values_of_an_earlier_model(name):
    size, kwargs = KEEPING[name]
    model = Timm(3, size, name, False, None, 0.0, kwargs).build(3, size, 5).eval()
    assert any(hasattr(module, "attention_bias_cache") for module in model.modules())
    inputs = torch.rand(2, 3, size, size)
    own = {key: value.detach() for key, value in model.named_parameters()}
    expected = model(inputs)
    model.train()
    for network in (model, pickle.loads(pickle.dumps(model))):
        network.eval()
        assert functional_call(network, {k: v * torch.nan for k, v in own.items()}, (inputs,)).isnan().any()
        assert torch.equal(functional_call(network, own, (inputs,)), expected)


def test_timm_drop_rate_and_kwargs_reach_the_model():
    model = timm_model(drop_rate=0.3, depth=2).build(3, 32, 5)
    assert model.head_drop.p == 0.3 and len(model.blocks) == 2


@pytest.mark.parametrize(
    "model,size,message",
    [
        (timm_model("resnet181"), 32, r"name must be a timm model, got 'resnet181' \(nearest: .*resnet18\b.*"),
        (timm_model("resnet18.a1_in1m"), 32, r"name must be a timm model, .*resnet18\.a1_in1k.*"),
        (timm_model(colour="red"), 32, r"kwargs or image_size do not suit timm's 'test_vit': .*colour.*"),
        (timm_model(depth="deep"), 32, r"kwargs or image_size do not suit timm's 'test_vit': .*"),
        (timm_model("test_resnet"), 0, r"image_size must suit timm's 'test_resnet', got 0: .*"),
        (
            timm_model("test_resnet", features_only=True),
            32,
            "name and kwargs must give a classifier of 5.*",
        ),
    ],
)
def test_timm_mistakes_are_explained_in_one_line(model, size, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        model.build(3, size, 5)


def test_pretrained_without_a_network_says_what_to_do(monkeypatch):
    def offline(*args, **kwargs):
        raise ConnectionError("no route to host\nmore")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", offline)
    with pytest.raises(UserError, match=r"^pretrained cannot be true .* use weights=<local file>: no route to host$"):
        timm_model(pretrained=True).build(3, 32, 5)


@pytest.mark.parametrize("cause", ["unreachable", "asked for"])
def test_pretrained_weights_without_a_network_fail_at_once(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    asked = []

    def refuse(*args: Any) -> None:
        asked.append(args)
        raise OSError("Network is unreachable")

    monkeypatch.setattr("fedlab_runner.models.timm.getproxies", dict)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", cause == "asked for")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"^pretrained cannot be true for timm's 'resnet10t.c3_in1k', use weights="):
        Timm(None, None, "resnet10t.c3_in1k", True, None, 0.0, {}).build(3, 64, 10)
    assert time.monotonic() - begun < 20 and bool(asked) == (cause == "unreachable")
    assert (cause == "asked for") == constants.HF_HUB_OFFLINE, "as it was"
