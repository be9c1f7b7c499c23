"""assume: state a value that depends on data, for simulations in which kernels compute nothing."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def assume(value: T, assumed: Any) -> T:
    """The value itself; in `npulift simulate --mode fake`, what is assumed instead.

    value: a number, bool or tensor that depends on data, e.g. `tokens = npulift.assume(mask.sum().item(), 300)`.
    assumed: what to take for it; for a tensor a number, with which all its elements are filled.
    Each assumption met is listed in the report with its line. Everywhere else this returns `value` and costs nothing.
    """
    from npulift.ascend import assumptions

    if not assumptions.active():
        return value
    assumptions.note(assumed)
    if hasattr(value, "device") and hasattr(value, "dtype"):
        import torch

        tensor: Any = value
        return torch.full(tensor.shape, assumed, dtype=tensor.dtype).to(tensor.device)  # type: ignore[return-value]
    return assumed  # type: ignore[no-any-return]
