"""A network of its own writes into its model's vector and computes what the family computes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedlab_runner.core.model_family import ModelFamily
from fedlab_runner.core.separate_module import SeparateModule
from tests.helpers.toy import federation, mlp, model_family, normed


@pytest.mark.parametrize("build", [mlp, normed])
def test_several_networks_have_their_own_values_and_the_familys_bits(build: object) -> None:
    family = model_family(build)
    batch = federation(build=build).client_data.minibatch(torch.arange(7))
    inputs, targets = family.normalize(batch[0], family.dtype), batch[1]
    models = torch.stack([family.init(seed) for seed in range(3)])
    before, networks = models.clone(), [SeparateModule(family, w) for w in models]
    family.mode(True)
    for network in networks:
        network.follow_mode()
    family.mode(False)  # what is done with the family meanwhile does not reach them
    logits = [network(inputs) for network in networks]
    gradients = [
        torch.autograd.grad(F.cross_entropy(z, targets), network.leaves)
        for z, network in zip(logits, networks, strict=True)
    ]
    family.mode(True)
    for w, old, z, found in zip(models, before, logits, gradients, strict=True):
        with family.bound(old) as leaves:
            expected = family.forward(None, inputs)
            theirs = torch.autograd.grad(F.cross_entropy(expected, targets), leaves)
        assert torch.equal(z, expected) and all(torch.equal(*pair) for pair in zip(found, theirs, strict=True))
        assert torch.equal(w, old)  # with the statistics of batch norm, which both have written
    for leaf, g in zip(networks[0].leaves, gradients[0], strict=True):
        leaf.data.sub_(g)
    moved = torch.cat([g.reshape(-1) for g in gradients[0]])
    assert torch.equal(models[0, : family.num_params], before[0, : family.num_params] - moved)


def test_networks_share_what_no_vector_holds() -> None:
    class Adapted(nn.Sequential):
        """Its first layer is fixed, its second tied to a third."""

        def __init__(self) -> None:
            super().__init__(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3))
            self[0].requires_grad_(False)
            self[2].weight = self[1].weight

    family: ModelFamily = model_family(Adapted)
    network = SeparateModule(family, w := family.init(0))
    module = network._module
    assert module[0].weight is family.module[0].weight  # type: ignore[index]
    assert module[2].weight is module[1].weight is network.leaves[0]  # type: ignore[index]
    assert network.leaves[0].data_ptr() == w.data_ptr()


@pytest.mark.parametrize("build", [mlp, normed])
def test_a_network_that_is_given_back_serves_another_model(build: object) -> None:
    family, kept = model_family(build), []
    inputs = family.normalize(federation(build=build).client_data.inputs[:7], family.dtype)
    family.mode(True)
    models = [family.init(seed) for seed in range(2)]
    for w in models:
        network = SeparateModule(family, w)
        network.follow_mode()
        with family.bound(w.clone()):
            assert torch.equal(network(inputs), family.forward(None, inputs))
        kept.append(network._module)
        before = w.clone()
        network.give_back()
        assert torch.equal(w, before)
    assert kept[0] is kept[1]
    others = [SeparateModule(family, w)._module for w in models]
    assert others[0] is kept[0] and others[1] is not kept[0]


def test_a_network_is_copied_with_what_it_keeps_of_its_last_call() -> None:
    """An activation with its graph, or one of vmap's."""

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.kept = mlp(), dict[str, list[torch.Tensor]]()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.features = self.inner(inputs)
            self.kept["logits"] = [self.features]
            return self.features

    family = model_family(Keeping)
    inputs, w = federation().client_data.inputs[:7], family.init(0)
    expected = family.predict(w, inputs)

    def logits(params: torch.Tensor) -> torch.Tensor:
        return family.evaluate(params, params[:0], inputs)

    for call in (logits, lambda params: torch.func.vmap(logits)(params[None])):
        call(w.clone().requires_grad_())
        networks = [SeparateModule(family, w) for _ in range(2)]
        for network in networks:
            network.follow_mode()
            assert torch.equal(network(inputs), expected)
        assert networks[0]._module.features is not networks[1]._module.features
