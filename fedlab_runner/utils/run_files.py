"""The names of files in a run's folder."""

CONFIG = "config.yaml"  # the resolved config
# The way out of a fault of a run's folder, in messages.
OTHER_FOLDER = "another folder (hydra.run.dir; in a sweep hydra.sweep.dir; in Python the second argument of run)"
THIS_FOLDER = "hydra.run.dir=<this run's folder>"  # in messages of parts that do not know the run's folder
MODEL_FILE = "model.safetensors"  # the final weights
