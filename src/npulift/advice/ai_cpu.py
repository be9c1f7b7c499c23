"""ADV001 ai-cpu: kernels run on the AI CPU instead of the AI Core.

The AI CPU is a few small ARM cores: a kernel there is ten to a thousand times slower than on the AI Core, and the queue waits for it. Kernels
land there because of a dtype (complex128, float64, int64, uint64), because the size of the output depends on data, or because no AI Core kernel exists.
Threshold: a warning from 1 % of the device's busy time (less than that no change is worth its risk), information below that, since the count can grow.
Saving: all of it, less the time of the same work on the AI Core, which is small beside it.
Change: by cause, and named in the fix: complex64 or real arithmetic, float32, int32, fixed sizes, or another operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl

from npulift.findings import Finding, Location, Severity
from npulift.messages import N_, _, ngettext
from npulift.profilers.view import View, found, percent, us

CODE = "ADV001"
NAME = "ai-cpu"

_CAUSES = (  # (key, test on a dtype or type)
    ("complex128", lambda dtypes, type_: "complex128" in dtypes),
    ("complex64", lambda dtypes, type_: "complex64" in dtypes),
    ("float64", lambda dtypes, type_: "float64" in dtypes),
    ("data-dependent", lambda dtypes, type_: type_.rstrip("V234D") in ("NonZero", "Unique", "UniqueWithCounts", "MaskedSelect", "Where", "UniqueConsecutive")),
    ("indexing", lambda dtypes, type_: type_.startswith(("Index", "Gather", "Scatter", "Embedding", "Take", "Put", "Select"))),
    ("uint64", lambda dtypes, type_: "uint64" in dtypes),
    ("int64", lambda dtypes, type_: "int64" in dtypes),
    ("small-integer", lambda dtypes, type_: bool({"int8", "uint8", "int16", "uint16", "uint32", "bool"} & dtypes)),
    ("other", lambda dtypes, type_: True),
)


def find(view: View) -> Iterator[Finding]:
    """One finding a cause, each with the whole AI CPU share and its own part."""
    on_ai_cpu = pl.col("device").fill_null("").str.contains(r"(?i)^ai_?cpu$")
    rows = view.kernels.filter(on_ai_cpu)
    sums = view.by_type.filter(on_ai_cpu)
    if sums.is_empty():
        yield from _from_tables(view)
        return
    total = int(sums["total_ns"].sum())
    share = total / view.kernel_ns if view.kernel_ns else 0.0
    groups = _groups(rows if rows.height else sums)
    for cause, members in groups.items():
        part = sum(m["ns"] for m in members)
        saved = view.saved_ns(on_ai_cpu & pl.col("type").is_in([m["type"] for m in members])) if rows.height and len(groups) > 1 else \
            view.saved_ns(on_ai_cpu) if rows.height else part
        what = ", ".join(dict.fromkeys(f"{m['type']} ({m['dtypes']})" if m["dtypes"] else m["type"] for m in members[:4]))
        calls = sum(m["count"] for m in members)
        yield found(
            view, (CODE, NAME), Severity.WARNING if share >= 0.01 else Severity.INFO,
            ngettext("AI CPU kernels take {share} % of the device's time ({total} of {whole} us). {calls} call of {what} accounts for {part} us: {why}",
                     "AI CPU kernels take {share} % of the device's time ({total} of {whole} us). {calls} calls of {what} account for {part} us: {why}", calls).format(
                share=percent(share), total=us(total), whole=us(view.kernel_ns), calls=calls, what=what, part=us(part), why=_(_WHY[cause])),
            _(_FIX[cause]), saved=saved, share=min(1.0, part / view.kernel_ns),
            details={"cause": cause, "ai_cpu_us": round(total / 1e3, 3), "kernel_us": round(view.kernel_ns / 1e3, 3), "ai_cpu_share": round(share, 6),
                     "share_with_communication": round(total / view.device_ns, 6), "operators": members[:20], "calls": calls, "lines": _lines(view, members)},
            location=_location(view, members),
        )


def _groups(rows: pl.DataFrame) -> dict[str, list[dict[str, Any]]]:
    if "input_dtypes" in rows.columns:
        table = rows.group_by("type", "input_dtypes", "output_dtypes", "input_shapes").agg(ns=pl.col("duration_ns").sum(), count=pl.len()).sort("ns", descending=True)
    else:
        table = rows.select("type", "count", ns="total_ns", input_dtypes=pl.lit(""), output_dtypes=pl.lit(""), input_shapes=pl.lit(""))
    groups: dict[str, list[dict[str, Any]]] = {}
    for r in table.iter_rows(named=True):
        dtypes = {d for d in f"{r['input_dtypes'] or ''};{r['output_dtypes'] or ''}".split(";") if d}
        cause = next(key for key, test in _CAUSES if test(dtypes, r["type"] or ""))
        groups.setdefault(cause, []).append({
            "type": r["type"], "dtypes": ", ".join("DT_" + d.upper() if d.startswith("complex") else d for d in sorted(dtypes)), "shapes": r["input_shapes"] or "",
            "count": r["count"], "ns": r["ns"], "us": round(r["ns"] / 1e3, 3)})
    return dict(sorted(groups.items(), key=lambda g: -sum(m["ns"] for m in g[1])))  # type: ignore[misc]


def _from_tables(view: View) -> Iterator[Finding]:
    """Only AI CPU's own table is there (data_preprocess.csv): say what is in it."""
    table = view.table("ai_cpu")
    if table.is_empty() or view.kernels.height:
        return
    nodes = table.group_by("node").agg(us=pl.col("total_us").sum(), count=pl.len()).sort("us", descending=True)
    total = float(nodes["us"].sum())
    yield found(
        view, (CODE, NAME), Severity.INFO,
        _("{n} AI CPU kernels take {total} us in all, most of it {what}; their share cannot be told without kernel_details.csv or op_statistic.csv.").format(
            n=table.height, total=f"{total:.1f}", what=", ".join(nodes["node"].head(4))),
        _(_FIX["other"]), details={"operators": nodes.to_dicts()},
    )


