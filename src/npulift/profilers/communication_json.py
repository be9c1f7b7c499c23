"""communication.json and cluster_communication.json: each collective's time, bandwidth by transport and packet sizes.

Shape: step, 'p2p' or 'collective', operator, then times and bandwidths; the cluster's file puts a group before and a rank after the operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl

from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head
from npulift.profilers.json_whole import number, read_object

NAME = "communication"
_TIME, _BANDWIDTH = "Communication Time Info", "Communication Bandwidth Info"


def accepts(head: Head) -> bool:
    """By the two keys that every operator has."""
    return head.is_json and (_TIME.encode() in head.data or _BANDWIDTH.encode() in head.data)


def read(head: Head) -> Part:
    """Read collectives, transports and packets; the totals are left out (they would count twice)."""
    value, truncated, notes = read_object(head)
    collectives: list[dict[str, Any]] = []
    transports: list[dict[str, Any]] = []
    packets: list[dict[str, Any]] = []
    for keys, node in _operators(value, ()):
        name, where = _place(keys)
        if name.startswith("Total Op Info"):
            continue
        operator, _at, group = name.partition("@")
        base = {"rank": where["rank"], "step": where["step"], "name": operator, "group": group or where["group"]}
        time: dict[str, Any] = node[_TIME] if isinstance(node.get(_TIME), dict) else {}
        collectives.append({
            **base, "p2p": where["p2p"], "start_us": number(time.get("Start Timestamp(us)")), "elapse_ms": number(time.get("Elapse Time(ms)")),
            "transit_ms": number(time.get("Transit Time(ms)")), "wait_ms": number(time.get("Wait Time(ms)")),
            "synchronization_ms": number(time.get("Synchronization Time(ms)")), "idle_ms": number(time.get("Idle Time(ms)")),
        })
        speeds: dict[str, Any] = node[_BANDWIDTH] if isinstance(node.get(_BANDWIDTH), dict) else {}
        for transport, facts in speeds.items():
            if not isinstance(facts, dict) or not number(facts.get("Transit Size(MB)")):
                continue
            transports.append({**base, "transport": transport, "size_mb": number(facts.get("Transit Size(MB)")), "time_ms": number(facts.get("Transit Time(ms)")),
                               "bandwidth_gbs": number(facts.get("Bandwidth(GB/s)")), "large_ratio": number(facts.get("Large Packet Ratio"))})
            sizes = facts.get("Size Distribution")
            for size, pair in (sizes.items() if isinstance(sizes, dict) else ()):
                if isinstance(pair, list) and len(pair) >= 2 and number(size) is not None:
                    packets.append({"rank": base["rank"], "step": base["step"], "name": operator, "transport": transport, "packet_mb": number(size),
                                    "count": int(number(pair[0]) or 0), "time_ms": number(pair[1])})
    tables = {n: conform(n, pl.DataFrame(rows, infer_schema_length=None, strict=False)) for n, rows in
              (("collectives", collectives), ("transports", transports), ("packets", packets)) if rows}
    return Part(NAME, tables=tables, notes=notes, truncated=truncated, records=len(collectives))


def _operators(node: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if not isinstance(node, dict) or len(keys) > 6:
        return
    if _TIME in node or _BANDWIDTH in node:
        yield keys, node
        return
    for key, child in node.items():
        yield from _operators(child, (*keys, str(key)))


def _place(keys: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """The operator's name and what the other keys say: step, rank, group, point to point."""
    where: dict[str, Any] = {"step": None, "rank": None, "group": "", "p2p": False}
    name = ""
    for key in keys:
        step = re.fullmatch(r"step\s*(\d*)", key)
        if step:
            where["step"] = int(step.group(1)) if step.group(1) else None
        elif key in ("p2p", "collective"):
            where["p2p"] = key == "p2p"
        elif key.isdigit() and name:
            where["rank"] = int(key)
        elif "@" in key or re.match(r"(?i)hcom|hccl|total op info|all|reduce|broadcast|send|recv|batch", key):
            name = key
        elif not name:
            where["group"] = key
    return name or (keys[-1] if keys else ""), where
