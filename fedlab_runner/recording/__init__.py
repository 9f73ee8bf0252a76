"""Where a run's numbers go: its own files, W&B and the terminal. `fedlab_runner.recorder` puts them together."""
