"""Pictures of one run."""
