"""Worker processes that are forks of the run."""
