"""NPU107 costly-decomposition: one operator that a compiler takes apart into many.

Why it hurts: what has no kernel of its own is decomposed into core operators. Some decompositions are long and full of gathers (resizing in the modes that are not a
plain factor, grid_sample, roll), each a launch and a pass through memory.
Bad:   F.interpolate(x, scale_factor=1.7, mode='bicubic', align_corners=True)
Good:  a resize that the target has (nearest or bilinear by a whole factor), or two matrix products with constant weights
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.rules.families import family, is_npu
from npulift.targets.base import Target

CODE = "NPU107"
NAME = "costly-decomposition"
CANDIDATES = re.compile(r"aten::(upsample_(bilinear|bicubic|trilinear|linear)\dd|grid_sampler(_[23]d)?|im2col|col2im|roll|unfold|pixel_unshuffle|affine_grid_generator|cdist|logcumsumexp|renorm)$")
LIMIT = 8  # core operators from which on a decomposition is worth a word


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each such operator whose core ATen form has many operators."""
    if not is_npu(target) and target.name not in ("openvino",):
        return
    if capture.exported is None or capture.draft:
        return
    ops = {o.node: o for o in capture.exported_ops if CANDIDATES.match(o.base) and not o.base.endswith("_aa")}
    if family(target) == "ascend":  # NPU143 speaks of it
        ops = {k: o for k, o in ops.items() if o.base != "aten::upsample_linear1d"}
    for node in capture.exported.graph.nodes if ops else ():
        op = ops.get(node.name)
        if op is None or (target.name == "openvino" and "bicubic" not in op.base):
            continue
        core = core_form(node)
        n = sum(core.values())
        if n < LIMIT:
            continue
        gathers = core.get("aten::index", 0) + core.get("aten::gather", 0) + core.get("aten::_unsafe_index", 0)
        yield Finding(
            CODE, NAME, Severity.WARNING if is_npu(target) and family(target) != "ascend" else Severity.INFO,
            ngettext("{name} ({options}) has {n} core operator, {gathers} of them gathers, where the target has no kernel for this mode.",
                     "{name} ({options}) becomes {n} core operators, {gathers} of them gathers, where the target has no kernel for this mode.", n).format(
                name=op.base, options=_options(op), n=n, gathers=gathers),
            op.location, op.module,
            _("Use a mode that the target has a kernel for (nearest, or bilinear by a whole factor), or, since the sizes are fixed, two matrix products with constant weights; npulift tune tries it."),
            details={"operator": op.base, "core_operators": n, "gathers": gathers, "form": dict(core)},
        )


def _options(op: Op) -> str:
    return ", ".join(f"{k}={v}" for k, v in op.scalars.items() if v != "None" and k != "output_size") or "-"


def core_form(node: torch.fx.Node) -> Counter[str]:
    """Core ATen operators that this node becomes under torch's decompositions, views left out."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from npulift.graphs import operator_name

    table: Any = torch._decomp.core_aten_decompositions()
    packet: Any = node.target
    for overload in getattr(packet, "overloadpacket", packet).overloads():  # also those that exporters keep whole
        found = getattr(packet.overloadpacket, overload)
        if found not in table and found in torch._decomp.decomposition_table:
            table[found] = torch._decomp.decomposition_table[found]
    values: list[torch.Tensor] = []

    def take(n: torch.fx.Node) -> Any:
        value = n.meta["val"]
        if isinstance(value, torch.Tensor):
            values.append(torch.zeros([int(s) for s in value.shape], dtype=value.dtype))
            return _Slot(len(values) - 1)
        return value

    args, kwargs = torch.fx.node.map_arg(node.args, take), torch.fx.node.map_arg(node.kwargs, take)

    def run(*given: torch.Tensor) -> Any:
        fill = torch.utils._pytree.tree_map(lambda v: given[v.index] if isinstance(v, _Slot) else v, (args, kwargs))
        return node.target(*fill[0], **fill[1])  # type: ignore[operator]

    try:
        traced = make_fx(run, decomposition_table=table, tracing_mode="fake")(*values)
    except Exception:  # sizes may be symbolic, or a decomposition may refuse; then nothing is claimed
        return Counter()
    names = [operator_name(n.target) for n in traced.graph.nodes if n.op == "call_function" and not getattr(n.target, "is_view", False)]
    return Counter(n.partition(".")[0] for n in names if "::" in n)


class _Slot:
    """Place of a tensor argument."""

    def __init__(self, index: int) -> None:
        self.index = index
