"""Target qnn: Qualcomm's Hexagon NPU through ONNX Runtime's provider, compiled and simulated here, or run on a Snapdragon.

Name: `qnn` (the default SoC of socs.toml), `qnn:60`, `qnn:snapdragon-8-gen-3`, `qnn:sm8650`.
Options: soc (another than the name's); precision 'float' (fp16 on the chip) | 'int8' | 'int16' (16-bit activations, 8-bit weights), with
calibration (.npz path; without it the program's example inputs) and ignored (positions among the operators with weights that stay in
float); attention 'whole' | 'per-head' | 'blocks' | 'exporter', block (queries); erf 'native' | 'exponential' | 'all';
finalize '1' | '2' | '3'; split (bool).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift.errors import NpuliftError
from npulift.findings import Finding, Severity
from npulift.measured import Kind
from npulift.messages import _
from npulift.targets.base import Placement, Program, Score, Target
from npulift.targets.calibration import read_calibration
from npulift.targets.qnn import socs

if TYPE_CHECKING:
    import torch

    from npulift.capture import Capture
    from npulift.changes import Change, Variant
    from npulift.targets.qnn.ways_out import Outcome

SOURCE = "the compiler's own assignment of nodes"
_placements: dict[str, Placement] = {}


class Qnn(Target):
    """Qualcomm Hexagon (HTP)."""

    families = ("qnn",)
    run_kind = Kind.SIMULATED

    def __init__(self, name: str) -> None:
        super().__init__(name)
        wanted = name.partition(":")[2]
        self.soc = socs.find(wanted) if wanted else socs.default()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The default, then chips by trade name."""
        return ("qnn", *(f"qnn:{s.name}" for s in socs.known() if s.name))

    @classmethod
    def accepts(cls, name: str) -> bool:
        """'qnn' and 'qnn:SOC'."""
        return name == "qnn" or name.startswith("qnn:")

    @property
    def device(self) -> str:
        """The chip."""
        return f"Hexagon NPU of {self.soc.label}"

    def missing(self) -> str:
        """Whether the provider is here."""
        try:
            import onnxruntime
            import onnxruntime_qnn  # noqa: F401
        except ImportError:
            return _("onnxruntime-qnn is not installed: pip install 'npulift[qnn]'")
        if not hasattr(onnxruntime, "register_execution_provider_library"):
            return _("onnxruntime {version} cannot load provider plug-ins: pip install -U onnxruntime").format(version=onnxruntime.__version__)
        return ""

    def compile(self, source: Path, options: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Compile, by a way out where the compiler stops; compare one simulated inference with the CPU.

        Raises NpuliftError for dynamic dims (before the compiler is called), when nothing compiles, when nothing lands on the NPU, and when
        the program's values are not the CPU's.
        """
        outcome, program = self._compile(source, options, folder)
        build = outcome.build
        from npulift.targets.qnn.program import worth_simulating
        from npulift.targets.qnn.telling import findings_of, notes_of
        from npulift.targets.qnn.wrong_values import compare_with_cpu

        found = findings_of(outcome)
        deviation = None
        if not any(p.accelerated for p in build.placed):
            reasons = "; ".join(sorted({f"{p.operator}: {p.reason}" for p in build.placed if p.reason})[:3])
            raise NpuliftError(_("qnn: the compiler takes no operator of this model. {reasons}").format(reasons=reasons), exit_code=1)
        if worth_simulating(build):
            compared, wrong = compare_with_cpu(build, _example(program))
            if wrong:
                raise NpuliftError("qnn: " + wrong[0].message, exit_code=1)
            deviation = {d.output: {"relative": d.relative, "cosine": round(d.cosine, 6)} for d in compared}
        self._remember(source, options, self._placement(outcome, found))
        import onnxruntime_qnn

        return {
            "soc": build.attempt.soc.number, "soc_name": build.attempt.soc.label, "precision": build.attempt.precision,
            "onnxruntime_qnn": getattr(onnxruntime_qnn, "__version__", ""), "quantisable": build.prepared.quantisable,
            "npu_operators": sum(p.accelerated for p in build.placed), "cpu_operators": sum(not p.accelerated for p in build.placed),
            "simulated_against_cpu": deviation, "notes": notes_of(outcome), "findings": [f.as_json() for f in found],
        }

    def load(self, folder: Path, options: dict[str, Any]) -> Program:
        """Open the context binary for the simulator, or the NPU of this machine."""
        from npulift.targets.qnn.program import QnnProgram

        return QnnProgram(folder)

    def placement(self, source: Path, options: dict[str, Any]) -> Placement | None:
        """The compiler's own word on each node, with findings: what it refuses and why, islands, and values that come out wrong."""
        known = _placements.get(self._key(source, options))
        if known is not None:
            return known
        if dynamic_inputs(_load(source)):
            return None  # findings() says so; the compiler would silently put everything on the CPU
        from npulift.targets.qnn.program import worth_simulating
        from npulift.targets.qnn.telling import findings_of
        from npulift.targets.qnn.wrong_values import compare_with_cpu

        with tempfile.TemporaryDirectory() as folder:
            outcome, program = self._compile(source, options, Path(folder))
            found = findings_of(outcome)
            if any(p.accelerated for p in outcome.build.placed) and worth_simulating(outcome.build):
                found += compare_with_cpu(outcome.build, _example(program))[1]
            placement = self._placement(outcome, found)
        self._remember(source, options, placement)
        return placement

    def score(self, folder: Path) -> Score | None:
        """From the compiler's schematic; see scoring.py for what it is and is not."""
        from npulift.targets.qnn.building import RECORD
        from npulift.targets.qnn.scoring import score_of

        try:
            return score_of(json.loads((folder / RECORD).read_text(encoding="utf-8"))["score"])
        except (OSError, ValueError, KeyError):
            return None

    def baselines(self) -> dict[str, dict[str, Any]]:
        """torch.onnx's own form, which one would convert by hand."""
        return {"torch.onnx": {"attention": "exporter"}}

    def changes(self, capture: Capture, variant: Variant) -> Iterator[Change]:
        """Forms of the graph, precision and the compiler's optimisation."""
        from npulift.targets.qnn.changes import qnn_changes

        yield from qnn_changes(capture, variant)

    def findings(self, capture: Capture) -> Iterator[Finding]:
        """Before anything is compiled: dynamic dims, a chip without float, operators that other Qualcomm tools trip over."""
        for position, axes in capture.spec.dynamic_dims.items():
            for axis, dim in axes.items():
                yield Finding(
                    "NPU703", "dynamic-dim", Severity.ERROR,
                    _("Axis {axis} of input {position} ({name}) varies. The compiler needs fixed sizes; ONNX Runtime would not fail, but silently run the "
                      "whole model on the CPU.").format(axis=axis, position=position, name=dim.name),
                    fix=_("Compile fixed sizes (npulift compile --bucket), or drop the dim from dynamic_dims and pad inputs to the example's size."),
                    details={"input": position, "axis": axis, "dim": dim.name},
                )
        if self.soc.takes_float == "no-convolution":
            yield Finding(
                "NPU708", "no-float-convolution", Severity.INFO,
                _("The compiler takes no float convolutions for {soc}; models with convolutions run on its NPU only quantised.").format(soc=self.soc.label),
                fix=_("npulift quantises by itself there (16-bit activations, else 8); give calibration data."), details={"soc": self.soc.number},
            )
        if self.soc.number == 0:
            yield Finding(
                "NPU709", "no-soc-named", Severity.WARNING,
                _("No SoC is named (number 0): the compiler then assumes an old chip, on which float transformers fail with error 1002."),
                fix=_("Name the chip: qnn:{soc}, for instance.").format(soc=socs.default().name),
            )

    # --- internals ---------------------------------------------------------------------------------------------------------

    def _attempt(self, options: dict[str, Any]) -> Any:
        from npulift.targets.qnn.building import Attempt

        soc = socs.find(str(options["soc"])) if options.get("soc") not in (None, "") else self.soc
        precision = str(options.get("precision", "float"))
        if precision not in ("float", "int8", "int16"):
            raise NpuliftError(_("qnn: there is no precision {precision}; there are float (fp16 on the chip), int8 and int16.").format(precision=precision))
        attention = str(options.get("attention", "whole"))
        if attention not in ("whole", "per-head", "blocks", "exporter"):
            raise NpuliftError(_("qnn: there is no form of attention {form}; there are whole, per-head, blocks and exporter.").format(form=attention))
        return Attempt(
            soc, attention, int(options.get("block", 128)), precision, tuple(int(i) for i in options.get("ignored", ())), str(options.get("finalize", "")),
            str(options.get("erf", "native")), bool(options.get("split", False)),
        )

    def _compile(self, source: Path, options: dict[str, Any], folder: Path) -> tuple[Outcome, torch.export.ExportedProgram]:
        from npulift.targets.qnn.ways_out import compile_somehow

        program = _load(source)
        varying = dynamic_inputs(program)
        if varying:
            raise NpuliftError(
                _("qnn: {inputs} vary. The compiler needs fixed sizes, and ONNX Runtime would silently run the whole model on the CPU. "
                  "Compile fixed sizes (npulift compile --bucket), or drop the dynamic dims.").format(inputs=", ".join(varying)), exit_code=1)
        calibration = options.get("calibration")
        samples = read_calibration(Path(calibration)) if calibration else [_example(program)]
        return compile_somehow(program, self._attempt(options), folder, samples), program

    @staticmethod
    def _placement(outcome: Outcome, found: list[Finding]) -> Placement:
        build = outcome.build
        return Placement(tuple(build.placed), SOURCE, build.crossings, build.inserted_transposes, tuple(found))

    def _key(self, source: Path, options: dict[str, Any]) -> str:
        facts = {k: v for k, v in options.items() if k != "calibration"}
        stat = source.stat()
        return hashlib.sha256(json.dumps([str(source.resolve()), stat.st_mtime_ns, stat.st_size, self.name, facts], sort_keys=True).encode()).hexdigest()

    def _remember(self, source: Path, options: dict[str, Any], placement: Placement) -> None:
        _placements[self._key(source, options)] = placement


_loaded: dict[tuple[str, int, int], torch.export.ExportedProgram] = {}


def _load(source: Path) -> torch.export.ExportedProgram:
    """The .pt2; the last one stays loaded, since trials compile one source many times."""
    import torch

    stat = source.stat()
    key = (str(source.resolve()), stat.st_mtime_ns, stat.st_size)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = torch.export.load(source)
    return _loaded[key]


def dynamic_inputs(program: torch.export.ExportedProgram) -> list[str]:
    """'name axis i' for each size of an input that varies."""
    import torch

    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    found = []
    for name in program.graph_signature.user_inputs:
        value = nodes[str(name)].meta.get("val") if str(name) in nodes else None
        if isinstance(value, torch.Tensor):
            found += [_("{name} axis {axis}").format(name=name, axis=axis) for axis, size in enumerate(value.shape) if not isinstance(size, int)]
    return found


def _example(program: torch.export.ExportedProgram) -> list[np.ndarray[Any, Any]]:
    """The program's example inputs, or random ones of their shapes where it has none."""
    import torch
    from torch.utils._pytree import tree_leaves

    if program.example_inputs is not None:
        found = [v.detach().cpu().contiguous().numpy() for v in tree_leaves(program.example_inputs) if isinstance(v, torch.Tensor)]
        if found:
            return found
    generator = torch.Generator().manual_seed(0)
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    values = [nodes[str(name)].meta["val"] for name in program.graph_signature.user_inputs if str(name) in nodes]
    return [
        (torch.randn(v.shape, generator=generator) if v.is_floating_point() else torch.zeros(v.shape)).to(v.dtype).numpy()
        for v in values if isinstance(v, torch.Tensor)
    ]
