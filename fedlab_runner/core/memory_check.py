"""What a cohort's models need of memory, before they are trained."""

from fedlab_runner.core.work import Work
from fedlab_runner.utils.errors import UserError
from fedlab_runner.utils.system import memory_bytes

COPIES = 2  # of a cohort's models: what clients send (y - x) is made beside what they trained (y)
WORTH_ASKING = 2**28  # bytes; the system is not asked about less


def check_cohort_memory(work: Work) -> None:
    """UserError where the models of a cohort cannot fit into what is free, with the numbers and the way out."""
    model = work.family.size * work.family.dtype.itemsize
    needed = COPIES * len(work.ids) * model
    if needed < WORTH_ASKING or work.family.device.type != "cpu":
        return
    free = memory_bytes()
    if free is not None and needed > free:
        fitting = free // (COPIES * model)
        raise UserError(
            f"a round needs {needed / 1e9:.1f} GB for the models of {len(work.ids)} clients ({work.family.size:,} "
            f"values each), and {free / 1e9:.1f} GB are free: lower participation.cohort_size to {fitting} or less, or "
            "take a smaller model"
        )