def _lines(view: View, members: list[dict[str, Any]]) -> list[str]:
    """Call stacks of framework operators whose device time is not AI Core time."""
    table = view.table("framework")
    if table.is_empty():
        return []
    guilty = table.filter((pl.col("device_self_us") > 0) & (pl.col("device_self_aicore_us").fill_null(0) == 0)).sort("device_self_us", descending=True)
    return [f"{r['name']}: {(r['stack'] or '').splitlines()[0] if r['stack'] else '-'}" for r in guilty.head(5).iter_rows(named=True)]


def _location(view: View, members: list[dict[str, Any]]) -> Location | None:
    """The user's line of the most costly one, where the profiler kept call stacks."""
    table = view.table("framework")
    if table.is_empty():
        return None
    guilty = table.filter((pl.col("device_self_us") > 0) & (pl.col("device_self_aicore_us").fill_null(0) == 0) & pl.col("stack").is_not_null())
    for stack in guilty.sort("device_self_us", descending=True)["stack"].head(1):
        match = re.search(r"([^\s;(]+\.py)\((\d+)\)", stack)
        if match:
            return Location(match.group(1), int(match.group(2)))
    return None


_WHY = {
    "complex128": N_("complex128 has no AI Core kernel. It usually comes from float64 angles (torch.polar, torch.view_as_complex of doubles), as in rotary embeddings."),
    "complex64": N_("this operator has no AI Core kernel for complex numbers."),
    "float64": N_("float64 has no AI Core kernel for this operator."),
    "data-dependent": N_("the size of its output depends on data."),
    "uint64": N_("uint64 has no AI Core kernel for this operator; casts to it come from seeds and offsets of random numbers (dropout), or from index arithmetic."),
    "indexing": N_("this form of indexing has no AI Core kernel: boolean masks, several index tensors at once, negative strides, or a dtype that the AI Core does not index."),
    "int64": N_("int64 has no AI Core kernel for this operator."),
    "small-integer": N_("this integer or bool dtype has no AI Core kernel for this operator."),
    "other": N_("there is no AI Core kernel for this operator with these operands."),
}
_FIX = {
    "complex128": N_("Use complex64, or real arithmetic with cos and sin: make the angles float32 (freqs.float(), torch.polar in float32), so that no complex128 arises."),
    "complex64": N_("Write it with real numbers: keep the real and the imaginary part as two tensors (for a rotary embedding cos and sin, or torch_npu.npu_rotary_mul)."),
    "float64": N_("Compute in float32: convert once where the tensor is made (NumPy arrays and Python floats give float64)."),
    "data-dependent": N_("Use fixed sizes: torch.where or a mask instead of nonzero, unique and masked_select; where it must be, do it once on the host."),
    "uint64": N_("Make random masks with torch_npu's own dropout (it uses the DSA unit), keep seeds and indices in int64 or int32 on the device, and cast them once outside the loop."),
    "indexing": N_("Index along one axis with torch.index_select, torch.gather or F.embedding (int64 or int32 indices); replace boolean masks by torch.where or multiplication; cast bool and int8 data first."),
    "int64": N_("Use int32 for it, or float32 where the values are below 2^24; indices of embedding and gather may stay int64."),
    "small-integer": N_("Cast to float16, float32 or int32 before the operator and back after it, where the values allow."),
    "other": N_("Replace it by operators that the AI Core has, or move it out of the step; npulift check --target ascend-... names the supported forms."),
}
