"""Gradients of a reference by torch's own autograd, also where a dispatch mode has switched it off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_AUTOGRAD = (torch._C.DispatchKey.AutogradCPU, torch._C.DispatchKey.AutogradFunctionality, torch._C.DispatchKey.ADInplaceOrView,
             torch._C.DispatchKey.AutogradOther)


def gradients(function: Callable[..., Any], inputs: Sequence[torch.Tensor | None], grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Gradients of `function(*inputs)` (a tensor or several) at the inputs, in their dtypes; computed in float32, or float64 where an input is.

    None for an input that is None. An output whose gradient is None counts for nothing.
    """
    double = any(x is not None and x.dtype == torch.float64 for x in inputs)
    wide = torch.float64 if double else torch.float32
    leaves = [None if x is None else x.detach().to(wide) for x in inputs]
    exclude = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD:
        exclude = exclude.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), exclude), torch.enable_grad():
        leaves = [None if x is None else x.clone().requires_grad_() for x in leaves]
        found = function(*leaves)
        outputs = found if isinstance(found, (tuple, list)) else [found]
        pairs = [(o, g.to(o.dtype)) for o, g in zip(outputs, grads, strict=False) if g is not None]
        wanted = [x for x in leaves if x is not None]
        made = iter(torch.autograd.grad([o for o, _g in pairs], wanted, [g for _o, g in pairs], allow_unused=True))
    return [None if x is None else _or_zeros(next(made), x) for x in inputs]


def _or_zeros(found: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like) if found is None else found.to(like.dtype)
