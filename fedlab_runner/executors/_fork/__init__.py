"""Worker processes that are forks of the run: buffers, processes, pool, lockstep."""
