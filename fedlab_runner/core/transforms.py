"""Whether PyTorch computes values, or follows a function that torch.func transforms or the compiler reads."""

import torch

# Torch's own function that gives the innermost transform, such as vmap; None where a version of torch lacks it.
_transform = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)


def computes_plainly() -> bool:
    """Whether no transform of torch.func and no compiler is at work; False where a version of torch cannot tell."""
    return _transform is not None and not torch.compiler.is_compiling() and _transform() is None
