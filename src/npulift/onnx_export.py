"""The one ONNX exporter of ours: from an ExportedProgram to an .onnx file whose nodes know the operator that they came from.

Shared by the targets that take ONNX (onnxruntime, qnn, rknn). Attention comes out as MatMul and Softmax (opset 20, where ONNX has no
Attention yet): the Qualcomm compiler claims those and leaves the fused Attention of opset 23 to the CPU (onnxruntime-qnn issue 646).
"""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npulift.capture import Op
from npulift.errors import NpuliftError
from npulift.files import atomic_file
from npulift.messages import _
from npulift.tracing import exported_ops

if TYPE_CHECKING:
    import onnx

FORMS = {"decomposed": 20, "fused": 23}
_EMBED_LIMIT = 1_800_000_000  # bytes of weights that still go into one protobuf, whose limit is 2 GiB
_FX_NODE = re.compile(r"%(\w+) ")


def export_onnx(
    program: torch.export.ExportedProgram, path: Path | str, *, form: str = "decomposed", opset: int | None = None,
) -> dict[str, Op]:
    """Write the program as ONNX; returns the operator that each ONNX node came from, by the node's name.

    form: 'decomposed' (opset 20; attention as MatMul, Softmax, MatMul) or 'fused' (opset 23; attention as one Attention node).
    opset: another opset than the form's own.
    Inputs and outputs keep the order of the call, also inputs that nothing reads; those that are no tensors are left out. Every node has a
    unique name. Nodes that the exporter made for no operator in particular are not in the result. Weights over 1.8 GB go to a second
    file beside it, `<name>.data`.
    Raises NpuliftError with torch's reason, and the operator where it is known, when the program cannot be expressed in ONNX.
    """
    import onnx

    if form not in FORMS:
        raise ValueError(f"form {form!r}; there are {', '.join(FORMS)}")
    path = Path(path)
    model, decomposed = to_onnx(program, opset or FORMS[form])
    origins = _origins(model, decomposed, {op.node: op for op in exported_ops(program)})
    large = sum(_size(t) for t in model.graph.initializer) > _EMBED_LIMIT
    with atomic_file(path) as temporary:
        if large:
            data = path.name + ".data"
            (path.parent / data).unlink(missing_ok=True)  # onnx appends to a file that is there
            onnx.save(model, temporary, save_as_external_data=True, all_tensors_to_one_file=True, location=data, size_threshold=1024)
        else:
            onnx.save(model, temporary)
    return origins


def to_onnx(program: torch.export.ExportedProgram, opset: int = 20) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """(the program as ONNX, the decomposed program that its nodes' metadata, pkg.torch.onnx.*, speak of). Node names are unique."""
    try:
        with _quiet(), torch.no_grad():
            made = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False, external_data=False)
    except Exception as error:
        raise NpuliftError(_("The program cannot be written as ONNX: {reason}").format(reason=_reason(error)), exit_code=1) from error
    assert made is not None
    model: onnx.ModelProto = made.model_proto
    _name_nodes(model)
    return model, made.exported_program or program


def _name_nodes(model: onnx.ModelProto) -> None:
    taken: set[str] = set()
    for node in model.graph.node:
        name, number = node.name or f"node_{node.op_type}", 0
        while name in taken:
            number += 1
            name = f"{node.name or f'node_{node.op_type}'}_{number}"
        taken.add(name)
        node.name = name


def _origins(model: onnx.ModelProto, decomposed: torch.export.ExportedProgram, ops: dict[str, Op]) -> dict[str, Op]:
    """By ONNX node: torch names the node of the decomposed program, whose provenance leads to the node of the program that we gave it."""
    sources = {node.name: _source(node, ops) for node in decomposed.graph.nodes}
    found = {}
    for node in model.graph.node:
        for entry in node.metadata_props:
            match = _FX_NODE.match(entry.value) if entry.key == "pkg.torch.onnx.fx_node" else None
            name = sources.get(match.group(1), "") if match else ""
            if name:
                found[node.name] = ops[name]
    return found


def _source(node: torch.fx.Node, ops: dict[str, Op]) -> str:
    """Name of the given program's node that a node of the decomposed one came from, '' when it came from none."""
    trail = list(node.meta.get("from_node") or ())
    first = ""
    while trail:
        source = trail.pop()
        if source.name in ops:
            if source.pass_name == "ExportedProgram.module()":
                return str(source.name)
            first = first or str(source.name)
        trail.extend(source.from_node or ())
    return first or (node.name if node.name in ops else "")


def _size(tensor: Any) -> int:
    return len(tensor.raw_data) or tensor.ByteSize()


def _reason(error: BaseException) -> str:
    """The innermost cause, in one line, with the exported node that it is about when torch names it."""
    inner: BaseException = error
    while inner.__cause__ is not None:
        inner = inner.__cause__
    node = re.search(r"(?:While executing|when translating node|from the FX node|node:?) (%\w+ : [^\n]{0,200})", f"{error}\n{inner}")
    text = next((line.strip() for line in str(inner).splitlines() if line.strip()), type(inner).__name__)
    where = f" ({node.group(1).split('(args')[0].strip()})" if node else ""
    return f"{type(inner).__name__}: {text[:300]}{where}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the exporter logs about packages that it does not need."""
    names = ("torch.onnx", "onnxscript", "onnx_ir")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
