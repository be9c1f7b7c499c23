"""A table of monitor samples: one row a sample and figure (time, what, value)."""

from __future__ import annotations

from npulift.profilers import csv_text
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "monitor"


def accepts(head: Head) -> bool:
    """Its own columns."""
    return head.has("timeus", "device", "name", "value", "unit")


def read(head: Head) -> Part:
    """Read the samples."""
    text = csv_text.read(head.path)
    frame = text.frame.select(
        device=text.integer("device"), time_us=text.number("timeus"), name=text.text("name"), value=text.number("value"), unit=text.text("unit"),
    ).drop_nulls(["name", "value"]) if len(text) else text.frame
    return Part(NAME, tables={"samples": conform("samples", frame)}, truncated=text.truncated, records=frame.height)
