"""Profile: one table of events, whatever profiler wrote it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from npulift.errors import NpuliftError
from npulift.measured import Kind
from npulift.messages import _

# One row an event. Times are nanoseconds since an origin that is the same within one rank; -1 or null where a source has none.
SCHEMA: dict[str, Any] = {
    "name": pl.Utf8,  # kernel, operator or range name as the source has it
    "type": pl.Utf8,  # operator type, e.g. 'MatMulV2', 'aten::linear', 'Convolution'
    "category": pl.Utf8,  # kernel | operator | copy | communication | sync | host | api | memory | step | module | free | counter | overlap | gc
    "device": pl.Utf8,  # what ran it: AI_CORE, AI_VECTOR_CORE, MIX_AIC, AI_CPU, HCCL, CPU, NPU, ...
    "start_ns": pl.Int64,  # null where the source gives durations only
    "duration_ns": pl.Int64,
    "wait_ns": pl.Int64,  # time between the end of the event before it on its queue and its own start, as the source reports it
    "stream": pl.Int64,
    "step": pl.Int64,
    "rank": pl.Int64,
    "input_shapes": pl.Utf8,  # one operand after another, ';' between operands, ',' between sizes
    "input_dtypes": pl.Utf8,  # ';' between operands, lower case torch names where known ('float16'), else as the source has it
    "input_formats": pl.Utf8,  # ';' between operands: ND, NCHW, NC1HWC0, FRACTAL_NZ, ...
    "output_shapes": pl.Utf8,
    "output_dtypes": pl.Utf8,
    "output_formats": pl.Utf8,
    "flops": pl.Int64,
    "bytes": pl.Int64,  # read and written, or carried by a copy or a collective
    "cycles": pl.Int64,  # device cycles, all cores
    "cores": pl.Int64,  # cores or blocks used
    "correlation": pl.Int64,  # joins a launch with its kernel
    "parent": pl.Int64,  # row number of the enclosing event, null at the top
    "module": pl.Utf8,  # dotted module path
    "file": pl.Utf8,  # the user's line that caused it
    "line": pl.Int64,
    "task": pl.Int64,  # number of the task on its stream
    "state": pl.Utf8,  # 'static' or 'dynamic' kernel, as the source has it
    "launch_ns": pl.Int64,  # start of the host operator that launched it
    "cube_ratio": pl.Float64,  # share of its time (0 to 1) in which the matrix unit was busy
    "vector_ratio": pl.Float64,  # the same for the vector unit
    "transfer_ratio": pl.Float64,  # the same for the busiest unit that moves data
    "stack": pl.Utf8,  # call stack, innermost first, as the source has it
    "metrics": pl.Utf8,  # further figures by name as a JSON object, '' when none
}


@dataclass(frozen=True)
class Profile:
    """Where the time went: events as a table with the columns of SCHEMA, and what they are.

    kind: how the times were come by (one kind for the whole profile).   source: which tool or file it was read from.
    meta: facts about the run (chip, versions, world size, schedule), JSON types.
    notes: what the reader had to leave out or mend, one sentence each, in the user's language.
    """

    events: pl.DataFrame
    kind: Kind
    source: str
    meta: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def from_rows(cls, rows: list[dict[str, Any]], kind: Kind, source: str, **more: Any) -> Profile:
        """A profile from dictionaries with some of SCHEMA's keys; the rest is null. Raises KeyError for an unknown key."""
        for row in rows[:1]:
            unknown = set(row) - set(SCHEMA)
            if unknown:
                raise KeyError(f"not in the schema of a profile: {sorted(unknown)}")
        return cls(pl.DataFrame(rows, schema=SCHEMA) if rows else pl.DataFrame(schema=SCHEMA), kind, source, **more)

    @classmethod
    def from_frame(cls, frame: pl.DataFrame, kind: Kind, source: str, **more: Any) -> Profile:
        """A profile from a table that has some of SCHEMA's columns; the rest is null, types are cast."""
        columns = [
            frame[name].cast(dtype, strict=False) if name in frame.columns else pl.lit(None, dtype=dtype).alias(name)
            for name, dtype in SCHEMA.items()
        ]
        return cls(frame.select(columns), kind, source, **more)

    def write(self, path: Path | str) -> None:
        """Write Parquet, with kind, source, meta and notes in the file's own metadata."""
        header = {"kind": self.kind.value, "source": self.source, "meta": self.meta, "notes": list(self.notes)}
        self.events.write_parquet(path, metadata={"npulift.profile": json.dumps(header)})

    @classmethod
    def read(cls, path: Path | str) -> Profile:
        """Read what `write` wrote. Raises NpuliftError for a file that is not such a profile."""
        try:
            header = json.loads(pl.read_parquet_metadata(path)["npulift.profile"])
            events = pl.read_parquet(path)
        except (OSError, KeyError, ValueError, pl.exceptions.PolarsError) as error:
            raise NpuliftError(_("{path} is not a profile written by npulift ({error}).").format(path=path, error=error)) from error
        return cls.from_frame(events, Kind(header["kind"]), header["source"], meta=header["meta"], notes=tuple(header["notes"]))

    @property
    def total_ns(self) -> int:
        """Sum of all durations, ns."""
        return int(self.events["duration_ns"].sum() or 0)
