"""Make a Capture: export the model, and watch one eager pass below autograd."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from npulift import graphs
from npulift.capture import Capture, DataDependence, Op, Tensor
from npulift.errors import NpuliftError
from npulift.findings import Location
from npulift.messages import _
from npulift.model import ModelSpec

# Operators that hand a value of a tensor to Python, and operators whose output size depends on data.
VALUE_READERS = {"aten::_local_scalar_dense": "value", "aten::is_nonzero": "branch", "aten::equal": "branch", "aten::item": "value"}
DATA_SIZED = {
    "aten::nonzero", "aten::masked_select", "aten::unique_consecutive", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::repeat_interleave", "aten::bincount", "aten::nonzero_numpy", "aten::argwhere", "aten::histc_auto", "torchvision::nms",
}


def capture(spec: ModelSpec, *, export: bool = True, eager: bool = True) -> Capture:
    """See the model twice. Neither view failing stops the other; what failed is told in the capture.

    On the meta device (or under fake tensors) sizes are no limit: no data is touched.
    Raises NpuliftError when the module cannot even be called with its example inputs.
    """
    exported, export_error, draft = None, "", False
    spots: list[DataDependence] = []
    if export:
        exported, export_error, draft, spots = _export(spec)
    eager_ops: tuple[Op, ...] = ()
    eager_error = ""
    device = next((t.device.type for t in (*spec.tensors, *spec.module.parameters())), "cpu")
    if eager:
        eager_ops, eager_error, seen = _eager(spec)
        spots = _merge(spots, seen)
        if eager_error and exported is None and not export_error.startswith("draft"):
            raise NpuliftError(
                _("{model} cannot be called with its example inputs: {error}").format(model=spec.name or type(spec.module).__name__, error=eager_error)
            )
    ops = tuple(exported_ops(exported)) if exported is not None else ()
    for op in ops:
        kind = _data_sized(op)
        if kind:
            spots = _merge(spots, [DataDependence(kind, op.location, op.name, op.name, op.module)])
    return Capture(spec, exported, export_error, ops, eager_ops, eager_error, tuple(spots), device, draft)


def _data_sized(op: Op) -> str:
    if op.base in DATA_SIZED and any(isinstance(s, str) for o in op.outputs for s in o.shape):
        return "size"
    if op.base in VALUE_READERS:
        return VALUE_READERS[op.base]
    if op.base == "aten::index" and any(i.dtype == "bool" for i in op.inputs[1:]):
        return "size"
    return ""


def _merge(spots: list[DataDependence], more: list[DataDependence]) -> list[DataDependence]:
    seen = {(s.location and (s.location.file, s.location.line), s.kind) for s in spots}
    for spot in more:
        key = (spot.location and (spot.location.file, spot.location.line), spot.kind)
        if key not in seen:
            seen.add(key)
            spots.append(spot)
    return spots


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # torch prints the graph of a failed export there
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _export(spec: ModelSpec) -> tuple[torch.export.ExportedProgram | None, str, bool, list[DataDependence]]:
    try:
        with _quiet():
            return graphs.export(spec), "", False, []
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    try:
        with _quiet(), torch.no_grad():
            program: Any = torch.export.draft_export(spec.module, tuple(spec.inputs), dynamic_shapes=graphs.dynamic_shapes(spec), strict=False)
        spots = [s for f in program._report.failures for s in _failure(f)]
        return program, reason, True, spots
    except Exception as error:
        return None, f"{reason}\ndraft_export: {type(error).__name__}: {error}", False, _spots_in(reason)


def _failure(failure: Any) -> Iterator[DataDependence]:
    kind = failure.failure_type.name
    if "DATA_DEPENDENT" not in kind and "GUARD" not in kind:
        return
    stack = failure.data.get("user_stack") or failure.data.get("stack") or []
    location = _location_of_summary(stack)
    yield DataDependence("branch", location, "", str(failure.data.get("expr", "")))


def _location_of_summary(stack: Any) -> Location | None:
    frames = []
    for frame in stack:
        if isinstance(frame, dict):
            from torch._logging.structured import INTERN_TABLE

            names: dict[Any, str] = {index: text for text, index in INTERN_TABLE.items()}
            name = frame.get("filename")
            frames.append((names.get(name, str(name)), int(frame.get("line", 0)), frame.get("name", "")))
        else:
            frames.append((frame.filename, frame.lineno, frame.name))
    return graphs.pick_lines(frames)[0]


def _spots_in(reason: str) -> list[DataDependence]:
    if "data-dependent" not in reason.lower() and "DataDependent" not in reason:
        return []
    frames = [(f, int(line), fn) for f, line, fn in re.findall(r'File "([^"]+)", line (\d+), in (\S+)', reason)]
    location = graphs.pick_lines(frames)[0] if frames else None
    expression = re.search(r"expression ([^\n(]+)", reason)
    return [DataDependence("branch", location, "", expression.group(1).strip() if expression else "")]


# --- the exported graph -----------------------------------------------------------------------------------------------------


def exported_ops(program: torch.export.ExportedProgram) -> Iterator[Op]:
    costs: dict[Any, tuple[int | None, int | None, int | None]] = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is graphs.GETITEM:
            continue
        if not isinstance(node.target, torch._ops.OperatorBase):
            continue
        args = [n.meta.get("val") for n in node.all_input_nodes]
        inputs = tuple(describe(v) for v in args if isinstance(v, torch.Tensor))
        outputs = tuple(describe(v) for v in tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor))
        scalars = _scalars(node.target, node.args, node.kwargs)
        key = (node.target, inputs, outputs, tuple(scalars.items()))
        if key not in costs:
            costs[key] = _cost(node.target, args, node, inputs, outputs)
        location, call = graphs.node_lines(node)
        yield Op(graphs.operator_name(node.target), inputs, outputs, *costs[key], location, call, graphs.node_module(node), "export", node.name, scalars)


def _cost(target: Any, values: list[Any], node: Any, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> tuple[int | None, int | None, int | None]:
    if any(t.numel is None for t in (*inputs, *outputs)):
        return None, None, None
    if _keeps(target, inputs, outputs):
        return 0, 0, 0
    read, written = traffic(target, values, tree_leaves(node.meta.get("val")))
    fake = next((v.fake_mode for v in values if isinstance(v, torch._subclasses.FakeTensor)), None)
    flops = None
    if fake is not None and isinstance(target, torch._ops.OpOverload) and not _is_view(target):
        counter = FlopCounterMode(display=False)
        try:
            with fake, counter, torch.no_grad():
                target(*torch.fx.node.map_arg(node.args, lambda n: n.meta["val"]), **torch.fx.node.map_arg(node.kwargs, lambda n: n.meta["val"]))
            flops = counter.get_total_flops()
        except Exception:  # any operator may refuse fake inputs; its element count is the answer then
            flops = None
    return flops or elementwise_flops(target, outputs), read, written


# Composite operators whose schema says that they may return a view: whether they do depends on what they are given.
_MAYBE_VIEWS = {"aten::to", "aten::contiguous", "aten::reshape", "aten::flatten", "aten::type_as", "aten::float", "aten::dropout"}


def _keeps(target: Any, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> bool:
    """True for an operator that may be a view and, by its dtypes and layouts, is one here."""
    if graphs.operator_name(target).partition(".")[0] not in _MAYBE_VIEWS or not inputs or not outputs:
        return False
    return inputs[0].dtype == outputs[0].dtype and inputs[0].layout == outputs[0].layout != "strided"


def _is_view(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    if schema is None or graphs.operator_name(target).partition(".")[0] in _MAYBE_VIEWS:
        return False
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns) or target.is_view


def elementwise_flops(target: Any, outputs: tuple[Tensor, ...]) -> int:
    """One operation an output element; 0 for a view."""
    return 0 if _is_view(target) else sum(o.numel or 0 for o in outputs)


def traffic(target: Any, inputs: list[Any], outputs: list[Any]) -> tuple[int, int]:
    """Bytes read and written when each operand is moved once; an expanded operand counts its storage only. 0, 0 for a view."""
    if _is_view(target):
        return 0, 0
    return sum(_bytes(v) for v in inputs if isinstance(v, torch.Tensor)), sum(_bytes(v) for v in outputs if isinstance(v, torch.Tensor))


def _bytes(tensor: torch.Tensor) -> int:
    n = 1
    for size, stride in zip(tensor.shape, _strides(tensor), strict=True):
        n *= 1 if stride == 0 else int(size)
    return n * tensor.element_size()


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride()) if tensor.layout is torch.strided else (1,) * tensor.ndim


def describe(tensor: torch.Tensor) -> Tensor:
    """The Tensor record of a tensor, fake or real."""
    sizes = tuple(s if isinstance(s, int) else str(s) for s in tensor.shape)
    return Tensor(sizes, str(tensor.dtype).removeprefix("torch."), layout_of(tensor))


def layout_of(tensor: torch.Tensor) -> str:
    """'contiguous', 'channels_last' or 'strided', by the strides."""
    if tensor.layout is not torch.strided or any(not isinstance(s, int) for s in tensor.shape) or tensor.is_contiguous():
        return "contiguous"
    if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return "channels_last"
    if tensor.ndim == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        return "channels_last"
    return "strided"


def _scalars(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {}
    named = {a.name: v for a, v in zip(schema.arguments, args, strict=False)} | kwargs
    return {k: str(v) for k, v in named.items() if not any(isinstance(x, torch.Tensor | torch.fx.Node) for x in tree_leaves(v))}


# --- the eager pass ---------------------------------------------------------------------------------------------------------


class DispatchRecorder(TorchDispatchMode):
    """Records every operator that reaches the dispatcher below autograd, with the user's line and module path."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.spots: list[DataDependence] = []
        self._names = {id(m): n for n, m in module.named_modules()}
        self._stack: list[str] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> DispatchRecorder:
        hooks = torch.nn.modules.module
        self._hooks = [
            hooks.register_module_forward_pre_hook(lambda m, _args: self._stack.append(self._names.get(id(m), ""))),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        super().__enter__()
        return self

    def _leave(self, _module: Any, _args: Any, _out: Any) -> None:
        self._stack.pop()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        frames = []
        frame: Any = sys._getframe(1)
        while frame is not None:
            frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        location, call = graphs.pick_lines(self._below_us(frames))
        self._record(func, args, kwargs, out, location, call)
        return out

    @staticmethod
    def _below_us(frames: list[tuple[str, int, str]]) -> list[tuple[str, int, str]]:
        """Frames inside the model's own call, outermost first: what called npulift is not the model's source."""
        inner: list[tuple[str, int, str]] = []
        for frame in frames:
            if frame[2] == "_eager" and frame[0] == __file__:
                break
            inner.append(frame)
        return inner[::-1]

    def _record(self, func: Any, args: Any, kwargs: Any, out: Any, location: Location | None, call: Location | None) -> None:
        values = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        results = [v for v in tree_leaves(out) if isinstance(v, torch.Tensor)]
        inputs, outputs = tuple(map(describe, values)), tuple(map(describe, results))
        module = self._stack[-1] if self._stack else ""
        name = graphs.operator_name(func)
        base = name.partition(".")[0]
        if base in VALUE_READERS:
            self.spots.append(DataDependence(VALUE_READERS[base], location, name, name, module))
        elif base in DATA_SIZED or (base == "aten::index" and any(i.dtype in ("bool", "uint8") for i in inputs[1:])):
            self.spots.append(DataDependence("size", location, name, name, module))
        flops: int | None = None
        counter = flop_registry.get(func._overloadpacket)
        if counter is not None:
            try:
                flops = int(counter(*args, **kwargs, out_val=out))
            except (TypeError, ValueError, RuntimeError, AssertionError):
                flops = None
        read, written = traffic(func, values, results)
        if flops is None:
            flops = elementwise_flops(func, outputs)
        self.ops.append(Op(name, inputs, outputs, flops, read, written, location, call, module, "eager", "", _scalars(func, args, kwargs)))


def _eager(spec: ModelSpec) -> tuple[tuple[Op, ...], str, list[DataDependence]]:
    recorder = DispatchRecorder(spec.module)
    training = {m: m.training for m in spec.module.modules()}
    saved = {k: v.clone() for k, v in spec.module.named_buffers()} if any(training.values()) else {}
    error = ""
    try:
        with _quiet(), torch.no_grad(), recorder:
            spec.module(*spec.inputs)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}".splitlines()[0]
    finally:
        with torch.no_grad():
            for name, value in saved.items():  # a pass in train mode moves batch statistics; the user's module stays as it was
                spec.module.get_buffer(name).copy_(value)
    return tuple(recorder.ops), error, recorder.spots
