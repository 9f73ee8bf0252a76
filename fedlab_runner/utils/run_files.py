"""The names of files in a run's folder."""

CONFIG = "config.yaml"  # the resolved config
MODEL_FILE = "model.safetensors"  # the final weights
