"""Layers that replace PyTorch's own in every model: they give the same values, faster or without a backend's fault."""
