"""How methods are called, drawn and cited: one entry for each, in `methods.yaml` and `references.bib`."""
