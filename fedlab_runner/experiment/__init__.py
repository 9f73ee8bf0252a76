"""One run, from a config to its objective."""
