"""Out of memory: the figures in the message tell fragmentation, another process and a model that is too large apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

_UNITS = {"B": 0, "bytes": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4, "PiB": 5, "EiB": 6, "EB": 6, "KB": 1, "MB": 2, "GB": 3}
_AMOUNT = r"([\d.]{1,20}) ?(B|bytes|[KMGTPE]i?B)\b"
_TRIED = re.compile(rf"Tried to allocate (?:more than )?{_AMOUNT}")
_OLD = {
    "total": re.compile(rf"{_AMOUNT} total capacity"),
    "allocated": re.compile(rf"{_AMOUNT} already allocated"),
    "free": re.compile(rf"{_AMOUNT} free"),
    "reserved": re.compile(rf"{_AMOUNT} reserved in total"),
}
_NEW = {
    "total": re.compile(rf"total capacity of {_AMOUNT}"),
    "free": re.compile(rf"of which {_AMOUNT} is free"),
    "allocated": re.compile(rf"{_AMOUNT} is allocated by PyTorch"),
    "unallocated": re.compile(rf"{_AMOUNT} is reserved by PyTorch but unallocated"),
}
_DEVICE = re.compile(r"\((?:NPU|GPU) (\d{1,4})|(?:NPU|GPU) (\d{1,4}) has a total")
_SOURCE = "vllm-project/vllm-ascend#19; pytorch caching allocator message"


@dataclass(frozen=True, slots=True)
class Figures:
    """What an out-of-memory message states, in GiB. reserved: by this process, allocated included."""

    tried: float
    total: float
    allocated: float
    free: float
    reserved: float
    device: str
    line: Line

    @property
    def unused(self) -> float:
        """Reserved by this process and not in use."""
        return max(0.0, self.reserved - self.allocated)

    @property
    def outside(self) -> float:
        """Neither free nor reserved by this process: other processes, the driver, HCCL buffers."""
        return max(0.0, self.total - self.reserved - self.free)


class OutOfMemory:
    """Collects the messages."""

    literals = ("Tried to allocate", "is reserved by PyTorch but unallocated")
    limit = 2000

    def __init__(self) -> None:
        self.seen: list[Figures] = []
        self.count = 0
        self.bare: list[Line] = []

    def line(self, line: Line) -> None:
        """Take one message."""
        self.count += 1
        figures = parse(line)
        if figures is None:
            if "out of memory" in line.text and len(self.bare) < 5:
                self.bare.append(line)
        elif len(self.seen) < 200:
            self.seen.append(figures)

    def causes(self, found: Found) -> Iterator[Cause]:
        """One cause for the first message; the rest are the same trouble."""
        if not self.seen:
            return
        found.replaced.update(("npu-out-of-memory",))
        first = self.seen[0]
        evidence = tuple(f.line for f in self.seen[:5])
        yield _conclude(first, evidence, len(self.seen), found)


def new() -> OutOfMemory:
    """A fresh one."""
    return OutOfMemory()


def parse(line: Line) -> Figures | None:
    """The figures of a message, or None when they are not all there."""
    text = line.text
    values = {name: _gib(p.search(text)) for name, p in _OLD.items()}
    if values["total"] is None:
        values = {name: _gib(p.search(text)) for name, p in _NEW.items()}
        if values.get("allocated") is not None:
            values["reserved"] = (values["allocated"] or 0.0) + (values.pop("unallocated", None) or 0.0)
    tried = _gib(_TRIED.search(text))
    if tried is None or any(values.get(k) is None for k in ("total", "allocated", "free", "reserved")):
        return None
    device = _DEVICE.search(text)
    return Figures(
        tried, values["total"] or 0.0, values["allocated"] or 0.0, values["free"] or 0.0, values["reserved"] or 0.0,
        next((g for g in device.groups() if g), "?") if device else "?", line,
    )


def _gib(found: re.Match[str] | None) -> float | None:
    if found is None:
        return None
    try:
        return float(found.group(1)) * 1024.0 ** (_UNITS[found.group(2)] - 3)
    except ValueError:
        return None


def _conclude(f: Figures, evidence: tuple[Line, ...], count: int, found: Found) -> Cause:
    sums = _("Device {device}: {total:.2f} GiB in all, {reserved:.2f} GiB reserved by this process ({allocated:.2f} in use, {unused:.1f} GiB reserved but unused), "
             "{free:.2f} free, {outside:.1f} GiB held outside this process; {tried:.2f} GiB were asked for.").format(
        device=f.device, total=f.total, reserved=f.reserved, allocated=f.allocated, unused=f.unused, free=f.free, outside=f.outside, tried=f.tried)
    details = {"total_gib": round(f.total, 2), "reserved_gib": round(f.reserved, 2), "allocated_gib": round(f.allocated, 2), "free_gib": round(f.free, 2),
               "unused_gib": round(f.unused, 2), "outside_gib": round(f.outside, 2), "tried_gib": round(f.tried, 4)}
    options = (found.facts.value("PYTORCH_NPU_ALLOC_CONF") or "").lower()
    expandable = "expandable_segments:true" in options and "max_split_size_mb" not in options and "garbage_collection_threshold" not in options
    outside_is_odd = f.outside > max(4.0, 0.12 * f.total)

    if f.tried > f.total:
        return Cause(
            "oom-absurd-request", Severity.ERROR, "high",
            _("One tensor alone asks for more than the whole device has, so a shape or a length is wrong (or was overwritten). ") + sums,
            (
                _("Print the shapes at the line that fails; look for a length or an index that holds garbage, or a mask or an attention matrix of sequence length squared."),
                _("If a length comes from a tensor on the device, check it before and after each custom operator: one that writes out of bounds destroys its neighbours."),
            ),
            evidence, source=_SOURCE, count=count, details=details)
    if outside_is_odd and f.outside >= f.unused:
        return Cause(
            "oom-held-elsewhere", Severity.ERROR, "high",
            _("Memory is held by another process: about {outside:.0f} GiB of device {device} belong neither to this process nor to the free rest. "
              "It is not fragmentation, whatever the hint at the end of the message suggests. ").format(outside=f.outside, device=f.device) + sums,
            (
                _("See who holds it: `npu-smi info` lists the processes of each device (inside a container those of other containers stay hidden: look on the host). Stop what is left over."),
                _("Choose free devices with ASCEND_RT_VISIBLE_DEVICES, or lower the share that the other service takes (for vLLM --gpu-memory-utilization)."),
                _("When one process for each rank is meant: check that every rank calls torch.npu.set_device(local_rank); ranks that all open device 0 fill it together."),
            ),
            evidence, more=_("`npu-smi info -t usages -i 0` and the process table of `npu-smi info` on the host, at the time of the failure."), source=_SOURCE, count=count, details=details)
    if f.unused >= max(f.tried, 0.02 * f.total):
        steps = [
            _("PYTORCH_NPU_ALLOC_CONF=expandable_segments:True (alone: it cannot be combined with max_split_size_mb or garbage_collection_threshold); where the driver does not take it, max_split_size_mb:128 alone."),
            _("Free cached blocks between phases (training and evaluation, prefill and decode): torch.npu.empty_cache()."),
            _("Make sizes repeat: pad to a few lengths, sort by length, allocate the largest batch first."),
            _("Smaller batch, activation checkpointing (torch.utils.checkpoint), gradient accumulation."),
        ]
        if expandable:
            steps = steps[1:]
        return Cause(
            "oom-fragmentation", Severity.ERROR, "high" if f.unused >= 2 * f.tried or f.unused > 4 else "medium",
            _("Fragmentation: {unused:.1f} GiB are reserved but unused, in pieces of which none is large enough for {tried:.2f} GiB. ").format(unused=f.unused, tried=f.tried) + sums,
            tuple(steps), evidence, more=_("torch.npu.memory_summary() just before the failing line; torch.npu.memory.memory_snapshot()."), source=_SOURCE, count=count, details=details)
    return Cause(
        "oom-too-large", Severity.ERROR, "high" if f.allocated > 0.8 * f.total else "medium",
        _("The model, its activations and its optimizer state do not fit: {allocated:.1f} of {total:.1f} GiB are in real use by this process. ").format(allocated=f.allocated, total=f.total) + sums,
        (
            _("Smaller batch or sequence (for vLLM: --max-model-len, --max-num-seqs, --gpu-memory-utilization), with gradient accumulation to keep the effective batch."),
            _("Activation checkpointing; float16 or bfloat16 weights and autocast; torch.no_grad() where nothing is trained; delete what keeps the graph alive (losses summed without .item() or .detach())."),
            _("Spread it: FSDP or ZeRO, tensor parallelism, offload of the optimizer state; or quantize the weights."),
        ),
        evidence, more=_("`npulift simulate` shows the peak and where it comes from without a device."), source=_SOURCE, count=count, details=details)
