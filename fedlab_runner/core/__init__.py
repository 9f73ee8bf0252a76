"""What an algorithm acts on and what a client computes. Knows no run folder, no W&B and no executor."""
