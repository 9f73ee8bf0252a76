"""The environment variables by which the jobs of any launcher know their sweep."""

NAME = "FEDLAB_SWEEP"  # its name, which is W&B's group
FOLDER = "FEDLAB_SWEEP_FOLDER"  # its folder
