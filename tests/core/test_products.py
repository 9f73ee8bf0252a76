"""Products by oneDNN and by PyTorch's own library are the same up to rounding."""

import pytest
import torch

from fedlab_runner.core import products
from fedlab_runner.core.products import add_product, by_onednn


@pytest.mark.skipif(not products.has_onednn(), reason="this build of PyTorch has no oneDNN")
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_is_added_in_place(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    a, total = torch.randn(9, 6)[1:8], torch.randn(7, 5)
    b = torch.randn(5, 6).t() if transposed else torch.randn(6, 5)
    expected, calls = total + 3 * a @ b, list[torch.Size]()
    monkeypatch.setattr(products, "by_onednn", lambda a, b: (calls.append(a.shape), by_onednn(a, b))[1])
    for pays in (False, True):
        monkeypatch.setattr(products, "pays", lambda pays=pays: pays)
        for bound in (1, 7 * 6 * 5, 7 * 6 * 5 + 1):
            monkeypatch.setattr(products, "MIN_PRODUCT", bound)
            room = total.clone()
            assert add_product(room, a, b, 3.0) is room
            torch.testing.assert_close(room, expected)
    assert len(calls) == 2
    wide = add_product(total.double(), a.double(), b.double(), 3.0)
    assert torch.equal(wide, total.double().addmm_(a.double(), b.double(), alpha=3.0))
    assert len(calls) == 2  # oneDNN has no products in float64


def test_onednn_is_for_processors_that_pytorch_multiplies_slowly_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "has_onednn", lambda: True)
    for name, capability, pays in (
        ("AMD EPYC 9654 96-Core Processor", "AVX512", True),
        ("AMD EPYC 7742 64-Core Processor", "AVX2", False),
        ("Intel(R) Xeon(R) Platinum 8480C", "AVX512", False),
        ("", "DEFAULT", False),
    ):
        monkeypatch.setattr(products, "processor", lambda name=name: name)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        assert products.pays.__wrapped__() is pays, name
