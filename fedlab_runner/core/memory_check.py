"""Refuses a cohort whose models cannot fit into memory, before it is trained."""

from fedlab_runner.core.work import Work
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.system import memory_bytes

MODEL_COPIES = 2  # of the cohort's models: the trained models (y) and the updates (y - x)
MIN_CHECKED_BYTES = 2**28  # smaller cohorts are not checked


def check_cohort_memory(work: Work) -> None:
    """Raises UserError if the models of a cohort need more memory than is free; the line says how many would fit."""
    model = work.family.size * work.family.dtype.itemsize
    needed = MODEL_COPIES * len(work.ids) * model
    if needed < MIN_CHECKED_BYTES or work.family.device.type != "cpu":
        return
    free = memory_bytes()
    if free is not None and needed > free:
        fitting = free // (MODEL_COPIES * model)
        raise UserError(
            f"a round needs {needed / 1e9:.1f} GB for the models of {len(work.ids)} clients ({work.family.size:,} "
            f"values each), and {free / 1e9:.1f} GB are free: lower participation.cohort_size to {fitting} or less, "
            "set aggregator.sum_every where the algorithm takes it, or take a smaller model"
        )
