"""Decentralised FML (Shen et al., 2020; DFML, appendix A.3.4), with FML's losses in mutual learning."""

from collections.abc import Callable, Iterator

from torch import nn

from tests.reference.decentralized import by_client, first_models, meetings, teach_each_other
from tests.reference.plain import Case, Fields, Model, Net, Problem, mean


def fml(p: Problem, *, alpha: float, beta: float, meme: Callable[[], nn.Module] | None) -> Iterator[Fields]:
    net = Net(meme) if meme else p.net
    own = first_models(p)
    memes = [net.model(p.initial(net.build))] * p.num_clients
    for t, meeting in enumerate(meetings(p)):
        for n in meeting.participants:
            # L_local = alpha L_label + (1 - alpha) KL(p_meme || p_local)
            # L_meme = beta L_label + (1 - beta) KL(p_local || p_meme)
            nets, weights = (p.net_of(n), net), (alpha, beta)
            own[n], memes[n] = teach_each_other(p, n, t, nets, (own[n], memes[n]), weights, (1 - alpha, 1 - beta))
        d = [p.n(n) for n in meeting.participants]  # the aggregator's mean goes back to all participants
        there = [memes[n] for n in meeting.participants]
        aggregated = Model(mean([m.w for m in there], d), mean([m.s for m in there], d))
        for n in meeting.participants:
            memes[n] = aggregated
        yield {"models": by_client(own), "memes": by_client(memes), "aggregator": meeting.next}


MLP = {"_target_": "fedlab_runner.models.mlp.MLP", "channels": None, "image_size": None, "hidden": [7]}
CASES = [
    Case(
        "fml",
        fml,
        {"alpha": 0.3, "beta": 0.7},
        equations="DFML, appendix A.3.4",
        models=(("mlp",), ("batch_norm", "mlp", "wide_mlp")),
    ),
    Case(
        "fml meme",
        fml,
        {"meme": MLP},
        loss="wsm",
        equations="DFML, appendix A.3.4",
        models=(("mlp", "batch_norm", "wide_mlp"),),
    ),
]
