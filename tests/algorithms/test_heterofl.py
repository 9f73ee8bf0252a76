"""HeteroFL: models are the first channels of the widest one."""

import torch

from fedlab_runner.algorithms.shared.width_slicing import places
from tests.helpers.identities import equal_widths_average_whole_models
from tests.helpers.mixed import WIDTHS, mixed
from tests.helpers.toy import algorithm, local


def test_equal_widths_are_uniform_decentralised_fedavg() -> None:
    equal_widths_average_whole_models("heterofl")


def test_first_channels_of_one_model_stay_where_nobody_learns() -> None:
    """Each model then is the first channels of the widest one before and after every meeting."""
    fed = mixed(builds=WIDTHS, cohort=4, training=local(lr=1e-300))
    wide = max(fed.families, key=lambda family: family.num_params)
    built, whole = algorithm("heterofl"), wide.init(5)
    first = [whole[places(family, wide, lambda label, k, of: torch.arange(k))] for family in fed.families]
    state = built.init(fed)
    state = state._replace(models={client: first[client % len(first)] for client in state.models})
    for t in range(4):
        fed.begin(t, 1.0)
        state = built.round(state, fed)
    for client, model in state.models.items():
        torch.testing.assert_close(model, first[client % len(first)], rtol=0, atol=1e-12)
