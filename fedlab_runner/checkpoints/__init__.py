"""Checkpoints: the files of a run's states, and the packing of a state into plain values."""
