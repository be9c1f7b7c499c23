"""kernel_details*.csv (torch_npu), op_summary*.csv (msprof) and task_time*.csv: one row a kernel or a collective.

Header variants since 2023 are matched by name: a missing column is null, renamed ones (Block Dim and Block Num) are the same.
"""

from __future__ import annotations

import polars as pl

from npulift.messages import _, ngettext
from npulift.profilers import csv_text
from npulift.profilers.ascend_names import category, derive_types, formats, normal_dtypes, shapes
from npulift.profilers.evidence import Part
from npulift.profilers.head import Head

NAME = "kernel table"

_START = {"starttime(us)": 1000, "taskstarttime(us)": 1000, "taskstart(us)": 1000, "starttime(ns)": 1, "taskstarttime": 1, "taskstarttime(ns)": 1}
_DURATION = {"duration(us)": 1000, "taskduration(us)": 1000, "tasktime(us)": 1000, "duration(ns)": 1, "taskduration(ns)": 1, "tasktime(ns)": 1,
             "duration(ms)": 1_000_000}
_WAIT = {"waittime(us)": 1000, "taskwaittime(us)": 1000, "waittime(ns)": 1}
_NAMES = ("name", "opname", "kernelname")
_WANTED = frozenset({
    *_START, *_DURATION, *_WAIT, *_NAMES, "stepid", "deviceid", "taskid", "streamid", "type", "optype", "opstate", "acceleratorcore", "tasktype",
    "kerneltype", "blockdim", "blocknum", "inputshapes", "inputdatatypes", "inputformats", "outputshapes", "outputdatatypes", "outputformats",
    "aictotalcycles", "aivtotalcycles", "totalcycles", "aicmacratio", "macratio", "aicmacfp16ratio", "macfp16ratio", "aicmte2ratio", "mte2ratio",
    "aivvecratio", "vecratio", "aivmte2ratio", "aivmte3ratio", "cubeutilization(%)", "aiccubefops", "aivvectorfops", "aicvectorfops", "rankid", "aicoretime(us)", "aivtime(us)",
})


def accepts(head: Head) -> bool:
    """A name, a duration and a start or a core: what all variants have."""
    return head.any(*_NAMES) and head.any(*_DURATION) and (head.any("acceleratorcore", "tasktype", "kerneltype") or head.any(*_START)) \
        and not head.any("processid", "layername")


def read(head: Head) -> Part:
    """Read the table. Rows without a duration are left out and counted."""
    text = csv_text.read(head.path, _WANTED)
    if not len(text):
        return Part(NAME, notes=(_("{file} holds no rows.").format(file=head.path.name),), truncated=text.truncated)
    cycles = [text.integer(n) for n in ("aictotalcycles", "aivtotalcycles", "totalcycles")]
    frame = text.frame.select(
        name=text.text(*_NAMES), type=text.text("type", "optype"), device=text.text("acceleratorcore", "tasktype", "kerneltype"),
        start_ns=text.nanoseconds(_START), duration_ns=text.nanoseconds(_DURATION), wait_ns=text.nanoseconds(_WAIT),
        stream=text.integer("streamid"), step=text.integer("stepid"), rank=text.integer("rankid"), task=text.integer("taskid"),
        state=text.text("opstate"), input_shapes=shapes(text.text("inputshapes")), input_dtypes=text.text("inputdatatypes"),
        input_formats=text.text("inputformats"), output_shapes=shapes(text.text("outputshapes")), output_dtypes=text.text("outputdatatypes"),
        output_formats=text.text("outputformats"), cores=text.integer("blockdim", "blocknum"), cycles=pl.sum_horizontal(cycles),
        cube_ratio=pl.coalesce(text.number("cubeutilization(%)") / 100, text.number("aicmacratio", "macratio", "aicmacfp16ratio", "macfp16ratio")),
        vector_ratio=text.number("aivvecratio", "vecratio"),
        transfer_ratio=pl.max_horizontal(text.number("aicmte2ratio", "mte2ratio"), text.number("aivmte2ratio"), text.number("aivmte3ratio")),
    )
    rows = frame.height
    frame = frame.filter(pl.col("duration_ns").is_not_null() & (pl.col("duration_ns") >= 0) & pl.col("name").is_not_null())
    notes = []
    if rows > frame.height:
        n = rows - frame.height
        notes.append(ngettext("{n} row without a name or a duration was left out.", "{n} rows without a name or a duration were left out.", n).format(n=n))
    frame = derive_types(frame)
    for column in ("input_dtypes", "output_dtypes"):
        frame = normal_dtypes(frame, column)
    for column in ("input_formats", "output_formats"):
        frame = formats(frame, column)
    frame = frame.with_columns(category=category(), cycles=pl.when(pl.col("cycles") > 0).then(pl.col("cycles")))
    meta = {"level0": not text.has("inputshapes")} if text.first("acceleratorcore", "tasktype") else {}
    if head.any("taskid") and "op_summary" in head.name:
        meta["op_summary"] = True
    return Part(NAME, frame, meta=meta, notes=tuple(notes), truncated=text.truncated, records=frame.height)
