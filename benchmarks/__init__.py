"""How fast the package is, beside the plain PyTorch loop that a user would write; `make bench`."""
