"""ADV010 fusible-elementwise: chains of element-wise kernels that one kernel could do.

Each element-wise kernel reads and writes its whole operand; in one kernel the intermediate results never leave the chip.
Threshold: the same chain of three or more element-wise kernels of one size repeats at least 4 times, and all of them take over 5 % of kernel time.
Saving: all but one pass over the data, (n - 1) / n of their time.
Change: torch.compile with torchair, or the fused operator where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.view import View, found, percent, us

CODE = "ADV010"
NAME = "fusible-elementwise"

_ELEMENTWISE = ("Add", "Sub", "Mul", "Muls", "Adds", "RealDiv", "Div", "Neg", "Exp", "Log", "Sqrt", "Rsqrt", "Square", "Pow", "Sigmoid", "Tanh", "Relu", "Gelu", "FastGelu", "Silu",
                "Swish", "Cast", "Maximum", "Minimum", "Select", "SelectV2", "ClipByValue", "ClipByValueV2", "Abs", "Reciprocal", "Greater", "Less", "Equal", "LogicalAnd", "LogicalNot", "Erf", "Axpy", "Addcmul")


def find(view: View) -> Iterator[Finding]:
    """Runs of element-wise kernels next to each other on one stream, with the same output shape."""
    kernels = view.kernels.filter(pl.col("duration_ns") > 2_000)  # tiny ones are another rule's
    if kernels.height < 12:
        return
    frame = kernels.select("type", "duration_ns", "stream", "output_shapes", e=pl.col("type").str.replace(r"[dD]$", "").is_in(_ELEMENTWISE) & pl.col("output_shapes").is_not_null())
    same = frame["e"] & frame["e"].shift(1).fill_null(False) & frame["output_shapes"].eq_missing(frame["output_shapes"].shift(1)) & frame["stream"].eq_missing(frame["stream"].shift(1))
    frame = frame.with_columns(run=(~same).cum_sum()).filter(pl.col("e"))
    runs = frame.group_by("run", maintain_order=True).agg(chain=pl.col("type").str.join(", "), n=pl.len(), ns=pl.col("duration_ns").sum(), shape=pl.col("output_shapes").first()).filter(pl.col("n") >= 3)
    if runs.is_empty():
        return
    chains = runs.group_by("chain").agg(times=pl.len(), ns=pl.col("ns").sum(), n=pl.col("n").first(), shape=pl.col("shape").first()).filter(pl.col("times") >= 4).sort("ns", descending=True)
    total = int(chains["ns"].sum() or 0)
    if not total or total < 0.05 * view.kernel_ns:
        return
    saved = float((chains["ns"] * (chains["n"] - 1) / chains["n"]).sum())
    top = chains.row(0, named=True)
    yield found(
        view, (CODE, NAME), Severity.WARNING,
        _("The chain {chain} on [{shape}] runs {times} times, a kernel each: such chains take {share} % of the device's time ({part} us).").format(
            chain=top["chain"], shape=top["shape"], times=top["times"], share=percent(total / view.kernel_ns), part=us(total)),
        _("Let torch.compile with torchair fuse it, or use the fused operator (npu_swiglu, npu_rms_norm, npu_rotary_mul, npu_scaled_masked_softmax)."),
        saved=saved, share=saved / view.kernel_ns, details={"chains": chains.head(10).to_dicts()},
    )
