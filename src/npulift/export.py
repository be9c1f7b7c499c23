"""export: a clean ONNX file with named inputs and outputs, dynamic axes with ranges, and a numerical check against eager."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npulift import graphs
from npulift.errors import NpuliftError
from npulift.files import atomic_file
from npulift.findings import Finding, Severity
from npulift.loading import load_model
from npulift.messages import _
from npulift.model import ModelSpec
from npulift.onnx_export import FORMS, export_onnx
from npulift.report.document import Facts, Report, Table
from npulift.tracing import exported_ops
from npulift.verify import arrays

TOLERANCE = 1e-3  # relative to the largest output: another order of additions, and nothing worse


def export(model: str | ModelSpec | tuple[Any, Any], out: Path, *, form: str = "decomposed", opset: int | None = None) -> Report:
    """Write the model as ONNX and check it. form: 'decomposed' (opset 20) or 'fused' (opset 23, attention as one node). Raises NpuliftError."""
    import onnx

    if form not in FORMS:
        raise NpuliftError(_("There is no form {form}; there are {forms}.").format(form=form, forms=", ".join(FORMS)))
    if opset is not None and not 18 <= opset <= 25:
        raise NpuliftError(_("torch's exporter writes opsets 18 to 25, not {opset}.").format(opset=opset))
    if out.suffix != ".onnx":
        raise NpuliftError(_("{path} should end in .onnx.").format(path=out))
    spec = load_model(model)
    try:
        program = graphs.export(spec)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise NpuliftError(_("{model} cannot be exported: {error}. npulift check says where, npulift rewrite may repair it.").format(model=spec.name, error=text), exit_code=1) from error
    origins = export_onnx(program, out, form=form, opset=opset)
    file = onnx.load(str(out), load_external_data=False)
    names = _name_inputs(file, spec, program)
    _name_outputs(file)
    ranges = _name_dims(file, spec, program)
    with atomic_file(out) as temporary:
        onnx.save(file, str(temporary))
    gap, relative = _check(out, spec)
    kinds = Counter(n.op_type for n in file.graph.node)
    removed = _removed(program, origins)
    findings = []
    if relative is not None and not relative <= TOLERANCE:
        findings.append(Finding("NPU348", "onnx-differs", Severity.ERROR, _("The ONNX file differs from eager by {error:.3g} ({relative:.2g} of the largest value) in onnxruntime.").format(
            error=gap, relative=relative)))
    size = out.stat().st_size + sum(f.stat().st_size for f in out.parent.glob(out.name + ".data"))
    version = next((o.version for o in file.opset_import if o.domain in ("", "ai.onnx")), 0)
    checked = _("largest difference from eager {error:.2e} (measured by onnxruntime on the example inputs)").format(error=gap) if gap is not None else _("not checked: no values (meta device)")
    rows = (
        (_("file"), f"{out} ({size / 1e6:.1f} MB, opset {version})"), (_("inputs"), ", ".join(names)),
        (_("dynamic axes"), ", ".join(f"{k} {v}" for k, v in ranges.items()) or _("none")), (_("nodes"), ", ".join(f"{k} {n}" for k, n in kinds.most_common())), (_("check"), checked),
    )
    sections: list[Any] = [Facts("", rows)]
    if removed:
        sections.append(Table(_("Removed: operators that leave no node"), (_("operator"), _("times")), tuple(removed.most_common())))
    return Report(
        "export", _("{model} as ONNX").format(model=spec.name), {"model": spec.origin or spec.name}, ok=not findings, findings=tuple(findings),
        data={"file": str(out), "opset": version, "form": form, "inputs": names, "outputs": [o.name for o in file.graph.output], "dynamic_axes": ranges, "nodes": dict(kinds),
              "removed": dict(removed), "max_abs_error": gap, "relative_error": relative, "bytes": size},
        sections=tuple(sections),
    )


def _name_inputs(file: Any, spec: ModelSpec, program: torch.export.ExportedProgram) -> list[str]:
    """The spec's names, else those of forward()'s parameters (the exporter's), each once."""
    wanted = [n for n, v in zip(spec.names(), spec.inputs, strict=False) if isinstance(v, torch.Tensor)] if spec.input_names else [str(n) for n in program.graph_signature.user_inputs]
    initial = {i.name for i in file.graph.initializer}
    inputs = [i for i in file.graph.input if i.name not in initial]
    if len(wanted) == len(inputs):
        _rename(file, {i.name: n for i, n in zip(inputs, wanted, strict=True)})
    return [i.name for i in file.graph.input if i.name not in initial]


def _name_outputs(file: Any) -> None:
    outputs = [o.name for o in file.graph.output]
    inputs = {i.name for i in file.graph.input}
    if len(set(outputs)) == len(outputs) and not set(outputs) & inputs:
        _rename(file, {o: "output" if len(outputs) == 1 else f"output_{i}" for i, o in enumerate(outputs)})


def _rename(file: Any, names: dict[str, str]) -> None:
    taken = {v for n in file.graph.node for v in (*n.input, *n.output)} | {i.name for i in file.graph.initializer} | {i.name for i in file.graph.input}
    names = {a: b for a, b in names.items() if a != b and b not in taken}

    def graph(g: Any) -> None:
        for value in (*g.input, *g.output, *g.value_info):
            value.name = names.get(value.name, value.name)
        for node in g.node:
            for field in (node.input, node.output):
                for i, value in enumerate(field):
                    field[i] = names.get(value, value)
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    graph(attribute.g)

    graph(file.graph)


def _name_dims(file: Any, spec: ModelSpec, program: torch.export.ExportedProgram) -> dict[str, str]:
    """Symbolic sizes get the names of the spec's dims; the ranges go into the file's metadata (npulift.range.NAME) as 'low..high'."""
    symbols: dict[str, Any] = {}
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for position, name in enumerate(program.graph_signature.user_inputs):
        value = nodes[str(name)].meta.get("val") if str(name) in nodes else None
        for axis, dim in spec.dynamic_dims.get(position, {}).items():
            size = value.shape[axis] if isinstance(value, torch.Tensor) else None
            if isinstance(size, torch.SymInt):
                symbols[str(size.node.expr)] = dim
    for value in (*file.graph.input, *file.graph.output, *file.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_param = symbols[dim.dim_param].name
    ranges = {d.name: f"{d.low}..{d.high if d.high is not None else ''}" for d in symbols.values()}
    for name, text in ranges.items():
        entry = file.metadata_props.add()
        entry.key, entry.value = f"npulift.range.{name}", text
    return ranges


def _check(out: Path, spec: ModelSpec) -> tuple[float | None, float | None]:
    """(largest absolute difference from eager, the same over the largest value) on the example inputs; None on the meta device."""
    if any(t.device.type == "meta" for t in (*spec.tensors, *spec.module.parameters())):
        return None, None
    import onnxruntime

    from npulift.verify import difference

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(out), options, providers=["CPUExecutionProvider"])
        given = arrays(spec.inputs)
        feeds = dict(zip([i.name for i in session.get_inputs()], given, strict=False))
        got = session.run(None, feeds)
    except Exception as error:
        raise NpuliftError(_("onnxruntime cannot run {path}: {error}").format(path=out, error=str(error).splitlines()[0][:300]), exit_code=1) from error
    with torch.no_grad():
        wanted = [v for v in torch.utils._pytree.tree_leaves(spec.module(*[v.clone() if isinstance(v, torch.Tensor) else v for v in spec.inputs])) if isinstance(v, torch.Tensor)]
    pairs = [difference(np.asarray(g, dtype=np.float64), np.asarray(w.double().numpy())) for g, w in zip(got, wanted, strict=False)]
    return max(p[0] for p in pairs), max(p[1] for p in pairs)


def _removed(program: torch.export.ExportedProgram, origins: dict[str, Any]) -> Counter[str]:
    """Operators of the exported program that no ONNX node came from: folded, or of no effect in inference."""
    kept = {op.node for op in origins.values()}
    return Counter(op.base for op in exported_ops(program) if op.node not in kept)
