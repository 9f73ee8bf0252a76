"""Evaluation of a run's models."""
