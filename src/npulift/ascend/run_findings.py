"""What a simulated run shows: host fallbacks, operators that fail, AI CPU kernels, read-backs, memory that does not fit, compilations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from npulift.ascend import records
from npulift.ascend.memory import Usage
from npulift.ascend.records import Event
from npulift.ascend.simulation import Simulation
from npulift.findings import Finding, Location, Severity
from npulift.graphs import is_torch
from npulift.measured import Kind
from npulift.messages import N_, _, ngettext

# What to do about an operator that has no kernel, by base name.
WAYS_OUT = {
    "aten::_transformer_encoder_layer_fwd": N_(
        "Call torch.backends.mha.set_fastpath_enabled(False) before the model runs: then the layer takes its ordinary operators, which have kernels."),
    "aten::_native_multi_head_attention": N_(
        "Call torch.backends.mha.set_fastpath_enabled(False) before the model runs: then attention takes its ordinary operators, which have kernels."),
    "aten::_scaled_dot_product_efficient_attention": N_(
        "Call torch.nn.functional.scaled_dot_product_attention, which torch_npu sends to its fused kernel, or torch_npu.npu_fusion_attention."),
    "aten::_scaled_dot_product_flash_attention": N_(
        "Call torch.nn.functional.scaled_dot_product_attention, which torch_npu sends to its fused kernel, or torch_npu.npu_fusion_attention."),
    "aten::_scaled_dot_product_cudnn_attention": N_(
        "Call torch.nn.functional.scaled_dot_product_attention, which torch_npu sends to its fused kernel, or torch_npu.npu_fusion_attention."),
    "torchvision::nms": N_("Use torch_npu.npu_nms_with_mask or torch_npu.npu_nms_v4, or do the post-processing on the host once for the whole batch."),
    "aten::_logcumsumexp": N_("Write it as torch.log(torch.cumsum(torch.exp(x - m), d)) + m with m = x.amax(d, keepdim=True); sums far below m underflow."),
    "aten::_fft_r2c": N_("Multiply by a fixed matrix of the transform, or do the transform on the host on purpose, outside the training step."),
    "aten::_fft_c2r": N_("Multiply by a fixed matrix of the transform, or do the transform on the host on purpose, outside the training step."),
    "aten::_fft_c2c": N_("Multiply by a fixed matrix of the transform, or do the transform on the host on purpose, outside the training step."),
    "aten::_upsample_bilinear2d_aa": N_("Drop antialias=True where the output is not smaller (it changes nothing there), or multiply by two fixed matrices of weights."),
    "aten::_upsample_bicubic2d_aa": N_("Drop antialias=True where the output is not smaller (it changes nothing there), or multiply by two fixed matrices of weights."),
}
OTHER_WAY_OUT = N_("Write it with operators that have kernels, or move this part to the host on purpose, once, outside the inner loop.")


@dataclass(frozen=True, slots=True)
class Fallback:
    """An operator that ran on the host, at one line. seconds: on this machine's CPU, all calls together."""

    operator: str
    count: int
    location: Location | None
    module: str
    seconds: float
    phase: str


def fallbacks(simulation: Simulation) -> list[Fallback]:
    """Every operator for which torch_npu took its CPU fallback, by operator and line; each call is counted where torch_npu makes it."""
    groups: dict[Any, list[Event]] = defaultdict(list)
    for event in simulation.trace.events(records.FALLBACK):
        groups[(event.name, users_line(simulation, event))].append(event)
    found = [Fallback(name, len(es), place, es[0].module, sum(e.duration_ns for e in es) / 1e9, es[0].phase) for (name, place), es in groups.items()]
    return sorted(found, key=lambda f: (-f.count, f.operator))


def users_line(simulation: Simulation, event: Event) -> Location | None:
    """The user's line of an event; where only torch's own lines are at work, the user's line that built the module."""
    if event.location is not None and not is_torch(event.location.file):
        return event.location
    built = simulation.result.get("built") or {}
    path = event.module
    while True:
        if path in built:
            return Location(built[path][0], int(built[path][1]))
        if not path:
            return event.location
        path = path.rpartition(".")[0]


