"""Read files and folders into Evidence: find the reader of each file, read ranks side by side, put everything together."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl

from npulift.errors import NpuliftError
from npulift.measured import Kind
from npulift.messages import _, current_language, set_language
from npulift.profile import SCHEMA, Profile
from npulift.profilers import (
    ai_cpu_table,
    api_table,
    ascend_database,
    cache_table,
    communication_json,
    framework_table,
    kernel_table,
    layer_tables,
    link_samples,
    matrix_json,
    memory_tables,
    monitor_table,
    onnxruntime_json,
    operator_sums,
    parquet,
    plain_tables,
    profiler_info,
    step_trace,
    trace_json,
)
from npulift.profilers.evidence import TABLES, Evidence, Part, SourceFile
from npulift.profilers.head import Head, head_of, rank_of

# In the order in which they are asked: the narrower ones first.
READERS: tuple[ModuleType, ...] = (
    parquet, ascend_database, matrix_json, communication_json, profiler_info, onnxruntime_json, trace_json, monitor_table, step_trace, memory_tables,
    framework_table, api_table, ai_cpu_table, cache_table, layer_tables, operator_sums, kernel_table, plain_tables, link_samples,
)
SUFFIXES = (".csv", ".json", ".json.gz", ".db", ".parquet", ".pt.trace.json", ".gz", ".txt")
MOST_FILES = 100_000
Progress = Callable[[str], None]


def find_reader(head: Head) -> ModuleType | None:
    """The reader that knows the file, or None."""
    return next((r for r in READERS if r.accepts(head)), None)


def read(paths: list[Path], progress: Progress = lambda text: None, **overrides: Any) -> Evidence:
    """All files, and all files in the folders. Raises NpuliftError when a path is missing or nothing at all can be read."""
    files, skipped = _listed(paths)
    named = {p.resolve() for p in paths if p.is_file()}
    jobs: list[Path] = _without_repeats(files, named)
    results = _read_all(jobs, progress)
    parts: list[tuple[Path, int | None, Part]] = []
    for path, answer in zip(jobs, results, strict=True):
        if isinstance(answer, str):
            skipped.append((str(path), answer))
        else:
            parts.append((path, answer.meta.get("rank", rank_of(path)), answer))
    if not parts:
        reason = "; ".join(f"{Path(p).name}: {r}" for p, r in skipped[:3])
        raise NpuliftError(_("There is no profile in {paths}. {reason}").format(paths=", ".join(map(str, paths)), reason=reason).rstrip())
    if any(len(part.tables) or part.events is not None or part.config or part.meta.get("environment") or part.meta.get("parallel_group_info") for _p, _r, part in parts) is False:
        reason = "; ".join(n for _p, _r, part in parts for n in part.notes) or "; ".join(r for _p, r in skipped)
        raise NpuliftError(_("{paths} was read, but holds no event, table or setting. {reason}").format(paths=", ".join(map(str, paths)), reason=reason).rstrip())
    return assemble(parts, tuple(skipped), overrides)


def _listed(paths: list[Path]) -> tuple[list[Path], list[tuple[str, str]]]:
    files: list[Path] = []
    skipped: list[tuple[str, str]] = []
    for path in paths:
        if path.is_dir():
            inside = []
            root = path.resolve()
            for folder, _folders, names in os.walk(path):  # links to folders are not followed
                for name in sorted(names):
                    file = Path(folder) / name
                    if name.lower().endswith(SUFFIXES) and file.is_file() and root in file.resolve().parents:
                        inside.append(file)
                if len(inside) > MOST_FILES:
                    raise NpuliftError(_("{path} holds more than {n} files; name the profiler's folder itself.").format(path=path, n=MOST_FILES))
            files += sorted(inside)
        elif path.exists():
            files.append(path)
        else:
            raise NpuliftError(_("There is no {path}.").format(path=path))
    return files, skipped


def _without_repeats(files: list[Path], named: set[Path]) -> list[Path]:
    """torch_npu's folder holds msprof's next to its own output: where kernel_details.csv is, op_summary tells the same kernels again."""
    by_run: dict[Path, set[str]] = {}
    for file in files:
        by_run.setdefault(_run_of(file), set()).add(file.name.split(".")[0].split("_2")[0].lower())
    kept, seen = [], set()
    for file in files:
        real = file.resolve()
        if real in seen:
            continue
        seen.add(real)
        have = by_run[_run_of(file)]
        name = file.name.lower()
        if real not in named and "kernel_details" in have and (
            name.startswith(("op_summary", "task_time", "ascend_pytorch_profiler", "msprof_")) or "mindstudio_profiler_output" in str(file)
        ):
            continue
        if real not in named and "op_summary" in have and name.startswith(("task_time", "msprof_")):
            continue
        kept.append(file)
    return kept


def _run_of(file: Path) -> Path:
    """The folder that holds one rank's whole output."""
    for folder in file.parents:
        if folder.name.endswith("_ascend_pt") or folder.name.startswith("PROF_"):
            return folder.parent if folder.name.startswith("PROF_") and folder.parent.name.endswith("_ascend_pt") else folder
    return file.parent


