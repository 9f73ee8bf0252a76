"""The pages of docs/ that are made from the code and the configs: `make docs` writes them, tests keep them true."""
