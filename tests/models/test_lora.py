"""LoRA: what is trained, what is shared, that it starts as the frozen model, and every way to run it agrees."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedlab_runner.config.build import build
from fedlab_runner.core.client_data import ClientData
from fedlab_runner.core.clock import RoundClock
from fedlab_runner.core.executor import Executor
from fedlab_runner.core.federation import Federation
from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.normalize import Normalize
from fedlab_runner.delays.none import NoDelay
from fedlab_runner.executors.loop import Loop
from fedlab_runner.executors.vectorized import Vectorized
from fedlab_runner.experiment.setup import prepare
from fedlab_runner.models._lora import LoRALinear, add_lora
from fedlab_runner.models.timm import Timm
from fedlab_runner.models.vit_lora import ViTLoRA
from fedlab_runner.participation.uniform import UniformParticipation
from fedlab_runner.utils.errors import UserError
from tests.helpers.composed import composed
from tests.helpers.toy import CPU, local

CLASSES = 5
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32).sin()


def vit(name="test_vit", pretrained=False, weights=None, rank=4, alpha=8.0) -> ViTLoRA:
    return ViTLoRA(3, 32, name, pretrained, weights, rank, alpha)


def model_family(dtype: torch.dtype = torch.float64) -> ModelFamily:
    return ModelFamily(
        lambda: vit().build(3, 32, CLASSES), CLASSES, normalize=Normalize(None, None), device=CPU, dtype=dtype
    )


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoRALinear)}


def perturbed(model: nn.Module) -> nn.Module:
    """With B no longer zero, as after some training."""
    for layer in lora_layers(model).values():
        nn.init.normal_(layer.lora_b, generator=torch.Generator().manual_seed(len(layer.lora_b)))
    return model


# The layer.


def test_a_layer_starts_as_its_base_and_is_then_changed_by_scaled_b_a_in_each_slice():
    torch.manual_seed(0)
    base = nn.Linear(6, 12).double()
    layer, inputs = LoRALinear(base, rank=2, alpha=8.0, parts=3), torch.randn(4, 5, 6, dtype=torch.float64)
    assert torch.equal(layer(inputs), base(inputs))
    nn.init.normal_(layer.lora_b)
    change = torch.cat([b @ a for a, b in zip(layer.lora_a, layer.lora_b, strict=True)])  # [12, 6]
    torch.testing.assert_close(layer(inputs), inputs @ (base.weight + 8 / 2 * change).T + base.bias)
    torch.testing.assert_close(layer(inputs), inputs @ layer.weight.T + base.bias)  # as BEiT computes
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == ["lora_a", "lora_b"]
    assert layer.lora_a.abs().max() <= 6**-0.5 and layer.lora_a.std() > 0.1


def test_patterns_choose_the_layers_and_the_first_that_matches_counts():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), nn.Linear(6, 2))
    assert add_lora(model, {"2.*": 3, "[0-2]*": 2}, rank=1, alpha=1.0) == ["0", "2.0"]
    assert {name: len(layer.lora_a) for name, layer in lora_layers(model).items()} == {"0": 2, "2.0": 3}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {"0.lora_a", "0.lora_b", "2.0.lora_a", "2.0.lora_b"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: add_lora(nn.Sequential(nn.ReLU()), {"*.qkv": 3}, 4, 8.0),
            "no linear layer of Sequential .* \\*\\.qkv$",
        ),
        (lambda: LoRALinear(nn.Linear(4, 5), 4, 8.0, parts=3), "3 divide 5"),
        (lambda: LoRALinear(nn.Linear(4, 6), 0, 8.0), "rank must be >= 1"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_layer_equals_that_of_peft():
    """Runs where peft is installed, which the project does not need."""
    peft = pytest.importorskip("peft", reason="peft is not installed: nothing to compare with")
    torch.manual_seed(0)
    base, inputs = nn.Sequential(nn.Linear(6, 8)), torch.randn(3, 6)
    own = LoRALinear(nn.Linear(6, 8), rank=4, alpha=8.0)
    own.base.load_state_dict(base[0].state_dict())
    theirs = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["0"], lora_dropout=0.0))
    layer = theirs.base_model.model[0]
    nn.init.normal_(own.lora_b)
    with torch.no_grad():
        layer.lora_A["default"].weight.copy_(own.lora_a[0])
        layer.lora_B["default"].weight.copy_(own.lora_b[0])
    torch.testing.assert_close(own(inputs), theirs(inputs))


# The Vision Transformer.


@pytest.mark.parametrize("num_classes", [10, 20])
def test_vit_b16_trains_294912_values_of_lora_and_769_a_class(num_classes):
    with torch.device("meta"):  # shapes without memory
        model = vit("vit_base_patch16_224").build(3, 224, num_classes)
    layers = lora_layers(model)
    assert len(layers) == 24 and {layer.scale for layer in layers.values()} == {2.0}
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    assert sum(n for name, n in trained.items() if ".lora_" in name) == 294_912
    assert sum(trained.values()) == 294_912 + 769 * num_classes
    assert {name for name in trained if ".lora_" not in name} == {"head.weight", "head.bias"}


def test_both_heads_of_a_distilled_network_are_trained():
    model = ViTLoRA(1, 16, "deit_tiny_distilled_patch16_224", False, None, 4, 8.0).build(1, 16, CLASSES)
    trained = {name for name, p in model.named_parameters() if p.requires_grad and ".lora_" not in name}
    assert trained == {"head.weight", "head.bias", "head_dist.weight", "head_dist.bias"}


def test_the_model_starts_as_the_frozen_one_with_the_same_head():
    model = vit().build(3, 32, CLASSES).eval()
    with_lora = model(IMAGES)
    assert not torch.allclose(perturbed(model)(IMAGES), with_lora)
    for name, layer in lora_layers(model).items():
        model.set_submodule(name, layer.base)
    assert torch.equal(model(IMAGES), with_lora)


def test_only_lora_and_the_head_are_in_the_vector_and_the_backbone_is_the_same_for_all():
    first = model_family()
    torch.rand(1)  # another state of the global generator, as in another process
    second = model_family()
    trained = {name for name, p in first.module.named_parameters() if p.requires_grad}
    assert first.num_buffers == 0
    assert first.size == sum(first.module.get_parameter(name).numel() for name in trained)
    frozen = {name: p for name, p in first.module.named_parameters() if name not in trained}
    assert len(frozen) > 10 and all(torch.equal(p, second.module.get_parameter(name)) for name, p in frozen.items())
    w, other = first.init(3), first.init(4)
    assert torch.equal(w, second.init(3)) and not torch.equal(w, other)
    inputs = IMAGES.double()
    assert torch.equal(first.predict(w, inputs), second.predict(w, inputs))
    loaded = vit().build(3, 32, CLASSES).double().eval()
    loaded.load_state_dict(first.state_dict(w))
    torch.testing.assert_close(loaded(inputs), first.predict(w, inputs))


def train(executor: Executor, dtype: torch.dtype, clients: int = 4) -> tuple[torch.Tensor, torch.Tensor, ModelFamily]:
    """Some clients of two to five images each."""
    rng, model = np.random.default_rng(0), model_family(dtype)
    sizes = [2 + i % 4 for i in range(clients)]
    inputs = torch.from_numpy(rng.normal(size=(sum(sizes), 3, 32, 32))).to(dtype)
    targets = torch.from_numpy(rng.integers(CLASSES, size=sum(sizes)))
    client_data = ClientData(inputs, targets, np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]), CPU)
    clock = RoundClock(client_data.num_examples, UniformParticipation(clients, None, 0), NoDelay("client"), 0)
    setting = local(lr=0.05, epochs=1, batch_size=3)
    fed = Federation(family=model, client_data=client_data, clock=clock, executor=executor, local=setting, seed=0)
    cohort = fed.cohort(np.arange(clients))
    return model.init(0), cohort.train(model.init(0)), model


def test_vmap_of_local_training_equals_one_client_after_another():
    start, looped, _ = train(Loop(compile=False), torch.float64)
    _, stacked, _ = train(Vectorized(chunk_size=None, compile=False), torch.float64)
    torch.testing.assert_close(stacked, looped, rtol=1e-8, atol=1e-10)
    moved = (looped - start).abs()
    assert (moved.amax(1) > 1e-6).all()


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that operations make."""

    def __init__(self):
        super().__init__()
        self.seen: set[torch.Size] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.seen |= {leaf.shape for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)}
        return out


