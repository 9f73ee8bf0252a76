"""The command `fedlab-dashboard`: saves a W&B workspace with the panels of a federated experiment.

Needs the extra (`pip install "fedlab-runner[dashboard]"`) and an account or server: nothing can be saved offline.
Exit codes: 0 saved, 2 something is missing.
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlab_runner.core.metric_names import MODELS
from fedlab_runner.experiment import provenance
from fedlab_runner.sweep import records
from fedlab_runner.tracking.reachability import REQUEST_TIMEOUT_SECONDS, Reach
from fedlab_runner.tracking.wandb_service import fault, server
from fedlab_runner.utils import streams
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.files import check_working_folder

# Sections: name, open or not, and panels with title and metrics.
LINES: Sequence[tuple[str, bool, Sequence[tuple[str, Sequence[str]]]]] = (
    (
        "Accuracy",
        True,
        (
            ("Test accuracy", ["test/accuracy"]),
            ("Test loss", ["test/loss"]),
            ("Train loss", ["train/loss"]),
            ("Own test: server's model", ["server/own"]),
            ("Own test: clients' own models", ["client/own"]),
            ("Own test: tuned models", ["tuned/own"]),
            ("Own test: worst tenth of clients", [f"{model}/own_worst_decile" for model in MODELS]),
            ("Unseen clients", [f"{model}/unseen" for model in MODELS]),
        ),
    ),
    (
        "Evaluation matrix",
        False,
        (
            ("All clients' examples: server's model", ["server/train_weighted"]),
            ("Global test set: clients' own and tuned models", ["client/global", "tuned/global"]),
            ("Validation examples", [f"{model}/validation" for model in MODELS]),
            ("Training examples", [f"{model}/train" for model in MODELS]),
            ("Own test by examples", [f"{model}/own_weighted" for model in MODELS]),
            ("Own test: standard deviation", [f"{model}/own_std" for model in MODELS]),
            ("Own test: worst client", [f"{model}/own_worst" for model in MODELS]),
        ),
    ),
    (
        "Lateness",
        True,
        (
            ("Staleness on arrival", ["late/staleness_mean"]),
            ("Oldest arrival", ["late/staleness_max"]),
            ("In flight", ["late/in_flight"]),
            ("Arrived", ["late/arrived"]),
        ),
    ),
    (
        "Cost",
        False,
        (
            ("Uploaded in a round, MB", ["comm/upload_mb"]),
            ("Downloaded in a round, MB", ["comm/download_mb"]),
            ("Clients, GFLOPs in a round", ["cost/client_gflops"]),
            ("Server, GFLOPs in a round", ["cost/server_gflops"]),
            ("Server's cache, MB", ["cost/server_cache_mb"]),
            ("Seconds for a round", ["time/round"]),
        ),
    ),
    (
        "Feddle",
        False,
        (
            ("Negative coefficients", ["algorithm/coefficients_negative"]),
            ("Smallest coefficient", ["algorithm/coefficients_min"]),
            ("Largest coefficient", ["algorithm/coefficients_max"]),
            ("Search loss, last", ["algorithm/search_loss_last"]),
        ),
    ),
    (
        "FedCDA",
        False,
        (
            ("Loss and divergence of the models in use", ["algorithm/objective"]),
            ("Clients whose newest model is not in use", ["algorithm/not_newest"]),
            ("Combinations tried", ["algorithm/combinations"]),
            ("Seconds of the selection", ["time/selection"]),
        ),
    ),
    (
        "FedWalk",
        False,
        (
            ("On the leash", ["algorithm/leashed"]),
            ("Losses of clients and leash", ["algorithm/client_loss", "algorithm/leash_loss"]),
        ),
    ),
    (
        "Without a server: DFML, FML, D-PSGD",
        False,
        (
            ("Weight of the distillation", ["algorithm/alpha"]),
            ("Regular models, accuracy", ["regular/accuracy"]),
            ("Memes, accuracy", ["meme/accuracy"]),
            ("Distance from consensus", ["algorithm/consensus_distance"]),
        ),
    ),
    (
        "Matched neurons: HyFEM, FedMA, GAMF",
        False,
        (
            ("Width of the server's first hidden layer", ["algorithm/server_width"]),
            ("Cost of the matching", ["algorithm/matching_cost"]),
            ("Neurons put elsewhere", ["algorithm/moved_neurons"]),
        ),
    ),
)
MAX_RUNS = 1000  # of a workspace
PICTURES = (  # names under which a run shows its pictures
    *("partition_plot", "blocks_plot", "topology", "curves", "staleness"),
    *("matrix", "clients_plot", "coefficients", "directions", "update_cosines"),
)
TABLES = ("partition", "clients", "per_class")  # names under which a run shows its tables


def workspace(entity: str, project: str, sweep: Path | None) -> Any:
    """A workspace, not yet saved: lines are means over the seeds of a setting with a band of one standard deviation.

    `sweep`: the folder of a sweep. The workspace shows its runs, also those that an earlier sweep has begun. None: it
    shows all runs of the project.
    """
    # Imported by name: the type check must not depend on an extra.
    ws: Any = importlib.import_module("wandb_workspaces.workspaces")
    wr: Any = importlib.import_module("wandb_workspaces.reports.v2")

    def line(title: str, metrics: Sequence[str]) -> Any:
        return wr.LinePlot(
            title=title,
            x="round",
            y=list(metrics),
            groupby="Group",
            groupby_aggfunc="mean",
            groupby_rangefunc="stddev",
            max_runs_to_show=MAX_RUNS,
        )

    sections = [
        ws.Section(name=name, panels=[line(*panel) for panel in panels], is_open=is_open)
        for name, is_open, panels in LINES
    ]
    pictures = [wr.MediaBrowser(title=name, media_keys=[name]) for name in PICTURES]
    tables = [wr.WeavePanelSummaryTable(table_name=name) for name in TABLES]
    objective = wr.BarPlot(
        title="Objective", metrics=[wr.SummaryMetric("summary.objective")], groupby="Group", max_runs_to_show=MAX_RUNS
    )
    sections[0].panels.append(objective)
    sections.append(ws.Section(name="Partition, coefficients, classes", panels=[*pictures, *tables], is_open=False))
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"fedlab: {sweep.absolute().name}" if sweep else "fedlab",
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis="round", max_runs=MAX_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=[ws.Metric("ID").isin(runs_of(sweep))] if sweep else [],
            groupby=[ws.Metric("Group")],
        ),
    )


def runs_of(sweep: Path) -> list[str]:
    """The ids in W&B of the runs of a sweep, as each run's last start notes it."""
    jobs = [job for row in records.read(sweep) for job in row.jobs]
    folders = [records.run_folder(sweep, job.folder) for job in jobs if job.folder]
    noted = {provenance.last_start(folder).get("tracked_as") for folder in folders if folder is not None}
    return sorted(each for each in noted if isinstance(each, str))


