"""Target openvino: the CPU of this machine, and Intel's NPU or GPU where a driver for it is.

Options: precision 'int8' quantises; float 'f32' | 'f16' | 'bf16' is what the rest computes in (without it the plug-in chooses, and on
CPUs with AVX-512 BF16 or AMX it chooses bfloat16 by itself); calibration (.npz path) and ignored (positions, among the operators with weights, that stay in float) for int8; preset 'mixed'
for asymmetric activations; transformer (True) for NNCF's scheme for attention; nhwc (positions of inputs that come channels-last);
sizes (a shape for each input, to which open dims are fixed); threads, streams (int); hint 'LATENCY' | 'THROUGHPUT'.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift.errors import NpuliftError
from npulift.measured import Kind
from npulift.messages import _
from npulift.targets.base import Placed, Placement, Program, Target
from npulift.targets.calibration import read_calibration

if TYPE_CHECKING:
    import torch

    from npulift.capture import Capture
    from npulift.changes import Change, Variant
    from npulift.profile import Profile


class OpenVINO(Target):
    """OpenVINO's runtime; 'openvino' is its CPU device."""

    families = ("openvino",)
    load_only = frozenset({"threads", "streams", "hint", "float", "sizes"})
    reshapes = True

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """CPU, Intel NPU, Intel GPU."""
        return ("openvino", "openvino:NPU", "openvino:GPU")

    @property
    def device_name(self) -> str:
        """OpenVINO's name of the device."""
        return self.name.partition(":")[2].upper() or "CPU"

    @property
    def device(self) -> str:
        """The same; times are of this device."""
        return self.device_name

    def missing(self) -> str:
        """Whether the device is here."""
        try:
            import openvino as ov
        except ImportError:
            return _("openvino is not installed: pip install openvino")
        devices = ov.Core().available_devices
        if self.device_name in {d.partition(".")[0] for d in devices}:
            return ""
        found = ", ".join(devices)
        if self.device_name == "NPU":
            node = "/dev/accel" if os.path.exists("/dev/accel") else ""
            hint = _("the kernel sees an accelerator, but the user-space driver is missing") if node else _("the kernel sees no accelerator (/dev/accel)")
            return _("No Intel NPU here ({hint}; OpenVINO finds {found}). Install Intel's Linux NPU driver and add yourself to the group render.").format(
                hint=hint, found=found
            )
        if self.device_name == "GPU":
            return _("No Intel GPU here (OpenVINO finds {found}). Install Intel's compute runtime (intel-opencl-icd) and add yourself to the group render.").format(
                found=found
            )
        return _("OpenVINO has no device {device}; it finds {found}.").format(device=self.device_name, found=found)

    def compile(self, source: Path, options: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Convert, quantise where asked, write model.xml and model.bin."""
        import openvino as ov

        model = convert(source)
        for position in options.get("nhwc", ()):
            model = _channels_last(model, int(position))
        if options.get("precision") == "int8":
            model = _quantise(model, options)
        ov.save_model(model, str(folder / "model.xml"), compress_to_fp16=False)
        return {"openvino": ov.__version__, "operators": len(model.get_ops()), "quantisable": len(quantisable(model))}

    def load(self, folder: Path, options: dict[str, Any]) -> Program:
        """Read and compile for the device."""
        import openvino as ov

        core = ov.Core()
        model = core.read_model(str(folder / "model.xml"))
        if "sizes" in options:
            nhwc = {int(p) for p in options.get("nhwc", ())}
            shapes = [[s[0], *s[2:], s[1]] if i in nhwc else list(s) for i, s in enumerate(options["sizes"])]
            model.reshape({port: ov.PartialShape(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
        try:
            return OpenVINOProgram(core, model, self.device_name, _configuration(options), tuple(options.get("nhwc", ())))
        except RuntimeError as error:
            missing = self.missing()
            raise NpuliftError(missing or str(error).splitlines()[-1], exit_code=1) from error

    def placement(self, source: Path, options: dict[str, Any]) -> Placement | None:
        """The plug-in's own query_model, for each operator of the converted model."""
        import openvino as ov

        model = convert(source)
        supported = ov.Core().query_model(model, self.device_name)
        placed = []
        for op in model.get_ordered_ops():
            kind = op.get_type_name()
            if kind in ("Parameter", "Result", "Constant"):
                continue
            name = op.get_friendly_name()
            here = name in supported
            placed.append(Placed(name, kind, self.device_name if here else "-", here, reason="" if here else _("query_model does not list it")))
        return Placement(tuple(placed), "query_model")

    def changes(self, capture: Capture, variant: Variant) -> Iterator[Change]:
        """Precision, layout of the input, threads and streams."""
        from npulift.targets.host_changes import host_changes

        yield from host_changes(capture, variant, "openvino" if self.device_name == "CPU" else self.name)


def convert(source: Path) -> Any:
    """The OpenVINO model of a .pt2, with the input shapes that the program has (the converter drops bounds, and static sizes too)."""
    import openvino as ov
    import torch

    program = torch.export.load(source)
    model = ov.convert_model(program)
    shapes = input_shapes(program)
    for port, (name, shape) in zip(model.inputs, shapes, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
        port.get_node().set_partial_shape(ov.PartialShape([ov.Dimension(*s) if isinstance(s, tuple) else ov.Dimension(s) for s in shape]))
    model.validate_nodes_and_infer_types()
    return model


def default_float(device: str = "CPU") -> str:
    """What the plug-in computes floating point in when it is not told: 'f32', 'bf16' or 'f16'."""
    import openvino as ov

    kind = str(ov.Core().get_property(device, "INFERENCE_PRECISION_HINT"))
    return {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}.get(kind.strip("<>' ").rpartition("'")[2] or kind, kind)


def input_shapes(program: torch.export.ExportedProgram) -> list[tuple[str, list[int | tuple[int, int]]]]:
    """(name, sizes) of each tensor input; a size that varies is (low, high), high -1 when there is no bound."""
    import torch

    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    result = []
    for name in program.graph_signature.user_inputs:
        value = nodes[str(name)].meta.get("val") if str(name) in nodes else None
        if not isinstance(value, torch.Tensor):
            continue
        sizes: list[int | tuple[int, int]] = []
        for size in value.shape:
            if isinstance(size, int):
                sizes.append(size)
                continue
            bounds = program.range_constraints.get(size.node.expr)
            finite = bounds is not None and bounds.upper.is_finite and bounds.upper < 2**31
            sizes.append((int(bounds.lower) if bounds is not None else 0, int(bounds.upper) if finite else -1))
        result.append((str(name), sizes))
    return result


def _channels_last(model: Any, position: int) -> Any:
    """The model with this input in NHWC memory."""
    from openvino import Layout
    from openvino.preprocess import PrePostProcessor

    steps = PrePostProcessor(model)
    steps.input(position).tensor().set_layout(Layout("NHWC"))
    steps.input(position).model().set_layout(Layout("NCHW"))
    return steps.build()


def _quantise(model: Any, options: dict[str, Any]) -> Any:
    """Post-training quantisation by NNCF, with the calibration samples given; operators whose positions are in `ignored` stay in float."""
    import nncf

    samples = read_calibration(Path(options["calibration"]))
    nhwc = tuple(int(p) for p in options.get("nhwc", ()))
    data = [[_to_nhwc(v, i in nhwc) for i, v in enumerate(sample)] for sample in samples]
    scope = None
    if options.get("ignored"):
        names = quantisable(model)
        scope = nncf.IgnoredScope(names=[names[i] for i in options["ignored"] if i < len(names)])
    transformer = bool(options.get("transformer"))
    preset = nncf.QuantizationPreset.MIXED if transformer or options.get("preset") == "mixed" else nncf.QuantizationPreset.PERFORMANCE
    nncf.set_log_level(40)
    return nncf.quantize(
        model, nncf.Dataset(data), preset=preset, subset_size=len(data), ignored_scope=scope, fast_bias_correction=transformer,
        model_type=nncf.ModelType.TRANSFORMER if transformer else None,
    )


def quantisable(model: Any) -> list[str]:
    """Friendly names of the operators with weights or two operands to multiply, in topological order: what `ignored` counts."""
    kinds = ("Convolution", "GroupConvolution", "MatMul", "ConvolutionBackpropData", "GroupConvolutionBackpropData")
    return [op.get_friendly_name() for op in model.get_ordered_ops() if op.get_type_name() in kinds]


def _configuration(options: dict[str, Any]) -> dict[str, Any]:
    configuration: dict[str, Any] = {"PERFORMANCE_HINT": options.get("hint", "LATENCY")}
    if "float" in options:
        configuration["INFERENCE_PRECISION_HINT"] = str(options["float"])
    if "threads" in options:
        configuration["INFERENCE_NUM_THREADS"] = int(options["threads"])
    if "streams" in options:
        configuration["NUM_STREAMS"] = str(options["streams"])
    return configuration


def _to_nhwc(value: np.ndarray[Any, Any], wanted: bool) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(np.moveaxis(value, 1, -1)) if wanted else value


class OpenVINOProgram(Program):
    """A compiled model with one request for latency, and a queue of requests for throughput."""

    def __init__(self, core: Any, model: Any, device: str, configuration: dict[str, Any], nhwc: tuple[int, ...]) -> None:
        self._core, self._model, self._configuration = core, model, configuration
        self._compiled = core.compile_model(model, device, configuration)
        self._request = self._compiled.create_infer_request()
        self._nhwc = frozenset(int(p) for p in nhwc)
        self.device = device

    def _feed(self, inputs: tuple[np.ndarray[Any, Any], ...]) -> list[np.ndarray[Any, Any]]:
        if not self._nhwc:
            return list(inputs)
        return [_to_nhwc(v, i in self._nhwc) for i, v in enumerate(inputs)]  # free for arrays that are channels-last in memory

    def __call__(self, *inputs: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Run once; the arrays returned are copies."""
        results = self._request.infer(self._feed(inputs), share_inputs=True)
        return tuple(np.array(results[i]) for i in range(len(self._compiled.outputs)))

    def throughput(self, inputs: tuple[np.ndarray[Any, Any], ...], seconds: float) -> float:
        """Inferences a second with the optimal number of requests in flight."""
        import openvino as ov

        queue = ov.AsyncInferQueue(self._compiled)
        feed = self._feed(inputs)
        for _warm in range(len(queue)):
            queue.start_async(feed, share_inputs=True)
        queue.wait_all()
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            queue.start_async(feed, share_inputs=True)
            count += 1
        queue.wait_all()
        return count / (time.perf_counter() - start)

    def profile(self, inputs: tuple[np.ndarray[Any, Any], ...], runs: int) -> Profile | None:
        """OpenVINO's own counters: a row an operator and run that took time."""
        from npulift.profile import Profile

        compiled = self._core.compile_model(self._model, self.device, {**self._configuration, "PERF_COUNT": True})
        request = compiled.create_infer_request()
        feed = self._feed(inputs)
        for _warm in range(3):
            request.infer(feed)
        rows = []
        for step in range(runs):
            request.infer(feed)
            clock = 0
            for info in request.profiling_info:
                duration = int(info.real_time.total_seconds() * 1e9)
                if duration <= 0:
                    continue
                rows.append({
                    "name": info.node_name, "type": info.node_type, "category": "kernel", "device": self.device, "start_ns": clock,
                    "duration_ns": duration, "step": step, "metrics": f'{{"exec_type": "{info.exec_type}"}}',
                })
                clock += duration
        return Profile.from_rows(rows, Kind.MEASURED, "openvino counters", meta={"device": self.device, "runs": runs})
