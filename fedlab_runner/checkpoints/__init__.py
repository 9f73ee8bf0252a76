"""Checkpoints that a kill at any instant cannot spoil."""
