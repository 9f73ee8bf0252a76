"""One cohort on all GPUs of a machine: the processes, one for each GPU."""
