"""communication_matrix.json and cluster_communication_matrix.json: bandwidth of each link, 'source-destination'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl

from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head
from npulift.profilers.json_whole import number, read_object

NAME = "communication matrix"
_LINK = re.compile(r"(\d+)-(\d+)")


def accepts(head: Head) -> bool:
    """A transport type under a link."""
    return head.is_json and b'"Transport Type"' in head.data


def read(head: Head) -> Part:
    """Read the links; LOCAL ones (a rank to itself) are left out. Where totals are given, single operators are left out."""
    value, truncated, notes = read_object(head)
    rows: list[dict[str, Any]] = []
    for keys, facts in _links(value, ()):
        match = _LINK.fullmatch(keys[-1])
        if match is None or str(facts.get("Transport Type", "")).upper() == "LOCAL":
            continue
        step = next((int(k[4:]) for k in keys if re.fullmatch(r"step\d+", k)), None)
        name, _at, group = (keys[-2] if len(keys) > 1 else "").partition("@")
        rows.append({"step": step, "name": name, "group": group, "source": int(match.group(1)), "destination": int(match.group(2)),
                     "transport": str(facts.get("Transport Type", "")), "size_mb": number(facts.get("Transit Size(MB)")),
                     "time_ms": number(facts.get("Transit Time(ms)")), "bandwidth_gbs": number(facts.get("Bandwidth(GB/s)"))})
    if any(r["name"].endswith("-total") for r in rows):
        rows = [r for r in rows if r["name"].endswith("-total")]
    tables = {"links": conform("links", pl.DataFrame(rows, infer_schema_length=None, strict=False))} if rows else {}
    return Part(NAME, tables=tables, notes=notes, truncated=truncated, records=len(rows))


def _links(node: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if not isinstance(node, dict) or len(keys) > 7:
        return
    if "Transport Type" in node:
        yield keys, node
        return
    for key, child in node.items():
        yield from _links(child, (*keys, str(key)))
