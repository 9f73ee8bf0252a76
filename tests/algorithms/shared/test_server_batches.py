"""Minibatches of the server's examples."""

import pytest

from fedlab_runner.algorithms.shared.server_batches import server_batches
from fedlab_runner.utils.errors import UserError
from tests.helpers.toy import algorithm, federation, mlp, normed, run, server_data

TRAINING = ["center", "fedbe", "feddf", "fedft", "fedlaw", "fedwalk"]  # on minibatches of the server's examples


@pytest.mark.parametrize("name", TRAINING)
def test_a_size_that_leaves_batch_norm_no_minibatch_is_refused(name: str) -> None:
    """Before any training, as for clients. Without batch norm the server makes a step for each example."""
    with pytest.raises(UserError, match=r"^algorithm\.batch_size must be > 1 for a model with batch norm, got 1$"):
        algorithm(name, batch_size=1).check(federation(build=normed))
    fed = federation(build=mlp)
    built = algorithm(name, batch_size=1)
    assert (built.models(run(built, fed, 1)) != fed.family.init(fed.seed)).any()


@pytest.mark.parametrize(("examples", "sizes"), [(1, [1]), (9, [8]), (10, [8, 2])])
def test_a_single_example_makes_no_minibatch_for_batch_norm_unless_there_is_no_other(
    examples: int, sizes: list[int]
) -> None:
    batches = server_batches(federation(build=normed, server=server_data(examples)), 1, 8)
    assert [len(batch.mask) for batch in batches] == sizes and len(batches) == len(sizes)


def test_the_base_of_a_wrapper_is_named() -> None:
    built = algorithm("fedwalk", base=("fedft", {"batch_size": 1}))
    with pytest.raises(UserError, match=r"^algorithm\.base\.batch_size must be > 1 for a model with batch norm"):
        built.check(federation(build=normed))
