"""Recorders of a run's numbers: its own files, W&B and the terminal. `recorder` joins them."""
