"""l2_cache*.csv: hit and victim ratio of the L2 cache by operator (0 to 1)."""

from __future__ import annotations

from npulift.profilers import csv_text
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "L2 cache"


def accepts(head: Head) -> bool:
    """Hit rate and operator name."""
    return head.has("hitrate", "opname")


def read(head: Head) -> Part:
    """Read the table."""
    text = csv_text.read(head.path)
    if not len(text):
        return Part(NAME, truncated=text.truncated)
    frame = text.frame.select(name=text.text("opname"), hit_ratio=text.number("hitrate"), victim_ratio=text.number("victimrate")).drop_nulls("name")
    return Part(NAME, tables={"cache": conform("cache", frame)}, truncated=text.truncated, records=frame.height)
