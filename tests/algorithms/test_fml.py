"""FML: labels alone, what travels, and memes of another architecture."""

import pytest

from fedlab_runner.algorithms.shared.decentralized import pick_participants, train
from fedlab_runner.core.own_models import first_models, updated
from fedlab_runner.models.mlp import MLP
from tests.helpers.identities import close
from tests.helpers.mixed import KINDS, mixed
from tests.helpers.toy import algorithm, evaluate, run


def test_fml_with_labels_alone_is_local_training_beside_decentralised_fedavg_of_the_memes() -> None:
    """alpha = beta = 1: no gradient from the other model."""
    fed = mixed(cohort=3)
    state = run(algorithm("fml", alpha=1.0, beta=1.0), fed, 3)
    twin, homogeneous = mixed(cohort=3), mixed(cohort=3, builds=KINDS[:1])
    close(state.memes, run(algorithm("dec_fedavg"), homogeneous, 3).models)
    models, aggregator = first_models(twin), 0
    for round in range(3):
        twin.begin(round, 1.0)
        meeting = pick_participants(twin, aggregator)
        trained = train(twin, models, meeting.participants)
        models = updated(twin, "device", models, [(t.group, t.after) for t in trained])
        aggregator = meeting.next
    # drop_single of a pair follows both of its models, so clients whose sizes leave one example are not in this toy
    close(state.models, models)


def test_only_memes_travel_and_both_kinds_are_evaluated() -> None:
    fed = mixed(cohort=3)
    built = algorithm("fml")
    state = run(built, fed, 2)
    assert fed.collect()["comm/upload_mb"] == pytest.approx(3 * fed.family.size * 4 / 1e6)
    assert {"test/accuracy", "meme/accuracy", "meme/loss"} <= evaluate(built, state, fed).keys()


def test_memes_of_another_architecture_have_one_family() -> None:
    fed = mixed(cohort=3)
    assert fed.family_of(MLP(None, None, [7])) is fed.family_of(MLP(None, None, [7]))
