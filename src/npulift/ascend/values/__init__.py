"""Values for the virtual Ascend: what its kernels would compute, on the CPU.

RealValues is the mode that fills tensors on `npu`; `reference` gives the function behind an operator that the CPU has no kernel for, which is plain torch
and needs no torch_npu.
"""

from __future__ import annotations

from npulift.ascend.values.mode import RealValues
from npulift.ascend.values.registry import operators, reference

__all__ = ["RealValues", "operators", "reference"]
