"""The command `fedlab-dashboard`: saves a W&B workspace with the panels of a federated experiment.

Needs the extra (`pip install "fedlab-runner[dashboard]"`) and an account or server: nothing can be saved offline.
Exit codes: 0 saved, 2 something is missing.
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

from fedlab_runner.utils import streams

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
            ("Own test: worst tenth of clients", ["server/own_worst_decile", "client/own_worst_decile"]),
            ("Unseen clients", ["server/unseen", "client/unseen", "tuned/unseen"]),
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
)
PICTURES = (
    *("partition_plot", "blocks_plot", "topology", "curves", "staleness"),
    *("matrix", "clients_plot", "coefficients", "directions", "update_cosines"),
)
TABLES = ("partition", "clients", "per_class")


def workspace(entity: str, project: str, group: str | None) -> Any:
    """A workspace, not yet saved: lines are means over the runs of an algorithm with a band of one standard deviation.

    `group` is the sweep to show; None: all runs of the project.
    """
    # Imported by name: the type check must not depend on an extra.
    ws: Any = importlib.import_module("wandb_workspaces.workspaces")
    wr: Any = importlib.import_module("wandb_workspaces.reports.v2")

    def line(title: str, metrics: Sequence[str]) -> Any:
        return wr.LinePlot(
            title=title,
            x="round",
            y=list(metrics),
            groupby="JobType",
            groupby_aggfunc="mean",
            groupby_rangefunc="stddev",
            max_runs_to_show=100,
        )

    sections = [
        ws.Section(name=name, panels=[line(*panel) for panel in panels], is_open=is_open)
        for name, is_open, panels in LINES
    ]
    pictures = [wr.MediaBrowser(title=name, media_keys=[name]) for name in PICTURES]
    tables = [wr.WeavePanelSummaryTable(table_name=name) for name in TABLES]
    objective = wr.BarPlot(
        title="Objective", metrics=[wr.SummaryMetric("summary.objective")], groupby="JobType", max_runs_to_show=100
    )
    sections[0].panels.append(objective)
    sections.append(ws.Section(name="Partition, coefficients, classes", panels=[*pictures, *tables], is_open=False))
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"fedlab: {group}" if group else "fedlab",
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis="round", max_runs=100),
        runset_settings=ws.RunsetSettings(
            filters=[ws.Metric("Group") == group] if group else [],
            groupby=[ws.Metric("JobType")],
        ),
    )


@streams.protected()
def main(arguments: Sequence[str] | None = None) -> int:
    """Saves the workspace and prints its address."""
    parser = argparse.ArgumentParser("fedlab-dashboard", description="A W&B workspace of a project's runs.")
    parser.add_argument("--entity", help="user or team (default: the account's own)")
    parser.add_argument("--project", default="fedlab_runner", help="default: %(default)s")
    parser.add_argument("--group", help="only the runs of this sweep, e.g. algorithm_seed-1a2b3c4d")
    given = parser.parse_args(arguments)
    if importlib.util.find_spec("wandb_workspaces") is None:
        return _refused('fedlab-dashboard needs an extra: pip install "fedlab-runner[dashboard]"')
    import wandb

    try:
        entity = given.entity or str(wandb.Api().default_entity)
        saved = workspace(entity, given.project, given.group).save()
    except Exception as error:  # W&B raises any error of its transport
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
