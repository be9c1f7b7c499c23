"""profiler_info*.json: how the profiler was set up. profiler_metadata.json: environment and parallel groups."""

from __future__ import annotations

from typing import Any

from npulift.profilers.evidence import Part
from npulift.profilers.head import Head
from npulift.profilers.json_whole import read_object

NAME = "profiler settings"


def accepts(head: Head) -> bool:
    """The keys of either file."""
    return head.is_json and (b'"common_config"' in head.data or b'"experimental_config"' in head.data or head.name.startswith(("profiler_info", "profiler_metadata"))
                             or b'"parallel_group_info"' in head.data or b'"ENV_VARIABLES"' in head.data)


def read(head: Head) -> Part:
    """Settings into `config`, the rest into `meta`."""
    value, truncated, notes = read_object(head)
    if not isinstance(value, dict):
        return Part(NAME, notes=notes, truncated=truncated)
    meta: dict[str, Any] = {}
    for key in ("torch_npu_version", "cann_version"):
        if isinstance(value.get(key), str):
            meta[key] = value[key]
    rank: Any = value.get("rank_id")
    if str(rank).lstrip("-").isdigit() and int(rank) >= 0:
        meta["rank"] = int(rank)
    for key in ("distributed_args", "parallel_group_info"):
        if isinstance(value.get(key), dict):
            meta[key] = value[key]
    if isinstance(value.get("ENV_VARIABLES"), dict):
        meta["environment"] = {str(k): str(v) for k, v in value["ENV_VARIABLES"].items()}
    raw: dict[str, Any] = value["config"] if isinstance(value.get("config"), dict) else value
    config: dict[str, Any] = {}
    for part in ("common_config", "experimental_config"):
        if isinstance(raw.get(part), dict):
            config.update({str(k).lstrip("_"): v for k, v in raw[part].items()})
    return Part(NAME, config={**config, "file": head.path.name} if config else {}, meta=meta, notes=notes, truncated=truncated, records=1)
