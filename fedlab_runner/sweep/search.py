"""What a search with Optuna needs before its first trial."""

import importlib
import logging
from typing import Any

from fedlab_runner.utils.counting import count_of
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.sweep_job import IN_SWEEP

_log = logging.getLogger(__name__)


def begin(sweeper: Any) -> None:
    """Has Optuna say nothing of its own on the terminal, as the lines of the jobs tell the same; and looks into the
    storage of `sweeper`, Hydra's part of the config.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:  # which Hydra reports
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _tell_of_trials(optuna, sweeper)


def _tell_of_trials(optuna: Any, sweeper: Any) -> None:
    """Warns of a study that has trials already: Optuna adds those of this search, and takes the best of all. Raises
    UserError for a storage that Optuna cannot use.
    """
    storage, name = sweeper.get("storage"), sweeper.get("study_name")
    if not isinstance(storage, str):
        return
    try:
        studies = optuna.get_all_study_summaries(storage)
    except Exception as error:  # of the database's library, of whatever type
        raise UserError(f"hydra.sweeper.storage cannot be used: {str(error).partition(chr(10))[0]}") from error
    if found := sum(each.n_trials for each in studies if each.study_name == name):
        words = "the study %s in hydra.sweeper.storage has %s already, to which this search adds its own: for a search "
        words += "of its own give another hydra.sweeper.study_name"
        _log.warning(words, name, count_of(found, "trial"), extra=IN_SWEEP)
