"""Errors of jobs and runs that are one, because they differ only in what is of one run."""

import re

from fedlab_runner.utils.run_files import CONFIG

_NUMBER = r"(?<![\w./])(?:-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|nan|inf)(?!\w)"  # in a text
# In the error of a run, what another run with this error has otherwise: a number, a list of numbers such as
# `3, 1 and 2 more`, and the plural that a number asks for.
_OF_ONE_RUN = re.compile(rf"{_NUMBER}(?:, {_NUMBER})*(?: and \d+ more)?|(?<=\w)s\b")
_REFUSED = re.compile(rf"(.+?)/{re.escape(CONFIG)}\b")  # how the error begins where the folder has another run


def kind(error: str, folder: str) -> str:
    """An error without numbers, plurals, and the words that hold the name or the path of the run's `folder`. A job that
    was refused has none: its error begins with the folder of the other run.
    """
    if not folder and (refused := _REFUSED.match(error)):
        folder = refused[1]
    return _OF_ONE_RUN.sub("", re.sub(rf"\S*{re.escape(folder)}\S*", "", error) if folder else error)
