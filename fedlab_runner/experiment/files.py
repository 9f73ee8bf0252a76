"""The names of files in a run's folder."""

CONFIG = "config.yaml"
MODEL_FILE = "model.safetensors"
