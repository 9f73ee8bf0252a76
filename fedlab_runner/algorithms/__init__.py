"""The algorithms: one file each, named as on the command line."""