def test_the_frozen_backbone_is_not_stacked_under_vmap():
    """No tensor of a step holds one copy of a frozen weight for each client; those of the trained ones are there."""
    with Shapes() as shapes:
        _, _, model = train(Vectorized(chunk_size=None, compile=False), torch.float32, clients=7)
    frozen = {p.shape for p in model.module.parameters() if not p.requires_grad and p.ndim == 2}
    trained = {p.shape for p in model.module.parameters() if p.requires_grad}
    copies = {torch.Size((7, *shape)) for shape in frozen - trained}
    copies |= {torch.Size((7, *reversed(shape))) for shape in frozen - trained}
    assert copies and not copies & shapes.seen
    assert torch.Size((7, *model.module.blocks[0].attn.qkv.lora_a.shape)) in shapes.seen


# Weights.


def google_npz(model: nn.Module) -> dict[str, np.ndarray]:
    """The weights of a timm ViT under the names and shapes of Google's files."""
    state, heads = {name: value.detach().numpy() for name, value in model.state_dict().items()}, model.blocks[0].attn
    kernel = {"weight": "kernel", "bias": "bias"}
    out = {
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "cls": state["cls_token"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
        "head/kernel": state["head.weight"].T,
        "head/bias": state["head.bias"],
    }
    width, split = heads.qkv.in_features, (heads.num_heads, heads.head_dim)
    for i in range(len(model.blocks)):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        attention = f"{theirs}/MultiHeadDotProductAttention_1"
        for j, name in enumerate(("query", "key", "value")):
            rows = slice(j * width, (j + 1) * width)
            out[f"{attention}/{name}/kernel"] = state[f"{ours}.attn.qkv.weight"][rows].T.reshape(width, *split)
            out[f"{attention}/{name}/bias"] = state[f"{ours}.attn.qkv.bias"][rows].reshape(split)
        out[f"{attention}/out/kernel"] = state[f"{ours}.attn.proj.weight"].T.reshape(*split, width)
        out[f"{attention}/out/bias"] = state[f"{ours}.attn.proj.bias"]
        for norm, number in (("norm1", 0), ("norm2", 2)):
            out[f"{theirs}/LayerNorm_{number}/scale"] = state[f"{ours}.{norm}.weight"]
            out[f"{theirs}/LayerNorm_{number}/bias"] = state[f"{ours}.{norm}.bias"]
        for layer, number in (("fc1", 0), ("fc2", 1)):
            for kind, name in kernel.items():
                out[f"{theirs}/MlpBlock_3/Dense_{number}/{name}"] = state[f"{ours}.mlp.{layer}.{kind}"].T
    return out


def save(path: Path, num_classes: int = CLASSES) -> nn.Module:
    """A file with the weights of another random ViT."""
    torch.manual_seed(11)
    model = Timm(3, 32, "test_vit", False, None, 0.0, {}).build(3, 32, num_classes)
    if path.suffix == ".npz":
        np.savez(path, **google_npz(model))
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(model.state_dict(), path)
    else:
        torch.save(model.state_dict(), path)
    return model.eval()


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "pth"])
@pytest.mark.parametrize("num_classes", [CLASSES, 1000])
def test_the_backbone_comes_from_a_file_and_the_head_if_it_fits(tmp_path, suffix, num_classes):
    saved = save(tmp_path / f"w.{suffix}", num_classes)
    model = vit(weights=str(tmp_path / f"w.{suffix}")).build(3, 32, CLASSES).eval()
    torch.testing.assert_close(model.forward_features(IMAGES), saved.forward_features(IMAGES))
    if num_classes == CLASSES:
        torch.testing.assert_close(model(IMAGES), saved(IMAGES))
    assert model.head.weight.requires_grad and model.head.out_features == CLASSES


