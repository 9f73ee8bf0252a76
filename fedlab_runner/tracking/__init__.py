"""Where a run's numbers go: its own files, W&B and the terminal. `recorder` joins them."""
