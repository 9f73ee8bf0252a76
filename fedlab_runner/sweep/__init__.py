"""The record of a sweep, which is many runs: jobs, table, pictures."""
