"""Names, styles and references of methods: one entry for each, in `methods.yaml` and `references.bib`."""
