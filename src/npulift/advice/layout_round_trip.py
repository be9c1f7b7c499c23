"""ADV005 layout-round-trip: activations are converted between plain and private formats and back.

Convolutions on the cube unit like NC1HWC0 (5HD); most other operators take NCHW or ND. Where they alternate, a TransData stands at each border.
Threshold: conversions of activations take over 2 % of kernel time (a warning from 5 %): single ones at a network's ends are normal and below that.
Saving: the conversions, where both neighbours can take the plain format.
Change: torch.npu.config.allow_internal_format = False, or put the operators that want the plain format together.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.profilers.layouts import activation, neighbours
from npulift.profilers.view import View, found, percent, us

CODE = "ADV005"
NAME = "layout-round-trip"


def find(view: View) -> Iterator[Finding]:
    """Conversions whose format on one side is a convolution's (5HD and kin)."""
    conversions = view.kernels.filter(pl.col("type") == "TransData")
    if conversions.is_empty():
        return
    here = (pl.col("type") == "TransData") & activation()
    rows = conversions.filter(activation())
    total, all_ns = int(rows["duration_ns"].sum()), int(conversions["duration_ns"].sum())
    if rows.is_empty() or total < 0.02 * view.kernel_ns:
        return
    pairs = rows.group_by(source=pl.col("input_formats"), destination=pl.col("output_formats")).agg(count=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    near = neighbours(view.kernels, activation())
    share = all_ns / view.kernel_ns
    yield found(
        view, (CODE, NAME), Severity.WARNING if total >= 0.05 * view.kernel_ns else Severity.INFO,
        _("TransData takes {share} % of the device's time ({all} of {whole} us). Of that, {part} us convert activations ({pairs}) around {near}: "
          "operators with a private format alternate with operators that want the plain one.").format(
            share=percent(share), all=us(all_ns), whole=us(view.kernel_ns), part=us(total),
            pairs=", ".join(f"{p['source']}->{p['destination']}" for p in pairs.head(4).iter_rows(named=True) if p['source']) or _("formats unknown"), near=", ".join(near) or "-"),
        _("Set torch.npu.config.allow_internal_format = False for a network with few convolutions, so that they take the plain format; "
          "else move the operators that want the plain format (permute, reshape, slice) out from between the convolutions."),
        saved=view.saved_ns(here), share=total / view.kernel_ns,
        details={"kind": "activation", "transdata_us": round(all_ns / 1e3, 3), "kernel_us": round(view.kernel_ns / 1e3, 3), "transdata_share": round(share, 6),
                 "activation_us": round(total / 1e3, 3), "pairs": pairs.to_dicts(), "around": near, "kernels": rows["name"].head(20).to_list()},
    )
