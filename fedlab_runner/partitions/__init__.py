"""Who has which samples: one file and one frozen dataclass a partition, with conf/partition/<file>.yaml.

`split(strata, users, num_clients, rng)` gives the int64 indices of every client's samples, ascending and disjoint; all
samples are dealt unless the class says otherwise.
"""
