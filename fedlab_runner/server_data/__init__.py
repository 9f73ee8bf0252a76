"""What the server has of its own: one file and one frozen dataclass a choice, with conf/server_data/<file>.yaml.

`reserve(data, seed)` gives the server's examples, as the model wants them, and the data that is left for clients and
test; a pure function of the fields, the files they name, the data and the seed.
"""
