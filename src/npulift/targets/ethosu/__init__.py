"""Target ethos-u: Arm's U55, U65 and U85 through executorch and Vela. No hardware is needed, and none was tried.

Options: precision 'int8' (default) | 'int16' (16-bit activations, 8-bit weights); calibration (.npz path); nhwc (positions of inputs that come
channels-last); system_config, memory_mode (Vela's names). Values: the quantised graph run by PyTorch, which the TOSA reference model is compared with when it is
compiled (kind: simulated). Times: Vela's own estimate (kind: vendor estimate); operators left on the CPU have no figure and are counted instead.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift.changes import Change, Variant
from npulift.findings import Finding, Location, Severity
from npulift.measured import Kind
from npulift.messages import _
from npulift.targets.base import Placed, Placement, Program, Score, Target
from npulift.targets.ethosu.accelerators import accelerator, names

if TYPE_CHECKING:
    from npulift.capture import Capture
    from npulift.profile import Profile


class EthosU(Target):
    """Arm Ethos-U."""

    families = ("ethos-u",)
    run_kind = Kind.SIMULATED
    calibrates = True

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Every accelerator that Vela knows."""
        return names()

    @classmethod
    def accepts(cls, name: str) -> bool:
        """'ethos-u85-256' and kin; also names that do not exist, which get the list."""
        return name.startswith("ethos-u")

    def __init__(self, name: str) -> None:
        super().__init__("ethos-u85-256" if name == "ethos-u" else name)
        accelerator(self.name, {})

    def missing(self) -> str:
        """Whether executorch's Arm back end and Vela are here."""
        for module in ("executorch", "ethosu", "tosa_reference_model"):
            if importlib.util.find_spec(module) is None:
                return _("executorch with its Arm back end is not installed: pip install 'npulift[ethos-u]'")
        return ""

    def compile(self, source: Path, options: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Quantise, lower, keep model.pte and the quantised graph. Raises NpuliftError when nothing was delegated."""
        from npulift.errors import NpuliftError
        from npulift.targets.ethosu import lowering

        found = lowering.lowered(source, accelerator(self.name, options), options)
        report = lowering.report(found)
        if not report["subgraphs"]:
            reasons = sorted({o["reason"] for o in report["outside"] if o["reason"]})
            raise NpuliftError(_("Nothing was delegated to {target}: {reasons}").format(target=self.name, reasons="; ".join(reasons) or "-"), exit_code=1)
        lowering.copy_to(found, folder)
        return {"subgraphs": report["subgraphs"], "on_cpu": len(report["outside"]), "reference": report["reference"], "notes": self._notes(report)}

    def load(self, folder: Path, options: dict[str, Any]) -> Program:
        """The quantised graph, run by PyTorch."""
        return QuantisedProgram(folder)

    def placement(self, source: Path, options: dict[str, Any]) -> Placement | None:
        """What the partitioner delegated, and why it refused the rest."""
        from npulift.targets.ethosu import lowering

        report = lowering.report(lowering.lowered(source, accelerator(self.name, options), options))
        placed = [Placed(f"{kind}_{i}", kind, "NPU", True) for kind, count in report["delegated"].items() for i in range(count)]
        findings = []
        for entry in report["outside"]:
            op = _op(entry)
            placed.append(Placed(entry["node"], entry["operator"], "CPU", False, op, entry["reason"]))
            findings.append(Finding(
                "NPU720", "not-delegated", Severity.WARNING,
                _("{operator} stays on the CPU ({reason}) with the installed executorch; data crosses over before and after it.").format(
                    operator=entry["operator"], reason=entry["reason"] or _("no reason given")),
                op.location, entry["module"], _("npulift tune tries forms that the NPU takes; see npulift explain for the rewrites of this operator."),
                details={"operator": entry["operator"], "reason": entry["reason"], "node": entry["node"]}))
        return Placement(tuple(placed), "executorch's Arm partitioner", max(0, 2 * report["subgraphs"] - 2) if report["outside"] else 0,
                         sum(row["NNG Operator"] == "Transpose" for row in report["layers"]), tuple(findings))

    def score(self, folder: Path) -> Score | None:
        """Vela's estimate: seconds an inference on the NPU, all delegated graphs one after another."""
        from npulift.targets.ethosu import lowering

        report = lowering.report(folder)
        parts = report["parts"]
        cycles = sum(p["cycles_total"] for p in parts)
        transposes = sum(float(row["Op Cycles"]) for row in report["layers"] if row["NNG Operator"] == "Transpose")
        return Score(sum(p["cycles_total"] / p["core_clock"] for p in parts), "s", Kind.VENDOR_ESTIMATE, {
            "cycles": int(cycles), "transpose_cycles": int(transposes), "sram_kib": round(max((p["sram_memory_used"] for p in parts), default=0.0), 1),
            "flash_kib": round(sum(p["on_chip_flash_memory_used"] + p["off_chip_flash_memory_used"] for p in parts), 1),
            "graphs": len(parts), "operators_on_cpu_without_a_figure": len(report["outside"]), "system_config": report["system_config"], "memory_mode": report["memory_mode"],
        })

    def changes(self, capture: Capture, variant: Variant) -> Iterator[Change]:
        """Channels-last input, and 16-bit activations."""
        nhwc = [i for i, t in enumerate(capture.spec.tensors) if t.ndim == 4]
        if nhwc:
            finding = Finding(
                "NPU721", "channels-last-input", Severity.INFO,
                _("The input comes channels-first, so the NPU, which wants NHWC, transposes it first."), None, "",
                _("Export with a channels-last example: x = x.to(memory_format=torch.channels_last); the shapes in Python stay the same."))
            yield Change("channels-last-input", _("Take images channels-last, so that the transpose at the border goes."), 0.15, partial(_set, nhwc=nhwc), finding=finding)
        yield Change("int16", _("16-bit activations, for accuracy."), -0.5, partial(_set, precision="int16"), exact=False)

    def findings(self, capture: Capture) -> Iterator[Finding]:
        """Sizes that vary, before anything is lowered."""
        for position, axes in capture.spec.dynamic_dims.items():
            for axis, dim in axes.items():
                yield Finding(
                    "NPU722", "fixed-sizes-only", Severity.ERROR,
                    _("Ethos-U takes fixed sizes only, and axis {axis} of input {position} ({name}) varies: nothing would be delegated, without an error.").format(
                        axis=axis, position=position, name=dim.name),
                    fix=_("Compile the sizes that you need: npulift compile --bucket."), details={"input": position, "axis": axis, "dim": dim.name})

    def _notes(self, report: dict[str, Any]) -> list[str]:
        notes = []
        if report["outside"]:
            kinds = ", ".join(sorted({o["operator"] for o in report["outside"]}))
            notes.append(_("{n} operators stay on the CPU ({kinds}); Vela's time does not count them.").format(n=len(report["outside"]), kinds=kinds))
        reference = report["reference"]
        if reference and reference["ran"]:
            notes.append(_("The TOSA reference model agrees with the quantised graph to {codes:.2f} codes on a calibration sample.").format(codes=reference["codes_off"]))
        elif reference:
            notes.append(_("The TOSA reference model could not be run on this graph ({error}).").format(error=reference["error"]))
        return notes


def _set(variant: Variant, **options: Any) -> Variant:
    return variant.with_options(**options)


def _op(entry: dict[str, Any]) -> Any:
    from npulift.capture import Op

    location = Location(entry["file"], entry["line"]) if entry["file"] else None
    return Op(entry["operator"], (), (), None, None, None, location, location, entry["module"], "export", entry["node"])


class QuantisedProgram(Program):
    """The quantised graph on this machine's CPU: the values that the NPU is to give."""

    device = "PyTorch (simulated)"

    def __init__(self, folder: Path) -> None:
        import torch
        from torchao.quantization.pt2e import quantize_pt2e  # noqa: F401 - registers the operators of the graph

        self._folder = folder
        self._module = torch.export.load(folder / "quantised.pt2").module(check_guards=False)

    def __call__(self, *inputs: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Run once."""
        import torch
        from torch.utils._pytree import tree_leaves

        with torch.no_grad():
            out = self._module(*[torch.from_numpy(np.ascontiguousarray(i)) for i in inputs])
        return tuple(v.numpy() for v in tree_leaves(out) if isinstance(v, torch.Tensor))

    def profile(self, inputs: tuple[np.ndarray[Any, Any], ...], runs: int) -> Profile | None:
        """Vela's cycles by operator, one run (kind: vendor estimate)."""
        from npulift.profile import Profile
        from npulift.targets.ethosu import lowering

        report = lowering.report(self._folder)
        rows, clock = [], 0
        for row in report["layers"]:
            hertz = report["parts"][row["graph"]]["core_clock"]
            duration = int(float(row["Op Cycles"]) / hertz * 1e9)
            rows.append({"name": row["Name"], "type": row["NNG Operator"], "category": "kernel", "device": row["Target"], "start_ns": clock, "duration_ns": duration,
                         "cycles": int(float(row["Op Cycles"])), "bytes": int(float(row["SRAM AC"]) + float(row["DRAM AC"]))})
            clock += duration
        return Profile.from_rows(rows, Kind.VENDOR_ESTIMATE, "Vela", meta={"device": report["accelerator"], "runs": 1})
