"""What happens to a training example each time a client sees it: one file and one frozen dataclass a choice, with
conf/augment/<file>.yaml.
"""
