"""The time of one kernel: launch, plus the slowest of cube, vector and memory.

    t = launch + step * log2(blocks) + max(cube, vector, memory)

cube: multiply-adds over cores * 8192 FLOP * clock (16x16x16 a cycle), after padding to 16 and after the last, partly filled wave of tiles.
vector: elements * passes over cores * 256 bytes * clock.   memory: bytes by where they are: in the L2 cache that all cores share, or in HBM, where
reading and writing at once is slower than either alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from npulift.ascend.chips import Chip
from npulift.ascend.cost.prediction import Prediction
from npulift.ascend.cost.tables import KernelType, calibration, kernel_type, links
from npulift.ascend.cost.work import Gemm, Work, work
from npulift.ascend.records import Operand
from npulift.messages import _

_CUBE_RATE = {"int8": 2.0, "uint8": 2.0, "float16": 1.0, "bfloat16": 1.0, "float32": 0.25}  # against float16, 910B (float32 without HF32)
_TILES = ((128, 256), (256, 128), (128, 128), (64, 256), (256, 64), (64, 64), (32, 32), (16, 16))  # of the output, as one core computes it


def predict(
    kernel: str, inputs: Sequence[Operand], outputs: Sequence[Operand], chip: Chip, *, layout: str = "", warm: Sequence[float] | None = None,
    warm_out: bool | None = None, constants: Mapping[str, Any] | None = None,
) -> Prediction:
    """The time of one launch of `kernel` ('aclnnAddmm', 'aclop:MatMul', 'MatMul').

    warm: for each input the share of it that is in the L2 cache; by default all of it when everything fits there and the kernel is no optimizer.
    warm_out: the memory that is written is in the L2 cache.   constants: others than those of calibration.json (for the fit).
    """
    kind = kernel_type(kernel)
    table = constants if constants is not None else calibration()
    job = work(kind, inputs, outputs, chip.vector_cores, layout)
    fitted = constants_of(kind, table)
    if job.on_ai_cpu:
        group = table["groups"]["ai_cpu"]
        ns = group["launch_ns"] + job.vector_elements * group["element_ns"]
        return _with_bar(ns, kind, "AI_CPU", "host", "ai_cpu", table, chip)
    launch = fitted["launch_ns"] + fitted["step_ns"] * math.log2(job.blocks) if not job.gemms else fitted["launch_ns"]
    parts = {
        "cube": sum(cube_seconds(g, chip, job.cube_dtype) for g in job.gemms) * 1e9 * fitted["cube_factor"],
        "vector": job.vector_elements * job.passes * job.vector_bytes / (chip.vector_cores * 256 * chip.clock) * 1e9 * fitted["vector_factor"],
        "memory": memory_seconds(job, chip, table["shared"], kind, warm, warm_out) * 1e9 * fitted["memory_factor"],
    }
    if kind.name == "DSAStatelessGenBitMask" or kind.group == "random":
        parts["vector"] = sum(job.written) * fitted["byte_ns"]
    bound = max(parts, key=lambda name: parts[name])
    ns = launch + parts[bound]
    return _with_bar(ns, kind, kind.device, bound if parts[bound] > launch else "launch", kind.group, table, chip)


def constants_of(kind: KernelType, table: Mapping[str, Any]) -> dict[str, float]:
    """Constants of a kernel type: its group's, with its own factors where it was in the fit."""
    group = dict(table["groups"].get(kind.group) or table["groups"]["elementwise"])
    own = table["types"].get(kind.name, {})
    for name in ("launch_ns", "step_ns"):
        group[name] = group[name] * own.get("launch", 1.0)
    for name in ("cube_factor", "vector_factor", "memory_factor"):
        group[name] = group.get(name, 1.0) * own.get("throughput", 1.0)
    group.setdefault("byte_ns", 0.0)
    return group


def cube_seconds(gemm: Gemm, chip: Chip, dtype: str) -> float:
    """Seconds of a product at the full rate of the cube, over the tiles that waste least. Sizes are padded to 16 first."""
    if not gemm.flops:
        return 0.0
    rate = _CUBE_RATE.get(dtype, 1.0) if chip.bfloat16 or dtype != "float32" else 1.0  # older cubes have float16 only and compute float32 in it
    k = math.ceil(gemm.k / 16) * 16
    best = math.inf
    for rows, columns in _TILES:
        waves = math.ceil(gemm.batch * math.ceil(gemm.m / rows) * math.ceil(gemm.n / columns) / chip.cube_cores)
        load = 1 + 16 * (1 / rows + 1 / columns)  # a small tile reads its operands more often: 16 elements of load hide behind one of a 16-wide product
        best = min(best, waves * rows * columns * load / (1 + 16 * (1 / 128 + 1 / 256)))
    return best * k * 2 / (8192 * chip.clock * rate)


def memory_seconds(
    job: Work, chip: Chip, shared: Mapping[str, float], kind: KernelType, warm: Sequence[float] | None, warm_out: bool | None,
) -> float:
    """Seconds to move the operands, each from where it is."""
    cache = links()[chip.name].l2_bytes if chip.name in links() else 32 << 20
    total = sum(job.read) + sum(job.written)
    fits = total <= cache and kind.group != "optimizer"
    shares = list(warm) if warm is not None else [1.0 if fits else 0.0] * len(job.read)
    shares += [0.0] * (len(job.read) - len(shares))
    hot_out = (sum(job.written) <= cache and kind.group != "optimizer") if warm_out is None else warm_out
    hot = sum(b * s for b, s in zip(job.read, shares, strict=False))
    cold = sum(job.read) - hot
    cold_out = 0 if hot_out else sum(job.written)
    hot_out_bytes = sum(job.written) - cold_out
    bandwidth = chip.bandwidth
    l2 = chip.vector_cores * chip.clock * shared["l2_bytes_per_cycle"]
    slow = max(bandwidth, l2)
    seconds = cold / (bandwidth * shared["read"]) + cold_out / (bandwidth * shared["write"])
    if cold and cold_out:
        seconds += (shared["mixed"] - 1) * 2 * min(cold / (bandwidth * shared["read"]), cold_out / (bandwidth * shared["write"]))
    return seconds + hot / slow + hot_out_bytes / (slow * shared["l2_write"])


def _with_bar(ns: float, kind: KernelType, device: str, bound: str, group: str, table: Mapping[str, Any], chip: Chip) -> Prediction:
    spread = table["spread"]
    known = chip.name in table["chips"]
    if kind.name in spread["types"] and device == kind.device:
        low, high = spread["types"][kind.name]
        basis = _("fitted on {count} kernels of this type, {source}").format(count=table["counts"].get(kind.name, 0), source=table["source"])
        sure = True
    elif group in spread["groups"]:
        low, high = spread["groups"][group]
        basis = _("this kernel type was not in the capture; constants of kernels like it ({group}), {source}").format(group=group, source=table["source"])
        sure = False
    else:
        low, high = spread["unknown"]
        basis = _("no kernel like this was in the capture ({source}); published peaks of the chip only").format(source=table["source"])
        sure = False
    if not known:
        low, high = low * spread["other_chip"][0], high * spread["other_chip"][1]
        basis = _("there is no calibration data for {chip}: scaled from {source} by published peaks").format(chip=chip.name, source=table["source"])
    return Prediction(ns, ns * low, ns * high, kind.name, device, bound, sure and known, basis)
