"""View: the figures over Evidence that several rules and the overview need, each worked out once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from npulift.findings import Finding, Location, Severity
from npulift.measured import Kind
from npulift.profilers.evidence import Evidence
from npulift.profilers.intervals import merged, overlap_length, union_length

DEVICE_CATEGORIES = ("kernel", "communication", "copy")


class View:
    """Evidence as rules look at it. Times in ns. Repeated rows are counted once."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._exposed: dict[str, int] = {}

    @property
    def kind(self) -> Kind:
        """How the times were come by."""
        return self.evidence.profile.kind

    @property
    def meta(self) -> dict[str, Any]:
        """Facts of the run."""
        return self.evidence.profile.meta

    def table(self, name: str) -> pl.DataFrame:
        """A table of the evidence."""
        return self.evidence.table(name)

    # events -------------------------------------------------------------------------------------------------------------------------

    @cached_property
    def _unique(self) -> tuple[pl.DataFrame, int]:
        events = self.evidence.profile.events
        timed = events.filter(pl.col("start_ns").is_not_null() & pl.col("category").is_in(DEVICE_CATEGORIES))
        key = ["rank", "name", "start_ns", "duration_ns", "stream", "task", "input_shapes"]
        repeats = timed.height - timed.select(pl.struct(key).n_unique()).item() if timed.height else 0
        return (events.unique(subset=[*key, "category", "device"], keep="first", maintain_order=True) if repeats else events), repeats

    @property
    def events(self) -> pl.DataFrame:
        """All events, repeated ones once."""
        return self._unique[0]

    @property
    def repeats(self) -> int:
        """How many rows repeat another: same kernel, same start."""
        return self._unique[1]

    @cached_property
    def device(self) -> pl.DataFrame:
        """Kernels, collectives and copies, by rank and start."""
        frame = self.events.filter(pl.col("category").is_in(DEVICE_CATEGORIES))
        return frame.sort("rank", "start_ns", nulls_last=True, maintain_order=True)

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """Kernels, by rank and start."""
        return self.device.filter(pl.col("category") == "kernel")

    @cached_property
    def communications(self) -> pl.DataFrame:
        """Collectives as events."""
        return self.device.filter(pl.col("category") == "communication")

    @cached_property
    def operators(self) -> pl.DataFrame:
        """Framework operators on the host."""
        return self.events.filter(pl.col("category") == "operator")

    @property
    def is_ascend(self) -> bool:
        """True for the files of Ascend's profilers: core types of that family, or tables that only they write."""
        if self.meta.get("ascend") or "level0" in self.meta or self.evidence.configs:
            return True
        return any(n in self.evidence.tables for n in ("api", "operators", "steps", "ai_cpu")) or \
            bool(self.events["device"].is_in(["AI_CORE", "AI_VECTOR_CORE", "AI_CPU", "MIX_AIC", "MIX_AIV"]).any())

    # sums ---------------------------------------------------------------------------------------------------------------------------

    @cached_property
    def by_type(self) -> pl.DataFrame:
        """Columns type, device, count, total_ns: from kernels, else from the vendor's sums."""
        if self.kernels.height:
            return self.kernels.group_by("type", "device").agg(count=pl.len(), total_ns=pl.col("duration_ns").sum()).sort("total_ns", descending=True)
        sums = self.table("operators")
        return sums.group_by("type", "device").agg(count=pl.col("count").sum(), total_ns=(pl.col("total_us").sum() * 1000).round(0).cast(pl.Int64)).filter(
            ~pl.col("device").fill_null("").is_in(["HCCL", "COMMUNICATION"])).sort("total_ns", descending=True)

    @cached_property
    def kernel_ns(self) -> int:
        """Sum of all kernels' durations (and copies')."""
        return int(self.by_type["total_ns"].sum() or 0) + int(self.device.filter(pl.col("category") == "copy")["duration_ns"].sum() or 0)

    @cached_property
    def device_ns(self) -> int:
        """Sum of the durations of kernels, copies and collectives."""
        return self.kernel_ns + int(self.communications["duration_ns"].sum() or 0)

    @cached_property
    def step_numbers(self) -> list[int]:
        """The steps that device events belong to."""
        found = self.device["step"].drop_nulls().unique().to_list()
        if not found:
            found = self.table("steps")["step"].drop_nulls().unique().to_list()
        return sorted(found)

    @property
    def step_count(self) -> int:
        """How many steps the device events span; 1 when nothing says so."""
        return max(1, len(self.step_numbers), int(self.meta.get("runs", 1) or 1) if not self.step_numbers else 0)

    # timeline -----------------------------------------------------------------------------------------------------------------------

    @cached_property
    def _tracks(self) -> list[pl.DataFrame]:
        """Device events with starts, a table a rank, starts ascending. Column `row` counts through `device`."""
        frame = self.device.with_row_index("row").filter(pl.col("start_ns").is_not_null())
        return frame.partition_by("rank", maintain_order=True) if frame.height else []

    @property
    def has_timeline(self) -> bool:
        """True when device events have starts."""
        return bool(self._tracks)

    @cached_property
    def busy_ns(self) -> int:
        """Time in which the device does something, over all ranks; without starts the sum of the durations."""
        if not self._tracks:
            return self.device_ns
        return sum(union_length(*_bounds(t)) for t in self._tracks)

    @cached_property
    def wall_ns(self) -> int:
        """From the first start to the last end, summed over ranks; the vendor's step times where there are no starts."""
        if self._tracks:
            return sum(int((t["start_ns"] + t["duration_ns"]).max() - t["start_ns"][0]) for t in self._tracks)  # type: ignore[operator]
        stages = (self.table("steps")["computing_us"].fill_null(0) + self.table("steps")["free_us"].fill_null(0)
                  + self.table("steps")["exposed_us"].fill_null(0)).sum()
        return int(float(stages or 0) * 1000) or self.busy_ns

    def saved_ns(self, which: pl.Expr) -> int:
        """What falls away when these device events do: the time in which nothing else runs beside them (not their sum)."""
        key = str(which)
        if key not in self._exposed:
            if not self._tracks:
                self._exposed[key] = int(self.device.filter(which)["duration_ns"].sum() or 0)
            else:
                saved = 0
                for track in self._tracks:
                    rest = track.filter(~which.fill_null(False))
                    saved += union_length(*_bounds(track)) - union_length(*_bounds(rest)) if rest.height < track.height else 0
                self._exposed[key] = saved
        return self._exposed[key]

    @cached_property
    def split(self) -> dict[str, float]:
        """Time by what the device does, ns over all ranks: computing, exposed and overlapped communication, copy, free, wall, and the AI CPU's part."""
        steps = self.table("steps")
        # what the vendor says goes first, but for rows outside of any step beside rows of steps
        steps = steps.filter(pl.col("step").is_not_null()) if steps["step"].null_count() < steps.height else steps
        if steps.height and not self._tracks:
            total = {c: float(steps[c].fill_null(0).sum()) * 1e3 for c in ("computing_us", "exposed_us", "overlapped_us", "free_us", "bubble_us", "preparing_us")}
            made = {"computing": total["computing_us"], "communication_exposed": total["exposed_us"], "communication_overlapped": total["overlapped_us"], "copy": 0.0,
                    "free": total["free_us"], "bubble": total["bubble_us"], "preparing": total["preparing_us"]}
            return {**made, "wall": made["computing"] + made["communication_exposed"] + made["free"]}
        result = dict.fromkeys(("computing", "communication_exposed", "communication_overlapped", "copy", "free"), 0.0)
        for track in self._tracks:
            parts = {c: merged(*_bounds(track.filter(pl.col("category") == c))) for c in DEVICE_CATEGORIES}
            compute = parts["kernel"]
            result["computing"] += float((compute[1] - compute[0]).sum())
            both = overlap_length(compute, parts["communication"])
            communication = float((parts["communication"][1] - parts["communication"][0]).sum())
            result["communication_overlapped"] += both
            result["communication_exposed"] += communication - both
            work = merged(*_bounds(track.filter(pl.col("category") != "copy")))
            result["copy"] += float((parts["copy"][1] - parts["copy"][0]).sum()) - overlap_length(work, parts["copy"])
        if not self._tracks:
            result["computing"] = float(self.kernel_ns)
            result["communication_exposed"] = float(self.communications["duration_ns"].sum() or 0)
        wall = float(self.wall_ns)
        result["free"] = max(0.0, wall - self.busy_ns)
        return {**result, "wall": wall}

    @cached_property
    def is_extract(self) -> bool:
        """True when rows were left out of a kernel table: its kernels say they hardly waited, yet there are long gaps between them. Its free time means nothing."""
        waits = self.kernels["wait_ns"]
        if not self.has_timeline or waits.null_count() > 0.5 * len(waits):
            return False
        return self.split["free"] > 0.5 * self.split["wall"] and float(self.device["wait_ns"].fill_null(0).clip(0).sum()) < 0.2 * self.split["free"]

    @cached_property
    def free_share(self) -> float:
        """Share of the wall time in which the device does nothing, 0 to 1; 0 when there is no timeline."""
        return self.split["free"] / self.split["wall"] if self.split.get("wall") else 0.0

    def share(self, ns: float, of: float | None = None) -> float:
        """ns as a share of the time in which the device is busy, at most 1."""
        whole = self.busy_ns if of is None else of
        return min(1.0, ns / whole) if whole else 0.0

    def what_if(self, saved: float) -> dict[str, float]:
        """The saving in us a step, the share of the wall time, and what a step would take without it."""
        steps, wall = self.step_count, self.split.get("wall") or self.busy_ns
        ranks = max(1, len(self._tracks))
        per = steps * ranks * 1e3
        return {"saving_us_per_step": round(saved / per, 3), "step_us": round(wall / per, 3), "step_us_without": round(max(0.0, wall - saved) / per, 3),
                "share_of_wall": round(saved / wall, 4) if wall else 0.0}


def _bounds(track: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    starts = track["start_ns"].to_numpy()
    return starts, starts + track["duration_ns"].to_numpy()


def us(ns: float) -> str:
    """ns as microseconds with one decimal, without separators, so that it can be searched for."""
    return f"{ns / 1e3:.1f}"


def percent(share: float) -> str:
    """A share as per cent with one decimal."""
    return f"{100 * share:.1f}"


def found(
    view: View, rule: tuple[str, str], severity: Severity, message: str, fix: str, *, saved: float | None = None, share: float | None = None,
    details: dict[str, Any] | None = None, location: Location | None = None, module: str = "",
) -> Finding:
    """A finding with its what-if. rule: (code, name).   saved: ns that would fall away.   share: cost share, when it is not saved over busy time."""
    facts = dict(details or {})
    if saved is not None:
        facts["what_if"] = view.what_if(saved)
        share = view.share(saved) if share is None else share
    return Finding(*rule, severity, message, location, module, fix, None if share is None else round(share, 6), view.kind if share is not None else None, facts)
