"""operator_details.csv: framework operators with host and device times and call stacks, in us. Only the self columns add up."""

from __future__ import annotations

from npulift.profilers import csv_text
from npulift.profilers.ascend_names import shapes
from npulift.profilers.evidence import Part, conform
from npulift.profilers.head import Head

NAME = "framework operators"


def accepts(head: Head) -> bool:
    """Host and device self durations."""
    return head.has("name") and head.any("hostselfduration(us)", "deviceselfduration(us)")


def read(head: Head) -> Part:
    """Read the table."""
    text = csv_text.read(head.path)
    if not len(text):
        return Part(NAME, truncated=text.truncated)
    frame = text.frame.select(
        name=text.text("name"), input_shapes=shapes(text.text("inputshapes")), stack=text.text("callstack"), host_self_us=text.number("hostselfduration(us)"),
        host_total_us=text.number("hosttotalduration(us)"), device_self_us=text.number("deviceselfduration(us)"),
        device_total_us=text.number("devicetotalduration(us)"), device_self_aicore_us=text.number("deviceselfdurationwithaicore(us)"),
    ).drop_nulls("name")
    return Part(NAME, tables={"framework": conform("framework", frame)}, truncated=text.truncated, records=frame.height)
