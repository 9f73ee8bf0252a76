"""The record of many runs: jobs, table, pictures."""
