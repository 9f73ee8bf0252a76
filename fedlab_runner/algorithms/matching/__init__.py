"""Neurons have no order: which ones a model's vector holds, and which of two models do the same work."""