def read_backs(simulation: Simulation) -> list[tuple[str, Location | None, int, int]]:
    """(operator, line, how often, bytes) of copies from the device that a fallback is not the cause of."""
    trace = simulation.trace
    in_fallback = {int(trace.records[row]["op"]) for row in trace.select(records.FALLBACK)}
    groups: dict[Any, list[int]] = defaultdict(list)
    for row in trace.select(records.COPY):
        record = trace.records[row]
        if int(record["detail"]) & 255 == 2 and (int(record["op"]) == 0 or int(record["op"]) not in in_fallback):
            event = trace.event(int(row))
            groups[(event.operator, event.location)].append(event.bytes)
    return sorted(((op, place, len(b), sum(b)) for (op, place), b in groups.items()), key=lambda r: -r[2])


def of_model(simulation: Simulation) -> Iterator[Finding]:
    """What concerns a model: fallbacks, operators that fail, AI CPU kernels, memory."""
    found = list(_fallbacks(simulation, predicted_seconds(simulation)))
    yield from found
    named = {str(f.details["operator"]).partition(".")[0] for f in found if f.code == "NPU111"}
    if not any(f"'{operator}'" in simulation.error.get("message", "") for operator in named):
        yield from _error(simulation)
    yield from _cpu_tensor(simulation)
    yield from _ai_cpu(simulation)


def of_script(simulation: Simulation, usage: Usage | None) -> Iterator[Finding]:
    """Everything that a run of a script shows."""
    yield from of_model(simulation)
    yield from _nothing(simulation)
    yield from _reads(simulation)
    yield from _compilations(simulation)
    yield from _copies_of_layout(simulation)


def predicted_seconds(simulation: Simulation) -> float | None:
    """Kernels, copies and collectives by the cost model, plus fallbacks on this machine's CPU; None where there is no cost model."""
    from npulift.ascend.timing import play

    durations = [p.duration_ns for p in play(list(simulation.trace.events()), simulation.chip) if p.duration_ns is not None]
    return sum(durations) / 1e9 + sum(f.seconds for f in fallbacks(simulation)) if durations else None


def _fallbacks(simulation: Simulation, total: float | None) -> Iterator[Finding]:
    failed = simulation.error.get("message", "")
    for f in fallbacks(simulation):
        base = f.operator.partition(".")[0]
        forced = base in ("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_cudnn_attention")
        if forced or (failed and base.partition("::")[2] in failed):
            yield Finding(
                "NPU111", "no-kernel", Severity.ERROR,
                _("{operator} has no kernel for this target, and is called by name, so nothing better can be chosen: torch_npu sends it to the CPU, where it fails or "
                  "is slow.").format(operator=f.operator),
                f.location, f.module, _(WAYS_OUT.get(base, OTHER_WAY_OUT)), details={"operator": f.operator, "count": f.count},
            )
            continue
        times = ngettext("{n} call", "{n} calls", f.count).format(n=f.count)
        yield Finding(
            "NPU110", "host-fallback", Severity.WARNING,
            _("{operator} has no NPU kernel and runs on the CPU ({times}, {phase}): the queue drains, its operands go to the host and its results come back. The values stay "
              "right.").format(operator=f.operator, times=times, phase=_phase(f.phase)),
            f.location, f.module, _(WAYS_OUT.get(base, OTHER_WAY_OUT)), cost_share=round(f.seconds / total, 4) if total else None,
            kind=Kind.PREDICTED if total else Kind.SIMULATED,
            details={"operator": f.operator, "count": f.count, "host_seconds": round(f.seconds, 6), "host_seconds_are": "measured on this machine's CPU", "phase": f.phase},
        )


