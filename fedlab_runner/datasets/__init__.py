"""Where the samples come from: one file and one frozen dataclass a data set, with conf/dataset/<file>.yaml.

`load(seed)` gives the Data, a pure function of the fields, the files they name and the seed.
"""
