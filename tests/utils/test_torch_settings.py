"""A run has PyTorch's usual settings in any program, which has its own afterwards; threads take turns."""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from fedlab_runner.utils.torch_settings import usual_settings

CPU = torch.backends.mkldnn  # of its products


def precisions() -> list[str]:
    return [product.fp32_precision for product in (CPU.matmul, CPU.conv, CPU.rnn)]


def seen() -> list[object]:
    return [torch.get_default_dtype(), torch.get_num_threads(), CPU.enabled, *precisions()]


def set_products(precision: str) -> None:
    for product in (CPU.matmul, CPU.conv, CPU.rnn):
        product.fp32_precision = precision


@pytest.mark.parametrize(
    ("change", "back"),
    [
        (partial(torch.set_float32_matmul_precision, "medium"), partial(torch.set_float32_matmul_precision, "highest")),
        (partial(set_products, "bf16"), partial(set_products, "none")),
        (partial(CPU.set_flags, False), partial(CPU.set_flags, True)),
        (partial(CPU.set_flags, _fp32_precision="bf16"), partial(CPU.set_flags, _fp32_precision="none")),
    ],
    ids=["medium", "bf16", "off", "all"],
)
def test_products_on_a_cpu_have_all_bits_of_float32_in_any_program(
    change: Callable[[], object], back: Callable[[], object]
) -> None:
    change()
    try:
        before = seen()
        with usual_settings():
            assert CPU.enabled and precisions() == 3 * ["ieee"]
            assert torch.get_float32_matmul_precision() in ("medium", "highest"), "which torch.compile reads"
            torch.set_num_threads(2)
        assert seen() == before
    finally:
        back()
        set_products("none")


def test_threads_of_a_process_take_turns() -> None:
    order, before = list[int](), seen()

    def work(number: int) -> None:
        with usual_settings(), usual_settings():
            order.append(number)
            time.sleep(0.05)
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    torch.set_default_dtype(torch.float64)
    try:
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert order[::2] == order[1::2] and torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert seen() == before


def test_a_signal_ends_the_wait_for_a_turn() -> None:
    entered, leave = threading.Event(), threading.Event()

    @usual_settings()
    def work() -> None:
        entered.set()
        leave.wait(10)

    other = threading.Thread(target=work)
    other.start()
    entered.wait()
    interrupt = threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT])  # as Ctrl-C does
    interrupt.start()
    try:
        with pytest.raises(KeyboardInterrupt), usual_settings():
            pytest.fail("two threads have a turn")
    finally:
        interrupt.cancel()
        leave.set()
        other.join()
