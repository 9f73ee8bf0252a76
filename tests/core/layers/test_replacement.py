"""What becomes of a network before it is a template."""

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.toy import CLASSES, FEATURES, examples, model_family


class Spectrum(nn.Module):
    """Takes the absolute values of a Fourier transform whose factors are complex, a buffer or a parameter."""

    def __init__(self, *, trains: bool) -> None:
        super().__init__()
        factors = torch.fft.fft(torch.eye(FEATURES, dtype=torch.float64))
        self.head = nn.Linear(FEATURES, CLASSES)
        if trains:
            self.factors = nn.Parameter(factors)
        else:
            self.register_buffer("factors", factors)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head((inputs.to(self.factors.dtype) @ self.factors).abs())
        return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_buffers_stay_complex(dtype: torch.dtype) -> None:
    family, inputs = model_family(lambda: Spectrum(trains=False), dtype), examples(7)[0].to(dtype)
    w = family.init(0)
    values = family.views(w)
    expected = torch.fft.fft(inputs).abs() @ values["head.weight"].T + values["head.bias"]
    torch.testing.assert_close(family.predict(w, inputs), expected)


def test_a_complex_parameter_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parameter factors is complex, .* make it a float parameter"):
        model_family(lambda: Spectrum(trains=True))
