"""NPU104 eager-fast-path: in eval mode PyTorch takes one fused operator that the NPU does not have.

Why it hurts: nn.TransformerEncoderLayer and nn.MultiheadAttention call aten::_transformer_encoder_layer_fwd or aten::_native_multi_head_attention when gradients are off. Ascend has no kernel, so
the whole layer falls back to the CPU, although every operator in it is supported. torch.export does not show it.
Bad:   layer = nn.TransformerEncoderLayer(32, 4).eval().npu(); layer(x)
Good:  torch.backends.mha.set_fastpath_enabled(False) once, before the first call
Source: Ascend/pytorch issue 51.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.rules.families import family
from npulift.targets.base import Target

CODE = "NPU104"
NAME = "eager-fast-path"
FUSED = ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each fused operator that eager dispatches and export does not show; for targets that run eagerly."""
    if family(target) not in ("ascend", "cpu"):
        return
    found: dict[str, list[Op]] = {}
    for op in capture.eager_ops:
        if op.base in FUSED:
            found.setdefault(op.base, []).append(op)
    if not found:
        return
    removed = fast_path_removes_them(capture)
    for base, ops in found.items():
        n = len(ops)
        message = ngettext("In eval mode eager PyTorch dispatches {n} {name}, which torch.export does not show and for which the NPU has no kernel: the layer falls back to the CPU.",
                           "In eval mode eager PyTorch dispatches {n} {name}, which torch.export does not show and for which the NPU has no kernel: the layers fall back to the CPU.",
                           n).format(n=n, name=base)
        fix = _("Call torch.backends.mha.set_fastpath_enabled(False) before the first call.")
        if removed:
            fix += " " + _("Tried here: the operator is gone and ordinary supported ones run.")
        severity = Severity.ERROR if family(target) == "ascend" else Severity.INFO
        yield Finding(CODE, NAME, severity, message, ops[0].location, ops[0].module, fix, details={"operator": base, "count": n, "fast_path_off_removes_it": removed})


def fast_path_removes_them(capture: Capture) -> bool | None:
    """Whether the fused operators are gone with the fast path disabled; None when the model cannot be run here."""
    if capture.device == "meta":
        return None
    from npulift.tracing import capture as see

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        again = see(capture.spec, export=False)
    except Exception:  # then nothing was proven
        return None
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    return not again.eager_error and not any(op.base in FUSED for op in again.eager_ops)
