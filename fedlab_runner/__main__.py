"""`python -m fedlab_runner` is `fedlab`."""

from fedlab_runner.train import command

command()
