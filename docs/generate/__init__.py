"""The pages in docs/reference, made from the code and the configs, and the documentation site."""