def read_file(path: Path) -> Part | str:
    """One file: what its reader got, or why there is nothing (text for the user)."""
    try:
        head = head_of(path)
        if not head.data.strip():
            return _("it is empty")
        reader = find_reader(head)
        if reader is None:
            if head.name.endswith((".log", ".txt", ".out")):
                return _("it is not a profile; npulift doctor reads logs")
            return _("no profiler that npulift knows writes such a file")
        return reader.read(head)  # type: ignore[no-any-return]
    except NpuliftError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)
    except (pl.exceptions.PolarsError, ValueError, KeyError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        return _("it cannot be read ({error})").format(error=f"{type(error).__name__}: {str(error)[:200]}")


def _read_in_language(path: str, language: str) -> Part | str:
    set_language(language)
    return read_file(Path(path))


def _read_all(jobs: list[Path], progress: Progress) -> list[Part | str]:
    """Side by side when there are many files (a cluster's ranks), one after the other otherwise."""
    total = sum(j.stat().st_size for j in jobs)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(jobs) < 64 or total < 64 << 20 or processors < 2:
        results = []
        for job in jobs:
            progress(_("reading {file}").format(file=job.name))
            results.append(read_file(job))
        return results
    progress(_("reading {n} files").format(n=len(jobs)))
    try:
        with ProcessPoolExecutor(min(processors, 16), mp_context=multiprocessing.get_context("spawn")) as pool:
            return list(pool.map(_read_in_language, map(str, jobs), [current_language()] * len(jobs), chunksize=max(1, len(jobs) // (processors * 8))))
    except BrokenProcessPool:
        return [read_file(j) for j in jobs]


def assemble(parts: list[tuple[Path, int | None, Part]], skipped: tuple[tuple[str, str], ...] = (), overrides: dict[str, Any] | None = None) -> Evidence:
    """Parts of all files as one Evidence; every row gets the rank of its file where it has none of its own."""
    ranked = len({rank for _p, rank, _part in parts if rank is not None}) > 0
    ranks = _ranks([(p, r) for p, r, _part in parts], ranked)
    frames: list[pl.DataFrame] = []
    configs: list[dict[str, Any]] = []
    files: list[SourceFile] = []
    notes: list[str] = []
    meta: dict[str, Any] = {}
    kinds: list[Kind] = []
    collected: dict[str, list[pl.DataFrame]] = {}
    for (path, _rank, part), rank in zip(parts, ranks, strict=True):
        if part.events is not None and part.events.height:
            frames.append(_with_rank(_columns(part.events), rank))
            kinds.append(part.kind)
        for name, frame in part.tables.items():
            if frame.height:
                collected.setdefault(name, []).append(_with_rank(frame, rank) if "rank" in TABLES[name] else frame)
        if part.config:
            configs.append({**part.config, "rank": rank})
        for key, value in part.meta.items():
            if key != "rank":
                meta.setdefault(key, value)
        files.append(SourceFile(path, part.source, rank, path.stat().st_size, part.records, part.truncated))
        notes += part.notes
    tables = {name: pl.concat(f, how="vertical_relaxed") for name, f in collected.items()}
    events = pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame(schema=SCHEMA)
    kind = kinds[0] if kinds else Kind.MEASURED
    if len(set(kinds)) > 1:
        notes.append(_("The files hold figures of different kinds ({kinds}); shares over all of them mean little.").format(kinds=", ".join(sorted({str(k) for k in kinds}))))
    sources = sorted({f.reader for f in files})
    profile = Profile(events, kind, ", ".join(sources), meta, tuple(dict.fromkeys(notes)))
    return Evidence(profile, tables, tuple(configs), tuple(files), skipped, dict(overrides or {}))


def _ranks(files: list[tuple[Path, int | None]], ranked: bool) -> list[int | None]:
    """A rank for each file: its own, or that of another file of the same run; runs without any are numbered when there is more than one."""
    by_run: dict[Path, int] = {}
    for path, rank in files:
        if rank is not None:
            by_run.setdefault(_run_of(path), rank)
    runs = sorted({_run_of(p) for p, _r in files})
    marked = [r for r in runs if r.name.endswith("_ascend_pt")]
    if not ranked and len(marked) > 1:
        by_run = {r: i for i, r in enumerate(marked)}
    return [rank if rank is not None else by_run.get(_run_of(path)) for path, rank in files]


def _columns(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(
        pl.col(c).cast(t, strict=False) if c in frame.columns else pl.lit(None, dtype=t).alias(c) for c, t in SCHEMA.items())


def _with_rank(frame: pl.DataFrame, rank: int | None) -> pl.DataFrame:
    return frame if rank is None else frame.with_columns(rank=pl.col("rank").fill_null(rank))
