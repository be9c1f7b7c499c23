"""How much a kernel has to do, from its operands alone: multiply-adds of the cube, vector instructions, bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from npulift.ascend.cost.tables import KernelType
from npulift.ascend.records import SIZES, Operand

_ON_THE_AI_CPU = {"float64", "complex64", "complex128", "complex32", "uint16", "uint32", "uint64"}  # dtypes that the vector core has no instructions for


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` products of (m, k) with (k, n), sizes as the user gave them."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def flops(self) -> int:
        """A multiply-add counted as two."""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel does.

    gemms: matrix products.   vector_elements, vector_bytes: elements that the vector cores go over, and their size.   passes: instructions an element.
    read, written: bytes of each operand that moves.   blocks: cores that the vendor's tiling would use (a block a 4 KiB of the widest operand).
    """

    gemms: tuple[Gemm, ...]
    vector_elements: int
    vector_bytes: int
    passes: float
    read: tuple[int, ...]
    written: tuple[int, ...]
    blocks: int
    cube_dtype: str
    on_ai_cpu: bool


def work(kernel: KernelType, inputs: Sequence[Operand], outputs: Sequence[Operand], vector_cores: int, layout: str = "") -> Work:
    """The work of one launch. layout: of attention ('BNSD', 'BSH', ...), as far as the launch tells; BNSD for four dims and BSH for three where it does not."""
    written = tuple(o.numel * SIZES.get(o.dtype, 4) for o in outputs)
    out_elements = max((o.numel for o in outputs), default=0)
    match kernel.reads:
        case "none":
            read: tuple[int, ...] = ()
        case "output":
            read = tuple(min(o.bytes, out_elements * SIZES.get(o.dtype, 4)) for o in inputs)
        case _:
            read = tuple(o.bytes for o in inputs)
    elements = max([out_elements, *(o.numel for o in inputs)] if kernel.reads == "all" else [out_elements])
    if kernel.group == "optimizer":
        elements = sum(o.numel for o in outputs) // max(1, 3 if kernel.name == "ApplyAdamW" else 1)
    operands = (*inputs, *outputs) or (Operand((), "float32", "ND", ()),)
    size = max((max(2, SIZES.get(o.dtype, 4)) for o in operands if o.numel > 1), default=4)
    compute = 4 if kernel.group in ("norm", "transcendental", "reduce") else size  # these compute in float32 whatever comes in
    passes = kernel.passes * (8 if size == 8 and kernel.group in ("elementwise", "transcendental", "reduce") else 1)  # int64 has no vector instructions
    blocks = min(vector_cores, max(1, math.ceil(elements * size / 4096)))
    gemms = _gemms(kernel, inputs, outputs, layout)
    if gemms and kernel.group == "attention":
        elements, passes, compute = sum(g.batch * g.m * g.n for g in gemms) // 2, 10.0, 4  # the softmax between the two products, in float32
    cube = next((o.dtype for o in inputs if len(o.shape) > 1), "float16")
    on_ai_cpu = kernel.device == "AI_CPU" or (kernel.device == "AI_VECTOR_CORE" and any(o.dtype in _ON_THE_AI_CPU for o in operands))
    return Work(gemms, elements, compute, passes, read, written, blocks, cube, on_ai_cpu)


def _gemms(kernel: KernelType, inputs: Sequence[Operand], outputs: Sequence[Operand], layout: str) -> tuple[Gemm, ...]:
    match kernel.name:
        case "MatMul" | "BatchMatMul":
            return _product(inputs, outputs)
        case "GroupedMatmul":
            return _grouped(inputs, outputs)
        case "Conv2D":
            return (_convolution(outputs[0], inputs[1], inputs[0]),) if len(inputs) > 1 and outputs else ()
        case "Conv2DBackprop":
            if len(inputs) < 3:
                return ()
            forward = _convolution(inputs[0], inputs[2], inputs[1])
            return (forward,) * max(1, sum(o.numel > 0 for o in outputs[:2]))
        case "FlashAttentionScore":
            return _attention(inputs, layout) * 2
        case "FlashAttentionScoreGrad":
            return _attention(inputs, layout) * 5
    return ()


def _product(inputs: Sequence[Operand], outputs: Sequence[Operand]) -> tuple[Gemm, ...]:
    matrices = [o for o in inputs if o.shape and o.numel]
    if len(matrices) < 2 or not outputs or not outputs[0].numel:
        return ()
    left, right, out = matrices[-2], matrices[-1], outputs[0]
    if len(left.shape) >= 2 and len(matrices) > 2 and len(matrices[0].shape) >= 2 and len(right.shape) < 2:
        left, right = matrices[0], matrices[1]  # (a, b, bias), as graph operators put it
    n = out.shape[-1] if len(out.shape) >= 2 else 1
    m = out.shape[-2] if len(out.shape) >= 2 else out.numel
    batch = max(1, out.numel // max(1, m * n))
    if len(right.shape) <= 2 and len(out.shape) > 2:
        m, batch = m * batch, 1
    k = max(1, left.numel // max(1, m * batch)) if len(left.shape) >= 2 else left.numel
    return (Gemm(batch, m, n, k),)


def _grouped(inputs: Sequence[Operand], outputs: Sequence[Operand]) -> tuple[Gemm, ...]:
    if len(inputs) < 2 or not outputs or not outputs[0].shape or not inputs[0].shape:
        return ()
    m, n, k = outputs[0].numel // max(1, outputs[0].shape[-1]), outputs[0].shape[-1], inputs[0].shape[-1]
    groups = inputs[1].shape[0] if len(inputs[1].shape) == 3 else sum(len(o.shape) == 2 and o.shape[0] == k for o in inputs[1:]) or 1
    return (Gemm(groups, math.ceil(m / groups), n, k),)


def _convolution(out: Operand, weight: Operand, data: Operand) -> Gemm:
    """As a product over the unfolded input; channels of a group are padded to 16, as the chip's own layout has them."""
    if len(out.shape) < 3 or len(weight.shape) < 3 or not weight.numel or not out.numel:
        return Gemm(1, 0, 0, 0)
    channels = weight.shape[1]
    groups = max(1, data.shape[1] // max(1, channels)) if len(data.shape) > 1 else 1
    window = weight.numel // max(1, weight.shape[0] * channels)
    return Gemm(groups, out.numel // out.shape[1], max(1, weight.shape[0] // groups), _up(channels, 16) * window)


def _attention(inputs: Sequence[Operand], layout: str) -> tuple[Gemm, ...]:
    """One of the products of attention. Masks that skip blocks are not counted off."""
    if len(inputs) < 2 or not inputs[0].shape or not inputs[1].shape:
        return ()
    query, key = inputs[0], inputs[1]
    layout = layout or {4: "BNSD", 3: "BSH"}.get(len(query.shape), "")
    sizes, others = dict(zip(layout, query.shape, strict=False)), dict(zip(layout, key.shape, strict=False))
    if "T" in sizes:  # sequences packed together: taken as one, since the launch holds their lengths as values
        return (Gemm(sizes.get("N", 1), sizes["T"], others.get("T", sizes["T"]), sizes.get("D", 64)),)
    length, keys = sizes.get("S", 1), others.get("S", 1)
    width = sizes.get("D", 0) or min(128, sizes.get("H", 64))
    heads = sizes.get("N", 0) or max(1, sizes.get("H", width) // width)
    return (Gemm(sizes.get("B", 1) * heads, length, keys, width),)


def _up(value: int, to: int) -> int:
    return -(-value // to) * to
