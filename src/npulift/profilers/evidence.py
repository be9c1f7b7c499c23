"""Evidence: all that was read from a run's files. Events as a Profile, and what profilers only give as sums or samples, as tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from npulift.measured import Kind
from npulift.profile import Profile

_F, _I, _S = pl.Float64, pl.Int64, pl.Utf8

# Tables beside the events. Units stand in the names (us = 1e-6 s, mb = 2**20 bytes as the vendor writes MB, gbs = 1e9 bytes/s).
TABLES: dict[str, dict[str, Any]] = {
    # one row a step: how the vendor splits it. `step` is null for what lies outside any step.
    "steps": {"rank": _I, "device": _I, "step": _I, "computing_us": _F, "exposed_us": _F, "overlapped_us": _F, "communication_us": _F,
              "free_us": _F, "stage_us": _F, "bubble_us": _F, "preparing_us": _F},
    # plain step times, by whatever script wrote them
    "step_times": {"rank": _I, "step": _I, "seconds": _F, "chip": _S, "compiled_files": _I, "data_seconds": _F},
    # sums by operator type
    "operators": {"rank": _I, "type": _S, "device": _S, "count": _I, "total_us": _F, "min_us": _F, "avg_us": _F, "max_us": _F},
    # host-side calls by level (acl, runtime, node, ...)
    "api": {"rank": _I, "level": _S, "name": _S, "total_us": _F, "count": _I, "avg_us": _F, "min_us": _F, "max_us": _F},
    # framework operators with their lines; only the self columns add up
    "framework": {"rank": _I, "name": _S, "input_shapes": _S, "stack": _S, "host_self_us": _F, "host_total_us": _F, "device_self_us": _F,
                  "device_total_us": _F, "device_self_aicore_us": _F},
    # memory over time: allocated by tensors, reserved by the allocator
    "memory": {"rank": _I, "component": _S, "time_us": _F, "allocated_mb": _F, "reserved_mb": _F, "active_mb": _F, "device": _S},
    "allocations": {"rank": _I, "name": _S, "size_mb": _F, "allocated_at_us": _F, "released_at_us": _F, "duration_us": _F, "total_allocated_mb": _F,
                    "total_reserved_mb": _F},
    # collectives as seen by one rank
    "collectives": {"rank": _I, "step": _I, "name": _S, "group": _S, "p2p": pl.Boolean, "start_us": _F, "elapse_ms": _F, "transit_ms": _F, "wait_ms": _F,
                    "synchronization_ms": _F, "idle_ms": _F},
    "transports": {"rank": _I, "step": _I, "name": _S, "group": _S, "transport": _S, "size_mb": _F, "time_ms": _F, "bandwidth_gbs": _F, "large_ratio": _F},
    "packets": {"rank": _I, "step": _I, "name": _S, "transport": _S, "packet_mb": _F, "count": _I, "time_ms": _F},
    "links": {"rank": _I, "step": _I, "name": _S, "group": _S, "source": _I, "destination": _I, "transport": _S, "size_mb": _F, "time_ms": _F,
              "bandwidth_gbs": _F},
    "cache": {"rank": _I, "name": _S, "hit_ratio": _F, "victim_ratio": _F},
    # AI CPU kernels, whatever the unit of the file was
    "ai_cpu": {"rank": _I, "node": _S, "compute_us": _F, "copy_us": _F, "task_us": _F, "dispatch_us": _F, "total_us": _F},
    # samples over time: clock, power, temperature, utilisation, disk, network
    "samples": {"rank": _I, "device": _I, "time_us": _F, "name": _S, "value": _F, "unit": _S},
    # expert loads (tokens or time by expert or by rank), from plain tables
    "experts": {"rank": _I, "layer": _I, "expert": _I, "tokens": _F},
}


@dataclass(frozen=True)
class Part:
    """What one reader got out of one file.

    events: with some of SCHEMA's columns, or None.   tables: by the names of TABLES.   config: profiler settings.   meta: facts of the run.
    notes: what was mended or left out.   truncated: the file ended before its end.   records: complete records read.
    """

    source: str
    events: pl.DataFrame | None = None
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    truncated: bool = False
    records: int = 0
    kind: Kind = Kind.MEASURED


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was read. rank: the rank it belongs to, or None."""

    path: Path
    reader: str
    rank: int | None
    bytes: int
    records: int
    truncated: bool


@dataclass(frozen=True)
class Evidence:
    """A run as its files tell it.

    profile: the events of all ranks.   tables: as in TABLES, only those with rows.   configs: profiler settings, one a profiler_info file.
    files: what was read.   skipped: what was not, with the reason.   overrides: what the user said on the command line (active steps, chip).
    """

    profile: Profile
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    configs: tuple[dict[str, Any], ...] = ()
    files: tuple[SourceFile, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    overrides: dict[str, Any] = field(default_factory=dict)

    def table(self, name: str) -> pl.DataFrame:
        """A table of TABLES; empty when there is none."""
        return self.tables.get(name) if name in self.tables else pl.DataFrame(schema=TABLES[name])  # type: ignore[return-value]

    @property
    def meta(self) -> dict[str, Any]:
        """Facts of the run."""
        return self.profile.meta

    @property
    def ranks(self) -> list[int]:
        """The ranks seen anywhere, ascending; [] for a run of one."""
        found: set[int] = set()
        for frame in (self.profile.events, *self.tables.values()):
            if "rank" in frame.columns and len(frame):
                found.update(r for r in frame["rank"].unique().to_list() if r is not None)
        return sorted(found)


def table(name: str, columns: dict[str, Any]) -> pl.DataFrame:
    """A table of TABLES from some of its columns (Series, lists, expressions evaluated already); the rest is null, casts do not fail."""
    frame = pl.DataFrame(columns, strict=False) if columns else pl.DataFrame()
    return conform(name, frame)


def conform(name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with the columns and types of table `name`."""
    return frame.select(
        pl.col(c).cast(t, strict=False) if c in frame.columns else pl.lit(None, dtype=t).alias(c) for c, t in TABLES[name].items()
    ) if frame.width else pl.DataFrame(schema=TABLES[name])