def _phase(phase: str) -> str:
    return {"forward": _("forward"), "backward": _("backward"), "optimizer": _("optimizer")}[phase]


def _error(simulation: Simulation) -> Iterator[Finding]:
    error = simulation.error
    place = Location(error["file"], error["line"] or 0) if error.get("file") else None
    text = (error.get("message") or "").strip().splitlines()
    first = text[0][:500] if text else ""
    if error.get("out_of_memory"):
        yield Finding(
            "NPU114", "out-of-memory", Severity.ERROR,
            _("It does not fit the chip: {error}").format(error=first), place, "",
            _("See what holds the peak; then a smaller batch, gradient checkpointing, sharding over cards, or bfloat16 states."), kind=Kind.SIMULATED,
            details={"capacity_bytes": simulation.chip.usable_bytes},
        )
    elif error.get("type") in ("AssertionError", "RuntimeError") and ("CUDA" in first or "cuda" in first.lower()):
        yield Finding(
            "NPU116", "uses-cuda", Severity.ERROR, _("The script asks for CUDA: {error}").format(error=first), place, "",
            _("`npulift migrate` rewrites it, or put `from torch_npu.contrib import transfer_to_npu` at its top."),
        )
    elif error and error.get("type") == "NotImplementedError" and "Could not run" in first:
        yield Finding("NPU111", "no-kernel", Severity.ERROR, _("An operator has no kernel for the NPU: {error}").format(error=first), place, "", _(OTHER_WAY_OUT))
    elif error:
        yield Finding(
            "NPU115", "stopped", Severity.ERROR, _("It stopped with {type}: {error}").format(type=error.get("type"), error=first), place, "",
            _("In fake mode kernels compute nothing, so what is read back is zero: state the values with npulift.assume, or use --mode real.")
            if simulation.mode == "fake" else "",
            details={"trace": error.get("trace", "")[-4000:]},
        )
    elif simulation.status == "killed":
        yield Finding(
            "NPU115", "stopped", Severity.ERROR,
            _("The process ended by itself ({reason}); what was recorded until then is shown.").format(reason=_reason(simulation.exit_code)), None, "", "",
            details={"log": list(simulation.log[-20:])},
        )


def _cpu_tensor(simulation: Simulation) -> Iterator[Finding]:
    found = simulation.result.get("cpu_tensor")
    if found:
        place = Location(found["file"], found["line"] or 0) if found.get("file") else None
        yield Finding(
            "NPU120", "tensor-on-cpu", Severity.WARNING,
            _("A tensor is made on the CPU inside the model, and meets one on the NPU here: {error}").format(error=found["message"].splitlines()[0][:200]), place, "",
            _("Give its device where it is made (device=x.device), or register it as a buffer. What else is said was seen with that mended."),
            kind=Kind.SIMULATED,
        )


def _reason(code: int) -> str:
    import signal

    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return str(code)
    return _("exit code {code}").format(code=code)


_SLOW_DTYPES = ("float64", "complex64", "complex128")


