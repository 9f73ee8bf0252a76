"""The files of a run besides its numbers: config, partition, pictures, model. W&B shows them too."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedlab_runner.core.architectures import shape_of
from fedlab_runner.evaluation.evaluator import CLASS_PREFIX
from fedlab_runner.evaluation.matrix import CellScores
from fedlab_runner.experiment import provenance
from fedlab_runner.experiment.export import save_description, save_models
from fedlab_runner.experiment.setup import Prepared
from fedlab_runner.models.base import Architecture
from fedlab_runner.plots.blocks import block_table, plot_blocks
from fedlab_runner.plots.clients import client_table, plot_clients, write_client_table
from fedlab_runner.plots.curves import plot_curves, plot_staleness
from fedlab_runner.plots.diagnostics import PICTURES, plot_diagnostics
from fedlab_runner.plots.partition import PARTITION_FILE, partition_table, plot_partition, write_partition_table
from fedlab_runner.plots.topology import plot_topology
from fedlab_runner.tracking.jsonl import Row
from fedlab_runner.tracking.recorder import Recorder
from fedlab_runner.utils.files import write_text_atomically
from fedlab_runner.utils.run_files import CONFIG, MODEL_FILE

_log = logging.getLogger("fedlab_runner")
LOGGED_CLIENTS = 1000  # rows of the partition table that go to W&B at most


class RunArtifacts:
    """Writes one run's files, and pictures only with `draw`. `record` notes the command that started the run and
    returns the commit.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        config: Mapping[str, Any],
        prepared: Prepared,
        record: Callable[[], str | None],
        draw: bool,
    ) -> None:
        self._folder, self._plots, self._name, self._config = folder, folder / "plots", name, config
        self._prepared, self._record, self._draw = prepared, record, draw
        self._strata, self._classes = prepared.data.train.strata.numpy(), prepared.data.class_names

    def start(self) -> str | None:
        """Writes the config and the command, and returns the commit of the code."""
        self._write_config()
        return self._record()

    def show_partition(self, recorder: Recorder) -> None:
        """Shows partition and topology as tables and pictures."""
        self._remove_shorter(recorder)
        split = self._prepared.split[:LOGGED_CLIENTS]
        columns, rows = partition_table(split, self._strata, self._classes, self._prepared.uses)
        recorder.table("partition", columns, rows)
        if (blocks := self._prepared.simulation.fed.blocks) is not None:
            recorder.table("blocks", *block_table(blocks, self._prepared.split, self._strata, self._classes))
        self._write_partition()
        for name, picture in self._draw_partition() if self._draw else ():
            recorder.image(name, picture)

    def _remove_shorter(self, recorder: Recorder) -> None:
        """Removes models and pictures of fewer rounds, which the run would not replace if it now writes none."""
        rounds = self._prepared.simulation.rounds
        if any(row["round"] == rounds for row in recorder.rows()):
            return
        names = ("curves", "staleness", "clients", *PICTURES)
        drawn = [self._plots / f"{name}.{kind}" for name in names for kind in ("png", "svg")]
        for path in (self._folder / MODEL_FILE, *drawn):
            if path.is_file():
                path.unlink()

    def show_results(self, recorder: Recorder, state: Any, saved: Architecture | None) -> None:
        """Writes the pictures of all rounds, the accuracy on each class and, for an architecture that is `saved`, the
        models of a State.
        """
        self._restore_removed()
        rows = recorder.rows()
        if self._draw:
            self._draw_rounds(recorder, rows)
        self._show_classes(rows, recorder)
        self._show_clients(recorder, self._prepared.simulation.by_client(state, rows[-1]["round"]))
        if saved is not None:
            recorder.model(self._save_models(saved, state, rows[-1]["round"]))

    def _draw_rounds(self, recorder: Recorder, rows: list[Row]) -> None:
        """Draws the pictures over the rounds."""
        every = self._prepared.simulation.evaluation.every
        if plot_curves(self._plots / "curves.png", rows, self._name, every):
            recorder.image("curves", self._plots / "curves.png")
        if plot_staleness(self._plots / "staleness.png", rows, self._name):
            recorder.image("staleness", self._plots / "staleness.png")
        for picture in plot_diagnostics(self._plots, rows, self._name):
            recorder.image(picture.stem, picture)

    def _save_models(self, architecture: Architecture, state: Any, round: int) -> list[Path]:
        """Writes the evaluated models and, for a single model, the description that its library reads besides the
        weights; returns the files.
        """
        models, data = self._prepared.simulation.evaluated(state), self._prepared.data
        written = [self._folder / MODEL_FILE]
        if len(models) == 1:
            module, side = models[0][0].module, shape_of(data.test.inputs)[1]
            about = architecture.description(module, side, data.mean, data.std, data.class_names)
            if about is not None:
                written.append(save_description(self._folder, about))
        save_models(self._folder / MODEL_FILE, models, round)
        return written

    def _show_clients(self, recorder: Recorder, cells: Mapping[str, CellScores]) -> None:
        """Writes table and picture of the clients, if the evaluation matrix has cells in which they differ."""
        if not cells:
            return
        fed = self._prepared.simulation.fed
        columns, rows = client_table(cells, fed.held_out, fed.num_clients)
        write_client_table(self._folder, columns, rows)
        recorder.table("clients", columns, rows[:LOGGED_CLIENTS])
        if self._draw and plot_clients(self._plots / "clients.png", cells, self._name):
            recorder.image("clients_plot", self._plots / "clients.png")

    def _restore_removed(self) -> None:
        """Writes files again that somebody has removed during the run."""
        again: dict[str, Callable[[], object]] = {
            CONFIG: self._write_config,
            provenance.COMMANDS_FILE: self._record,
            PARTITION_FILE: self._write_partition,
        }
        for name, write in again.items():
            if not (self._folder / name).exists():
                _log.warning("%s was removed during the run: it is written again", self._folder / name)
                write()

    def _write_config(self) -> None:
        write_text_atomically(self._folder / CONFIG, OmegaConf.to_yaml(OmegaConf.create(dict(self._config))))

    def _write_partition(self) -> None:
        """Writes the partition table."""
        prepared = self._prepared
        write_partition_table(self._folder, prepared.split, self._strata, self._classes, prepared.uses)

    def _draw_partition(self) -> list[tuple[str, Path]]:
        """Draws partition, topology and blocks, and returns names and paths of the pictures."""
        split, plots, fed = self._prepared.split, self._plots, self._prepared.simulation.fed
        plot_partition(plots / "partition.png", split, self._strata, self._classes, self._name)
        drawn = [("partition_plot", plots / "partition.png")]
        if fed.topology is not None:
            plot_topology(plots / "topology.png", fed.topology, self._name)
            drawn.append(("topology", plots / "topology.png"))
        if fed.blocks is not None:
            columns, rows = block_table(fed.blocks, split, self._strata, self._classes)
            plot_blocks(plots / "blocks.png", columns, rows, self._name)
            drawn.append(("blocks_plot", plots / "blocks.png"))
        return drawn

    def _show_classes(self, rows: Sequence[Row], recorder: Recorder) -> None:
        """Shows the last accuracy on each class as a table in W&B, if the run evaluates classes."""
        last: Row = {}
        for row in rows:
            last |= row
        accuracies = [(c, last.get(f"{CLASS_PREFIX}{c}")) for c in range(len(self._classes))]
        table = [[self._classes[c], accuracy] for c, accuracy in accuracies if accuracy is not None]
        if table:
            recorder.table("per_class", ["class", "accuracy"], table)
