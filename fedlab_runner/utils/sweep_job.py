"""The environment variables by which the jobs of any launcher know their sweep."""

NAME = "FEDLAB_SWEEP"  # the sweep's name, which is W&B's group
FOLDER = "FEDLAB_SWEEP_FOLDER"  # the sweep's folder
JOB = "FEDLAB_SWEEP_JOB"  # the place of the process's present job in the sweep, such as `job 7/18`
IN_SWEEP = {"in_sweep": True}  # the `extra` of a log record that the terminal shows in a sweep; others go to files only
