"""The same question to a target that runs here: its values at the borders of modules, against eager's."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from npulift import graphs
from npulift.capture import Capture
from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.precision.layers import Layer
from npulift.precision.values import values_of
from npulift.targets.base import Target
from npulift.verify import arrays
from npulift.worker import Worker, WorkerError

MOST = 48  # outputs that are added to the program; more would change what the compiler makes of it
OPTIONS = {
    "openvino": {"float16": {"float": "f16"}, "bfloat16": {"float": "bf16"}, "float32": {"float": "f32"}},
    "cpu": {"bfloat16": {"precision": "bf16"}},
}


def target_layers(capture: Capture, target: Target, precision: str, threshold: float, *, time_limit: float = 600.0) -> list[Layer]:
    """Layers (own and inherited error are not told apart: own is 0) in the order of the graph. Raises NpuliftError when the target cannot compile or run it."""
    assert capture.exported is not None
    module = graphs.graph_module(capture.spec, capture.exported)
    chosen = borders(module)
    output = next(n for n in module.graph.nodes if n.op == "output")
    extra = [n for n in chosen if n not in output.all_input_nodes]
    original = [n for n in torch.utils._pytree.tree_leaves(output.args) if isinstance(n, Node)]
    output.args = ((*original, *extra),)
    module.graph._codegen = torch.fx.graph.CodeGen()
    module.recompile()
    nodes = [*original, *extra]
    names = [n.name for n in nodes]
    wanted = values_of(capture, names)
    program = _program(module, capture)
    family = target.name.partition(":")[0]
    options = OPTIONS.get(family, {}).get(precision, {})
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "model.pt2", Path(folder) / "out"
        out.mkdir()
        torch.export.save(program, source)
        try:
            with Worker(time_limit=time_limit) as worker:
                worker.call("npulift.targets.runner:compile", target.name, source, options, out)
                number = worker.call("npulift.targets.runner:load", target.name, out, options)
                got = worker.call("npulift.targets.runner:run", number, arrays(capture.spec.inputs))
        except WorkerError as error:
            text = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
            raise NpuliftError(_("{target} could not run the model with its inner values as outputs: {error}").format(target=target.name, error=text), exit_code=1) from error
    order = {n.name: i for i, n in enumerate(module.graph.nodes)}
    layers = [_layer(node, wanted[node.name], value, threshold) for node, value in zip(nodes, got, strict=False) if node.name in wanted]
    return sorted(layers, key=lambda layer: order[layer.node])


def borders(module: torch.fx.GraphModule) -> list[Node]:
    """The last floating-point value of each module, at the most MOST of them, evenly spread."""
    last: dict[str, Node] = {}
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.Tensor) and value.is_floating_point() and not getattr(node.target, "is_view", False):
            last[graphs.node_module(node) or node.name] = node
    found = list(last.values())
    step = max(1, -(-len(found) // MOST))
    return found[::step]


def _program(module: torch.fx.GraphModule, capture: Capture) -> torch.export.ExportedProgram:
    tensors = tuple(v for v in capture.spec.inputs if isinstance(v, torch.Tensor))
    try:
        with torch.no_grad():
            return torch.export.export(module, tuple(capture.spec.inputs), strict=False)
    except TypeError:
        with torch.no_grad():
            return torch.export.export(module, tensors, strict=False)


def _layer(node: Node, wanted: torch.Tensor, got: np.ndarray[Any, Any], threshold: float) -> Layer:
    location, _call = graphs.node_lines(node)
    w, g = wanted.double().flatten(), torch.from_numpy(np.array(got)).double().flatten()
    if w.shape != g.shape:
        g = torch.full_like(w, float("nan"))
    finite = torch.isfinite(w) & torch.isfinite(g)
    wf, gf = w[finite], g[finite]
    norm = float(wf.norm()) or 1.0
    relative = float((gf - wf).norm()) / norm
    status = "ok"
    if bool((torch.isnan(g) & ~torch.isnan(w)).any()):
        status = "nan"
    elif bool(torch.isnan(w).any()):
        status = "nan-in-reference"
    elif bool((torch.isinf(g) & ~torch.isinf(w)).any()):
        status = "overflow"
    elif relative > threshold:
        status = "precision-loss"
    cosine = float((gf @ wf) / (gf.norm() * wf.norm())) if float(gf.norm()) and float(wf.norm()) else 1.0 if relative == 0 else 0.0
    return Layer(
        node.name, graphs.operator_name(node.target).partition(".")[0], graphs.node_module(node), location, status, status != "ok", cosine, relative,
        float((gf - wf).abs().max()) if wf.numel() else 0.0, 0.0, 0.0, float(w[torch.isfinite(w)].abs().max()) if bool(torch.isfinite(w).any()) else 0.0, float(((g == 0) & (w != 0)).double().mean()), tuple(wanted.shape),
    )
