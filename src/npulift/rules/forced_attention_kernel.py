"""NPU105 forced-attention-kernel: a CUDA attention kernel is called by its own name.

Why it hurts: torch.ops.aten._scaled_dot_product_efficient_attention and its relatives exist for CUDA alone. On an NPU there is no kernel: the call falls back and then fails.
Bad:   torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, False)[0]
Good:  torch.nn.functional.scaled_dot_product_attention(q, k, v), or torch_npu.npu_fusion_attention
Source: vllm-project/vllm-omni issue 755.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.targets.base import Target

CODE = "NPU105"
NAME = "forced-attention-kernel"
CUDA_ONLY = {
    f"aten::{n}" for n in (
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention", "_efficient_attention_forward",
        "_flash_attention_forward", "_cudnn_attention_forward",
    )
}
_NAMESPACES = ("flash_attn", "xformers", "flash_attn_3")


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each line with such a call."""
    seen: dict[object, Op] = {}
    for op in (*capture.exported_ops, *capture.eager_ops):
        if op.base in CUDA_ONLY or op.base.startswith(_NAMESPACES):
            seen.setdefault((op.base, op.location), op)
    for op in seen.values():
        yield Finding(
            CODE, NAME, Severity.ERROR,
            _("{name} is a kernel of CUDA alone, called by its own name: {target} has no kernel for it, so the call falls back and fails.").format(
                name=op.base, target=target.name),
            op.location, op.module,
            _("Call torch.nn.functional.scaled_dot_product_attention and let the device choose its kernel; on Ascend torch_npu.npu_fusion_attention is the fused one."),
            details={"operator": op.base},
        )
    error = capture.eager_error
    if not seen and any(n.partition("::")[2] in error for n in CUDA_ONLY):
        name = next(n for n in CUDA_ONLY if n.partition("::")[2] in error)
        yield Finding(CODE, NAME, Severity.ERROR, _("{name} is a kernel of CUDA alone; this model cannot run without it.").format(name=name), None, "",
                      _("Call torch.nn.functional.scaled_dot_product_attention instead."), details={"operator": name})
