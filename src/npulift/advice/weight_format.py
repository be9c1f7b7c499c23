"""ADV006 weight-format: a weight is converted to its private format at each call.

A matrix product that wants its weight in FRACTAL_NZ (or a convolution in FRACTAL_Z) converts it before each call when it is stored in ND. The weight does not
change between calls in inference, so once is enough.
Threshold: conversions from a plain format into FRACTAL_NZ or FRACTAL_Z take over 2 % of kernel time (a warning from 5 %).
Saving: these conversions, all of them in inference; in training the weight changes once a step.
Change: torch_npu.npu_format_cast(weight, 29) (29 is FRACTAL_NZ) once after loading.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.profilers.layouts import neighbours, weight
from npulift.profilers.view import View, found, percent, us

CODE = "ADV006"
NAME = "weight-format"


def find(view: View) -> Iterator[Finding]:
    """Conversions into FRACTAL_NZ or FRACTAL_Z, and what comes after them."""
    conversions = view.kernels.filter(pl.col("type") == "TransData")
    rows = conversions.filter(weight())
    if rows.is_empty():
        return
    total, all_ns = int(rows["duration_ns"].sum()), int(conversions["duration_ns"].sum())
    if total < 0.02 * view.kernel_ns:
        return
    consumers = neighbours(view.kernels, weight(), after_only=True)
    shapes = rows.group_by("input_shapes").agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    share = all_ns / view.kernel_ns
    target = rows["output_formats"].drop_nulls()
    yield found(
        view, (CODE, NAME), Severity.WARNING if total >= 0.05 * view.kernel_ns else Severity.INFO,
        ngettext("{n} TransData converts a weight from {source} to {format} ({shape}) before {near}: {part} us at each call, although a weight stays the same. "
                 "All TransData together take {share} % of the device's time ({all} of {whole} us).",
                 "{n} TransData convert weights from {source} to {format} ({shape}) before {near}: {part} us at each call, although a weight stays the same. "
                 "All TransData together take {share} % of the device's time ({all} of {whole} us).", rows.height).format(
            n=rows.height, source=rows["input_formats"][0], format=target[0] if len(target) else "FRACTAL_NZ", shape=shapes["input_shapes"][0], near=", ".join(consumers) or "-", part=us(total),
            share=percent(share), all=us(all_ns), whole=us(view.kernel_ns)),
        _("Cast the weight once after loading: weight.data = torch_npu.npu_format_cast(weight.data, 29) (29 is FRACTAL_NZ), with torch.npu.config.allow_internal_format = True."),
        saved=view.saved_ns((pl.col("type") == "TransData") & weight()), share=total / view.kernel_ns,
        details={"kind": "weight", "transdata_us": round(all_ns / 1e3, 3), "kernel_us": round(view.kernel_ns / 1e3, 3), "transdata_share": round(share, 6),
                 "weight_us": round(total / 1e3, 3), "before": consumers, "shapes": shapes.head(10).to_dicts(), "kernels": rows["name"].head(20).to_list()},
    )
