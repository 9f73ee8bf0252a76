"""Peers beside this package and a plain PyTorch loop, each in an environment of its own; `make bench-peers`."""
