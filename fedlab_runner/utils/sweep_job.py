"""The environment variables by which the jobs of any launcher know their sweep."""

NAME = "FEDLAB_SWEEP"  # the sweep's name, which is W&B's group
FOLDER = "FEDLAB_SWEEP_FOLDER"  # the sweep's folder
