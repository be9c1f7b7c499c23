"""Operators that ran on the CPU because the NPU has no kernel: counted, never called a failure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _, current_language, ngettext

_OPERATOR = re.compile(r"The operator '([\w:.]{1,120})' is not currently supported on the (?:NPU|npu)\b")
_WAYS = {
    "nms": ("use the NPU's own suppression (torch_npu.npu_nms_with_mask, npu::npu_nms_v4 or mmcv's NPU operator), or move the post-processing to the host on purpose, once a batch",
            "改用 NPU 自带的 NMS（torch_npu.npu_nms_with_mask、npu::npu_nms_v4 或 mmcv 的 NPU 算子），或有意把后处理放到主机上，每批一次"),
    "isin": ("newer torch_npu releases have a kernel for isin: upgrade torch and torch_npu together; until then compare by broadcasting, (x[..., None] == values).any(-1)",
             "较新的 torch_npu 已有 isin 内核：请同时升级 torch 与 torch_npu；此前可用广播比较 (x[..., None] == values).any(-1)"),
    "_transformer_encoder_layer_fwd": ("torch.backends.mha.set_fastpath_enabled(False)", "torch.backends.mha.set_fastpath_enabled(False)"),
    "_native_multi_head_attention": ("torch.backends.mha.set_fastpath_enabled(False)", "torch.backends.mha.set_fastpath_enabled(False)"),
    "_scaled_dot_product_efficient_attention": ("call F.scaled_dot_product_attention, which goes to the NPU's attention", "改为调用 F.scaled_dot_product_attention，它会走 NPU 的注意力算子"),
    "_logcumsumexp": ("compute it in a stable form from cumsum and cummax", "用 cumsum 与 cummax 的数值稳定形式计算"),
    "grid_sampler": ("only some interpolation modes have a kernel: try mode='bilinear', align_corners=False, float32", "仅部分插值方式有内核：可试 mode='bilinear'、align_corners=False、float32"),
    "complex": ("keep real and imaginary parts as a last dimension of size 2", "把实部与虚部存为最后一维（大小为 2）"),
    "unique": ("its result has a data-dependent size: do it on the host once, before the device loop", "结果大小依赖数据：请在进入设备循环前在主机上做一次"),
    "linalg": ("do the factorisation on the host once, in float64, and copy the result", "在主机上用 float64 做一次分解，再拷贝结果"),
    "upsample_bicubic2d": ("use bilinear, or two matrix products with constant weights", "改用 bilinear，或用两次常量权重的矩阵乘"),
}


class Fallbacks:
    """Collects the warnings."""

    literals = ("is not currently supported on the NPU", "is not currently supported on the npu")
    limit = 100_000

    def __init__(self) -> None:
        self.operators: dict[str, tuple[int, Line]] = {}

    def line(self, line: Line) -> None:
        """Take one warning."""
        for operator in _OPERATOR.findall(line.text):
            count, first = self.operators.get(operator, (0, line))
            if operator in self.operators or len(self.operators) < 500:
                self.operators[operator] = (count + 1, first)

    def causes(self, found: Found) -> Iterator[Cause]:
        """All operators in one cause."""
        if not self.operators:
            return
        zh = current_language() == "zh"
        names = list(self.operators)
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        ways = []
        for name in names:
            hint = next((texts for key, texts in _WAYS.items() if key in name), None)
            if hint:
                ways.append(f"{name}: {hint[1 if zh else 0]}")
        yield Cause(
            "cpu-fallback", Severity.WARNING, "high",
            ngettext(
                "{n} operator has no NPU kernel here and runs on the CPU: {names}. The job still runs on the NPU and the results stay right; only this operator runs on the host. "
                "Each call costs a wait for the NPU and two copies, there and back. The warning is printed once an operator, so how often it is called cannot be seen here.",
                "{n} operators have no NPU kernel here and run on the CPU: {names}. The job still runs on the NPU and the results stay right; only these operators run on the host. "
                "Each call costs a wait for the NPU and two copies, there and back. The warning is printed once an operator, so how often they are called cannot be seen here.",
                len(names)).format(n=len(names), names=shown),
            (
                _("Count before you care: profile a few steps (torch_npu.profiler, or `npulift simulate`, which counts every call with its source line)."),
                *ways[:8],
                _("Newer torch_npu releases add kernels: `npulift check MODEL --target ascend-910b2 --torch-npu VERSION` says which version has one."),
            ),
            tuple(first for _n, first in self.operators.values())[:8],
            more=_("The profile of a step: AI CPU and host time around the copies."),
            source="opendatalab/MinerU#1695; Ascend/pytorch#40", count=sum(n for n, _l in self.operators.values()), details={"operators": names, "count": len(names)})


def new() -> Fallbacks:
    """A fresh one."""
    return Fallbacks()