@streams.protected()
def main(arguments: Sequence[str] | None = None) -> int:
    """Saves the workspace and prints its address."""
    parser = argparse.ArgumentParser("fedlab-dashboard", description="A W&B workspace of a project's runs.")
    parser.add_argument("--entity", help="user or team (default: the account's own)")
    parser.add_argument("--project", default="fedlab_runner", help="default: %(default)s")
    parser.add_argument("--sweep", type=Path, metavar="FOLDER", help="only the runs of outputs/sweeps/<id>")
    given = parser.parse_args(arguments)
    try:
        check_working_folder()
    except UserError as error:
        return _refused(str(error))
    if importlib.util.find_spec("wandb_workspaces") is None:
        return _refused('fedlab-dashboard needs an extra: pip install "fedlab-runner[dashboard]"')
    if given.sweep is not None and not runs_of(given.sweep):
        return _refused(f"--sweep must be the folder of a sweep with a job that has begun, got {given.sweep}")
    import wandb

    try:
        reach = Reach(server())
        if not reach.answers(REQUEST_TIMEOUT_SECONDS):  # W&B itself would try for up to minutes
            raise ConnectionError(reach.reason)
        entity = given.entity or str(wandb.Api().default_entity)
        saved = workspace(entity, given.project, given.sweep).save()
    except Exception as error:  # W&B raises any error of its transport
        if found := fault(error):
            return _refused(found)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return _refused(f"W&B did not save the workspace ({reason}): `wandb login` first, or look at WANDB_BASE_URL")
    streams.make_optional()  # it is saved
    print(saved.url)
    return 0


def _refused(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