def _ai_cpu(simulation: Simulation) -> Iterator[Finding]:
    trace = simulation.trace
    slow = {}
    for number in {int(trace.records[row]["signature"]) for row in trace.select(records.LAUNCH)}:
        signature = trace.signature(number)
        dtypes = {o.dtype for o in (*signature.inputs, *signature.outputs)} & set(_SLOW_DTYPES)
        if dtypes and signature.name not in ("InplaceCopy", "Cast", "InplaceZero", "InplaceOne"):
            slow[number] = sorted(dtypes)
    groups: dict[Any, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in trace.select(records.LAUNCH):
        number = int(trace.records[row]["signature"])
        if number in slow:
            e = trace.event(int(row))
            groups[(users_line(simulation, e), e.module, ", ".join(slow[number]))][e.operator] += 1
    for (place, module, dtypes_text), operators in groups.items():
        yield Finding(
            "NPU112", "ai-cpu", Severity.WARNING,
            _("{operators} work on {dtype}, for which the AI cores have no arithmetic: the kernels go to the AI CPU or are refused.").format(
                operators=", ".join(operators), dtype=dtypes_text),
            place, module, _("Use float32 or float16, or real and imaginary parts; compute such a table once on the host."), kind=Kind.SIMULATED,
            details={"count": sum(operators.values()), "operators": list(operators)},
        )


def _nothing(simulation: Simulation) -> Iterator[Finding]:
    if simulation.status in ("finished", "exit") and not simulation.trace.launches and not len(simulation.trace.select(records.FALLBACK, records.COPY)):
        yield Finding(
            "NPU119", "nothing-on-npu", Severity.WARNING, _("Nothing ran on the NPU: the script launched no kernel and copied nothing to the device."), None, "",
            _("Move the model and its inputs there (.npu() or device='npu'), or put `from torch_npu.contrib import transfer_to_npu` at the top of a CUDA script."),
            kind=Kind.SIMULATED,
        )


def _reads(simulation: Simulation) -> Iterator[Finding]:
    for operator, place, count, size in read_backs(simulation):
        yield Finding(
            "NPU113", "read-back", Severity.INFO,
            ngettext("{operator} reads {bytes} bytes back from the device {n} time: the host waits until the queue has drained.",
                     "{operator} reads {bytes} bytes back from the device {n} times: the host waits until the queue has drained.", count).format(
                         operator=operator or _("A copy"), bytes=size, n=count),
            place, "", _("Keep the value on the device, or read it every so many steps."), kind=Kind.SIMULATED, details={"count": count, "operator": operator, "bytes": size},
        )


def _compilations(simulation: Simulation) -> Iterator[Finding]:
    trace = simulation.trace
    distinct = len({int(trace.records[row]["signature"]) for row in trace.select(records.LAUNCH)})
    if simulation.chip.jit_compile and distinct > 20:
        yield Finding(
            "NPU117", "just-in-time-compilation", Severity.WARNING,
            _("{n} kernels of different shapes were launched, and on this chip torch_npu compiles each just in time the first time.").format(n=distinct), None, "",
            _("Call torch.npu.set_compile_mode(jit_compile=False) at the start, keep shapes fixed, and warm up before timing."), kind=Kind.SIMULATED, details={"signatures": distinct},
        )


def _copies_of_layout(simulation: Simulation) -> Iterator[Finding]:
    """Copies that only make a tensor contiguous: same dtype and shape, other strides."""
    groups: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    trace = simulation.trace
    copies = {}
    for number in {int(trace.records[row]["signature"]) for row in trace.select(records.LAUNCH)}:
        s = trace.signature(number)
        if s.function == "aclnnInplaceCopy" and len(s.inputs) == 2 and s.inputs[0].dtype == s.inputs[1].dtype and not s.inputs[1].contiguous:
            copies[number] = s.inputs[0].bytes
    for row in trace.select(records.LAUNCH):
        number = int(trace.records[row]["signature"])
        if number in copies:
            e = trace.event(int(row))
            group = groups[(e.call or e.location, e.operator, e.phase)]
            group[0] += 1
            group[1] += copies[number]
    total = sum(size for _count, size in groups.values())
    for (place, operator, phase), (count, size) in sorted(groups.items(), key=lambda g: -g[1][1])[:5]:
        if size > 1 << 20:
            yield Finding(
                "NPU118", "layout-copy", Severity.INFO,
                _("{operator} ({phase}) copies {n} strided tensors, {size:.1f} MiB, only to make them contiguous.").format(
                    operator=operator, phase=_phase(phase), n=count, size=size / 2**20),
                place, "", _("Keep one layout through the block: permute once, or use an operator that takes the layout as it is (BSND or BSH attention)."),
                kind=Kind.SIMULATED, details={"count": count, "bytes": size, "share_of_copied_bytes": round(size / max(total, 1), 4)},
            )
