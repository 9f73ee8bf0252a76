"""fluke (https://github.com/makgyver/fluke): its algorithms beside this package's."""

from typing import Any

from tests.helpers.toy import RAGGED
from tests.referee import fluke_run
from tests.referee.comparison import FLOAT32, SEVERAL, Row, with_homes, with_own_models
from tests.referee.fluke_run import BY_NAME, for_head_and_body, in_turn, run, twice

UNIFORM: dict[str, Any] = {"server": {"weighted": False}}
FORGETS: dict[str, Any] = {"client": {"persistency": False}}
OWN: dict[str, Any] = {"found": fluke_run.with_own_models}
HOMES: dict[str, Any] = {"found": fluke_run.with_homes}
MOMENTUM: dict[str, Any] = {"momentum": 0.6}
EXP: dict[str, Any] = {"eps": 1e-4}
OPT: dict[str, Any] = {"tau": 0.1, "beta1": 0.9, "beta2": 0.99}
KEPT = (
    "fluke's clients keep their momentum from round to round (client.py:378), this package's begin anew; the paper has "
    "plain SGD"
)
SCALED = (
    "the paper's step is x - tau_eff sum_i p_i eta d_i (section 5); fluke's weights of the clients' models do not sum "
    "to 1 (algorithms/fednova.py:83)"
)
INITIAL = "the paper's second moment begins at tau^2 or more (Algorithm 2); fluke's at 0 (algorithms/fedopt.py:61)"
META = (
    "the paper steps from w along the gradient at w~ (Algorithm 1); fluke steps from w~ (algorithms/per_fedavg.py:{})"
)
WITH_HOMES: dict[str, Any] = {"compared": with_homes}
NORMED: dict[str, Any] = WITH_HOMES | {"network": "batch_norm", "sizes": SEVERAL}
NOT_HERE = ("CCVR", "DPFedAVG", "FAT", "FedAMP", "FedAwS", "FedHP", "FedLC", "FedLD", "FedNH", "FedProto", "FedROD")
NOT_HERE += ("FedRS", "GEAR", "GossipDFL", "Kafe", "MOON", "SuPerFed")


def opt(mode: str, lr: float, initial: float | None, cause: str = "") -> Row:
    """An adaptive server optimiser."""
    keys = {each: value for each, value in OPT.items() if each != "beta2" or mode != "adagrad"}
    return Row(
        "fedavg",
        run("fedopt", "FedOpt", server=OPT | {"mode": mode, "lr": lr}),
        f"FedOpt, {mode}, eta {lr:g}{', initial 0' * (initial == 0)}",
        server_optimizer=keys | {"name": mode, "lr": lr, "initial": initial},
        cause=cause,
    )


