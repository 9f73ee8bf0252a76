"""Pictures and tables of one run."""