def test_a_npz_is_adapted_to_another_image_size_and_to_grey_images(tmp_path):
    saved = save(tmp_path / "w.npz")
    model = vit(weights=str(tmp_path / "w.npz")).build(1, 64, CLASSES)
    assert model.pos_embed.shape[1] > saved.pos_embed.shape[1]
    assert model(torch.zeros(2, 1, 64, 64)).shape == (2, CLASSES)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("w.npz", None, "does not exist"),
        ("w.pth", None, "does not exist"),
        ("w.safetensors", None, "does not exist"),
        ("w.npz", b"", "could not read"),
        ("w.npz", b"<html>404</html>", "could not read"),
        ("w.pth", b"<html>404</html>", "cannot be read"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_refused_in_one_line(tmp_path, name, content, reason):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^weights must [^\n]*{re.escape(str(path))}[^\n]*{reason}[^\n]*$"):
        vit(weights=str(path)).build(3, 32, CLASSES)


@pytest.mark.parametrize("drop", ["Transformer/encoderblock_1/LayerNorm_0/scale", "embedding/kernel"])
def test_a_npz_of_another_architecture_is_refused(tmp_path, drop):
    save(tmp_path / "w.npz")
    arrays = dict(np.load(tmp_path / "w.npz"))
    del arrays[drop]
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(UserError, match=r"^weights must fit timm's 'test_vit', got '.*w\.npz': [^\n]*$"):
        vit(weights=str(tmp_path / "w.npz")).build(3, 32, CLASSES)


def test_weights_with_lora_of_their_own_are_refused_with_the_way_to_begin_from_them(tmp_path):
    torch.save(vit().build(3, 32, CLASSES).state_dict(), tmp_path / "w.pt")
    with pytest.raises(UserError, match=r"^weights .*w\.pt'.* model=pretrained model@model\.base=vit_lora$"):
        vit(weights=str(tmp_path / "w.pt")).build(3, 32, CLASSES)


def test_a_run_warns_once_of_a_backbone_that_stays_random(tmp_path, caplog):
    torch.save(ViTLoRA(3, 32, "test_vit", False, None, 2, 2.0).build(3, 32, 10).state_dict(), tmp_path / "w.pt")
    assert not caplog.records, "building has no side effects"
    lora = "dataset=synthetic|algorithm=fedavg|model.name=test_vit|model.image_size=32|model.rank=2|model.alpha=2"
    loaded = [key.replace("model.", "model.base.") for key in lora.split("|")]
    loaded += ["model=pretrained", "model@model.base=vit_lora", f"model.weights={tmp_path / 'w.pt'}"]
    for said, count in ((["model=vit_lora", *lora.split("|")], 1), (loaded, 0)):
        caplog.clear()
        prepare(build(composed(*said)))
        assert caplog.text.count("the frozen backbone of test_vit is random") == count


def test_nothing_is_downloaded_unless_asked_for(monkeypatch):
    def download(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", download)
    vit().build(3, 32, CLASSES)
    with pytest.raises(UserError, match=r"^pretrained cannot be true .*: no route to host$"):
        vit(pretrained=True).build(3, 32, CLASSES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vit(rank=0), "rank must be >= 1, got 0"),
        (lambda: vit(alpha=0.0), "alpha must be > 0, got 0.0"),
        (lambda: vit(pretrained=True, weights="w.npz"), "weights must be null when pretrained is true, got 'w.npz'"),
        (
            lambda: vit("test_resnet").build(3, 64, CLASSES),
            "name must be a Vision Transformer of timm, got 'test_resnet': no linear layer .*",
        ),
        (
            lambda: vit("convit_tiny").build(3, 32, CLASSES),
            "name must be a Vision Transformer of timm, got 'convit_tiny': .* has the name blocks.0.attn.qkv",
        ),
        (lambda: vit("vit_bas_patch16_224").build(3, 32, CLASSES), "name must be a timm model, .*"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()
