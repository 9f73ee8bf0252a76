import pytest
import torch
from torch import nn

from fedlab_runner.core.model_family import Batch, FunctionalModel, ModelFamily
from fedlab_runner.core.normalize import Normalize
from tests.helpers.toy import CLASSES, CPU, FEATURES, mlp, model_family, normed


def test_a_vector_holds_parameters_then_buffers_in_module_order() -> None:
    family = model_family(normed)
    module = normed().double()
    w = family.vector(module)
    parameters = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert family.num_params == len(parameters) and family.num_buffers == 12 and family.size == len(w)
    assert torch.equal(w[: family.num_params], parameters)
    assert torch.equal(w[family.num_params :], torch.cat([torch.zeros(6), torch.ones(6)]).double())


def test_a_model_comes_back_as_a_state_dict() -> None:
    family = model_family(normed)
    w = torch.arange(family.size, dtype=torch.float64)
    module = normed().double()
    module.load_state_dict(family.state_dict(w) | {"1.num_batches_tracked": torch.tensor(0)})
    assert torch.equal(family.vector(module), w)


def test_initial_models_are_a_function_of_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = model_family().init(3)
    assert torch.equal(torch.random.get_rng_state(), before), "the global generator must not be touched"
    torch.manual_seed(2)
    assert torch.equal(first, model_family().init(3)) and not torch.equal(first, model_family().init(4))


def test_predictions_are_the_modules() -> None:
    family, module = model_family(normed), normed().double()
    module[1].running_mean += 0.3
    inputs = torch.randn(9, FEATURES, dtype=torch.float64)
    torch.testing.assert_close(family.predict(family.vector(module), inputs), module.eval()(inputs))


@pytest.mark.parametrize("frozen_norm", [False, True])
def test_an_evaluation_in_the_middle_of_training_leaves_the_mode(frozen_norm: bool) -> None:
    family = model_family(normed)
    w, inputs = family.init(0), torch.randn(9, FEATURES, dtype=torch.float64)
    params, buffers = w[: family.num_params], w[family.num_params :]
    family.mode(True, frozen_norm=frozen_norm)
    modes = [module.training for module in family.module.modules()]
    teacher = family.evaluate(params, buffers, inputs)
    torch.testing.assert_close(teacher, family.predict(w, inputs))
    assert [module.training for module in family.module.modules()] == modes


def test_statistics_that_no_minibatch_gives_are_found() -> None:
    family = model_family(normed)
    good = family.init(0)[family.num_params :].repeat(5, 1)
    assert family.bad_statistics(good).tolist() == [False] * 5
    good[0, 0], good[1, -1], good[2, -1], good[3, 0], good[4, -1] = -1.0, -1e-9, float("inf"), float("nan"), 0.0
    assert family.bad_statistics(good).tolist() == [False, True, True, True, False], "a mean may be negative"
    assert model_family().bad_statistics(torch.empty(2, 0)).tolist() == [False, False]


def test_padding_does_not_count_in_the_loss() -> None:
    family = model_family()
    w = family.init(0)
    inputs, targets = torch.randn(6, FEATURES, dtype=torch.float64), torch.randint(CLASSES, (6,))
    mask = torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=torch.float64)
    model = FunctionalModel(family, w, w[:0])
    whole = family.loss(model, Batch(inputs, targets, mask))
    alone = nn.functional.cross_entropy(family.predict(w, inputs[:3]), targets[:3])
    torch.testing.assert_close(whole, alone)


def test_segments_select_a_submodule() -> None:
    family = model_family(normed)
    assert family.segments("3").sum() == 6 * CLASSES + CLASSES
    assert family.segments("1").sum() == 12 + 12 and family.segments("1.running_mean").sum() == 6
    assert not family.segments("nowhere").any()


def test_frozen_parameters_are_shared_and_in_no_vector() -> None:
    def frozen() -> nn.Module:
        module = mlp()
        module[0].requires_grad_(False)
        return module

    family = model_family(frozen)
    assert family.num_params == 6 * CLASSES + CLASSES
    w = family.init(0)
    assert set(family.state_dict(w)) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_pixels_are_normalised_per_channel() -> None:
    normalize = Normalize.of([0.5, 0.25], [0.5, 0.25], torch.float64, CPU)
    images = torch.tensor([0, 255], dtype=torch.uint8).view(1, 2, 1, 1)
    assert normalize(images, torch.float64).flatten().tolist() == [-1.0, 3.0]
    features = torch.randn(2, 3)
    assert torch.equal(Normalize(None, None)(features, torch.float32), features)


@pytest.mark.parametrize("stored", [torch.uint8, torch.float32])
@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_of_normalised_images_come_out_channels_last(channels: int, stored: torch.dtype) -> None:
    images = torch.arange(2 * channels * 8 * 8).reshape(2, channels, 8, 8).to(stored)
    inputs = Normalize.of([0.5] * channels, [0.5] * channels, torch.float32, CPU)(images.clone(), torch.float32)
    torch.testing.assert_close(inputs, (images.float() - 127.5) / 127.5)
    assert nn.Conv2d(channels, 4, 3)(inputs).stride(1) == 1, "pooling in the other layout is slow"


def test_autocast_gives_logits_of_the_tasks_type() -> None:
    family = ModelFamily(mlp, CLASSES, normalize=Normalize(None, None), device=CPU, autocast=torch.bfloat16)
    exact = ModelFamily(mlp, CLASSES, normalize=Normalize(None, None), device=CPU)
    w, inputs = family.init(0), torch.randn(5, FEATURES)
    rounded = family.predict(w, inputs)
    assert rounded.dtype == torch.float32 and not torch.equal(rounded, exact.predict(w, inputs))
    torch.testing.assert_close(rounded, exact.predict(w, inputs), atol=0.05, rtol=0.05)