ROWS = [
    Row("fedavg", run("fedavg", "FedAVG")),
    Row("fedavg", run("fedavg", "FedAVG", **UNIFORM), "uniform weights", {"weighting": "uniform"}),
    Row("fedavg", run("fedavg", "FedAVG", server={"lr": 0.7}), "server_lr 0.7", {"server_lr": 0.7}),
    Row("fedavg", run("fedavg", "FedAVG"), "batch norm", network="batch_norm", sizes=SEVERAL),
    Row("fedavg", run("fedavg", "FedAVG", **FORGETS), "momentum, persistency off", local=MOMENTUM),
    Row("fedavg", run("fedavg", "FedAVG"), "momentum", local=MOMENTUM, cause=KEPT),
    Row("fedprox", run("fedprox", "FedProx", {"mu": 0.6}), "mu 0.6", {"mu": 0.6}),
    Row("scaffold", run("scaffold", "SCAFFOLD", **UNIFORM), "option 2", {"option": 2}),
    Row(
        "scaffold",
        run("scaffold", "SCAFFOLD", server={"weighted": False, "global_step": 0.8}),
        "option 2, server_lr 0.8",
        {"option": 2, "server_lr": 0.8},
        cause="the paper's step is x + eta_g Delta x (Algorithm 1, line 17); fluke's server takes eta_g times the mean "
        "of the clients' models (algorithms/scaffold.py:164)",
    ),
    Row(
        "fednova",
        run("fednova", "FedNova"),
        "three steps each",
        local={"steps": 3, "epochs": None},
        tolerance=FLOAT32,
    ),
    Row("fednova", run("fednova", "FedNova"), cause=SCALED),
    Row("fednova", run("fednova", "FedNova", **FORGETS), "momentum, persistency off", local=MOMENTUM, cause=SCALED),
    Row(
        "fedexp",
        run("fedexp", "FedExP", dtype="float32", **UNIFORM),
        "uniform weights, eps 1e-4",
        EXP | {"weighting": "uniform"},
        tolerance=FLOAT32,
    ),
    Row(
        "fedexp",
        run("fedexp", "FedExP", dtype="float32"),
        "eps 1e-4",
        EXP,
        tolerance=FLOAT32,
        cause="the paper's Algorithm 1 weighs all clients alike; with weights by size, fluke takes the step size of "
        "uniform weights (algorithms/fedexp.py:26), this package that of the same weights",
    ),
    Row(
        "fedsam",
        run("fedsam", "FedSAM", {"rho": 0.5, "persistency": False}),
        "rho 0.5, one step, persistency off",
        {"rho": 0.5},
        local={"steps": 1, "epochs": None},
    ),
    Row(
        "fedsam",
        run("fedsam", "FedSAM", {"rho": 0.5}),
        "rho 0.5",
        {"rho": 0.5},
        cause="the paper ascends along the gradient of this minibatch (Algorithm 1); fluke adds the last step's "
        "gradient to it (algorithms/fedsam.py:86)",
    ),
    Row("fedavg", run("fedsgd", "FedSGD"), "FedSGD, full batches", local={"epochs": 1, "batch_size": 64}),
    Row(
        "fedavg",
        run("fedavgm", "FedAVGM", server={"momentum": 0.9}),
        "FedAvgM, momentum 0.9",
        server_optimizer={"name": "sgd", "lr": 1.0, "momentum": 0.9},
        cause="the paper's momentum is v <- beta v + Delta w from the first round on (Hsu et al., section 4.3); "
        "fluke's server does not move in that round (algorithms/fedavgm.py:59)",
    ),
    *(opt(mode, 1.0, initial=0.0) for mode in ("adam", "yogi", "adagrad")),
    opt("adam", 1.0, initial=None, cause=INITIAL),
    opt(
        "adam",
        0.1,
        initial=0.0,
        cause="the paper's Delta_t is the mean of the clients' changes (Algorithm 2); fluke's is eta times that "
        "(algorithms/fedopt.py:66)",
    ),
    Row(
        "feddyn",
        run("feddyn", "FedDyn", {"alpha": 0.1, "clipping": 0}, {"weighted": False}, {}, found=fluke_run.cloud),
        "alpha 0.1",
        {"alpha": 0.1},
        sizes=(12,) * 8,
        cause="the paper's server goes on along the clients' changes, by -h / alpha, their sum over rounds divided by "
        "the number of all clients (Algorithm 1); fluke's goes back, by alpha times their mean over the round's "
        "clients (algorithms/feddyn.py:249)",
    ),
    *(
        Row(
            "ditto",
            run("ditto", "Ditto", {"lam": 0.6, "tau": 2}, optimizer={}, feed=twice, **OWN),
            f"lam 0.6{', batch norm' * (network == 'batch_norm')}",
            {"lam": 0.6},
            network=network,
            sizes=sizes,
            compared=with_own_models,
        )
        for network, sizes in {"mlp": RAGGED, "batch_norm": SEVERAL}.items()
    ),
    Row("apfl", run("apfl", "APFL", {"lam": 0.3}, {"weighted": False}), "the server's model", {"alpha": 0.3}),
    Row(
        "apfl",
        run("apfl", "APFL", {"lam": 0.3}, {"weighted": False}, **OWN),
        "alpha 0.3",
        {"alpha": 0.3},
        compared=with_own_models,
        cause="the paper trains a client's own model v on the mixture's loss (Algorithm 1); fluke's optimiser has no "
        "gradients, as the mixture is a copy (algorithms/apfl.py:91), and v becomes the mixture at the end of the "
        "round (algorithms/apfl.py:105)",
    ),
    Row(
        "pfedme",
        run("pfedme", "PFedMe", {"k": 3}, {"weighted": False, "beta": 0.7}, {"lamda": 4.0, "mu": 0.0}),
        "lam 4, inner_steps 3",
        {"lam": 4.0, "inner_steps": 3, "inner_lr": 0.1, "server_lr": 0.7},
        cause="the paper's theta is drawn to w, and w is sent (Algorithm 1); fluke takes the distance of theta to "
        "itself, which is 0 (algorithms/pfedme.py:125), and sends theta",
    ),
    *(
        Row(
            "perfedavg",
            run(
                "per_fedavg",
                "PerFedAVG",
                {"mode": mode, "beta": 0.1},
                {"weighted": False},
                {"lr": 0.3},
                feed=in_turn("INNER_BATCHES", "BATCHES", *more),
            ),
            variant,
            {"inner_lr": 0.3, "variant": variant},
            cause=META.format(line),
        )
        for mode, variant, line, more in (
            ("FO", "first_order", 173, ()),
            ("HF", "hessian_free", 181, ("HESSIAN_BATCHES",)),
        )
    ),
    Row("fedavg", run("fedper", "FedPer", sends="encoder", **HOMES), "home=head (FedPer)", home="head", **WITH_HOMES),
    Row(
        "fedavg",
        run("lg_fedavg", "LGFedAVG", sends="head", **HOMES),
        "home=body (LG-FedAvg)",
        home="body",
        **WITH_HOMES,
    ),
    Row("fedavg", run("fedbn", "FedBN", **HOMES), "home=norm (FedBN), all clients", home="norm", cohort=8, **NORMED),
    Row(
        "fedavg",
        run("fedbn", "FedBN", **HOMES),
        "home=norm (FedBN)",
        home="norm",
        **NORMED,
        cause="the paper never averages batch norm (Algorithm 1); a client of fluke begins with the server's, which is "
        "an average from the second round on (algorithms/fedbn.py:38)",
    ),
    *(
        Row(
            "fedrep",
            run(
                "fedrep",
                "FedRep",
                {"local_epochs": 3, "tau": 2} | model,
                {"weighted": False},
                sends="encoder",
                feed=for_head_and_body(3),
                **HOMES,
            ),
            f"head_epochs 3, model as {what}",
            {"head_epochs": 3},
            cause=cause,
            **WITH_HOMES,
        )
        for what, model, cause in (
            ("a name", {"model": BY_NAME}, ""),
            (
                "a module",
                {},
                "the paper has a head for each client (Algorithm 1); a module that fluke gets is the body and the "
                "head of all clients (algorithms/fedrep.py:69)",
            ),
        )
    ),
    Row(
        "fedbabu",
        run("fedbabu", "FedBABU", {"mode": "full", "fine_tuning_epochs": 0}, sends="encoder", **HOMES),
        **WITH_HOMES,
    ),
    Row(
        "fedala",
        run(
            "fedala",
            "FedALA",
            {"ala_sample_size": 1.0, "eta": 1.0, "conergence_threshold": 0.01, "loss_window_size": 3},
            sends="all",
            **OWN,
        ),
        "full batches, share 1",
        {"share": 1.0, "eta": 1.0, "threshold": 0.01, "window": 3},
        local={"batch_size": 64},
        sizes=SEVERAL,
        compared=with_own_models,
    ),
]
