"""Allocator settings that exclude each other, or that this driver does not take."""

from __future__ import annotations

from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _


class AllocatorSettings:
    """Works on the facts alone."""

    literals: tuple[str, ...] = ()
    limit = 1

    def line(self, line: Line) -> None:
        """Nothing of its own."""

    def causes(self, found: Found) -> Iterator[Cause]:
        """Compare the options."""
        value = found.facts.value("PYTORCH_NPU_ALLOC_CONF") or ""
        options = dict(part.partition(":")[::2] for part in value.lower().split(",") if part)
        expandable = options.get("expandable_segments") == "true"
        others = [o for o in ("max_split_size_mb", "garbage_collection_threshold") if o in options]
        evidence = tuple(found.facts.lines("PYTORCH_NPU_ALLOC_CONF"))
        if expandable and others:
            found.replaced.add("allocator-option-conflict")
            yield Cause(
                "allocator-option-conflict", Severity.ERROR, "high",
                _("PYTORCH_NPU_ALLOC_CONF holds options that exclude each other: expandable_segments:True and {others} cannot be combined.").format(others=", ".join(others)),
                (_("Keep expandable_segments only: export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"),),
                evidence + tuple(found.matches["allocator-option-conflict"].evidence if found.has("allocator-option-conflict") else ()),
                source="vllm-project/vllm-ascend#5855; Ascend/pytorch NPUAllocatorConfig.cpp", details={"value": value})
        copy = found.take("copy-stream-507001")
        if copy:
            said = _("The log shows expandable_segments:True. ") if expandable else _("The log does not show the allocator's options; expandable_segments:True is the known trigger. ")
            yield Cause(
                "expandable-segments-driver", Severity.ERROR, "medium",
                _("The device's task scheduler failed (507001) in the first copy on the device. ") + said
                + _("Expandable segments need virtual-memory support that this combination of driver, firmware and CANN does not have; a user confirmed that switching them off helps, the maker has not explained it."),
                (
                    _("First try: export PYTORCH_NPU_ALLOC_CONF=expandable_segments:False (this is the opposite of the usual advice against out-of-memory, and right here)."),
                    _("Write down the driver and firmware versions (`npu-smi info`, /usr/local/Ascend/driver/version.info) and plan an upgrade of both; then switch expandable segments on again."),
                ),
                tuple(copy) + evidence, more=_("plog of the process (~/ascend/log/debug/plog): the device's own error stands before 507001."),
                source="vllm-project/vllm-ascend#116", details={"value": value})


def new() -> AllocatorSettings:
    """A fresh one."""
    return AllocatorSettings()
