"""The memory that work comes to hold."""

from collections.abc import Callable

import numpy as np
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], object]) -> float:
    """The bytes that torch holds on the CPU at the highest, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return float(np.cumsum([event.nbytes() for event in events]).max())
