"""Small tools over torch.fx graphs, shared by capture, rewrites and targets."""

from __future__ import annotations

import copy
import operator
import re
import site
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from npulift import fused  # noqa: F401  registers npulift::rms_norm and kin, so that saved graphs that hold them load
from npulift.findings import Location
from npulift.model import ModelSpec

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_LIBRARIES = tuple(
    {str(Path(p).resolve()) for p in (*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))}
)
_TORCH = str(Path(torch.__file__).parent.resolve())
_OURS = str(Path(__file__).parent.resolve())


def is_library(file: str) -> bool:
    """True for files of Python itself, of installed packages, and for code without a file."""
    return file.startswith(("<frozen", "<eval_with_key>", "<string>")) or file.startswith(_LIBRARIES) or file.startswith(_OURS)


def is_torch(file: str) -> bool:
    """True for torch's own files, ours, and code without a file: lines that are of no help to a user."""
    return file.startswith((_TORCH, _OURS, "<frozen", "<eval_with_key>", "<string>"))


def pick_lines(frames: Iterable[tuple[str, int, str]]) -> tuple[Location | None, Location | None]:
    """(the user's innermost line, or else a library's; the innermost line outside torch) from frames, outermost first."""
    user = call = fallback = None
    for file, line, function in frames:
        fallback = Location(file, line, function)
        if not is_torch(file):
            call = fallback
            if not is_library(file):
                user = fallback
    return user or call or fallback, call or fallback


def node_lines(node: Node) -> tuple[Location | None, Location | None]:
    """The user's line and the innermost non-torch line of an exported node; None where the node has no stack trace."""
    trace = node.meta.get("stack_trace") or ""
    return pick_lines((file, int(line), function) for file, line, function in _FRAME.findall(trace))


def node_module(node: Node) -> str:
    """Dotted module path of an exported node, '' at the top."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values()]
    return re.sub(r"^L__self__\.?|^L\['self'\]\.?", "", paths[-1]) if paths else ""


def operator_name(target: Any) -> str:
    """'aten::conv2d.default' for an OpOverload, the plain name for anything else."""
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}::{target._opname}.{target._overloadname or 'default'}"
    return getattr(target, "__name__", str(target))


def calls(graph: Graph, *targets: Any) -> Iterator[Node]:
    """The call_function nodes with one of these targets (OpOverload or OpOverloadPacket), or all of them."""
    for node in graph.nodes:
        if node.op == "call_function" and (not targets or node.target in targets or getattr(node.target, "overloadpacket", None) in targets):
            yield node


def dynamic_shapes(spec: ModelSpec) -> tuple[dict[int, Any] | None, ...] | None:
    """torch.export's dynamic_shapes for the spec, or None when nothing varies."""
    if not spec.dynamic_dims:
        return None
    made: dict[str, Any] = {}
    shapes: list[dict[int, Any] | None] = []
    for position in range(len(spec.inputs)):
        axes = {}
        for axis, dim in spec.dynamic_dims.get(position, {}).items():
            if dim.name not in made:
                made[dim.name] = torch.export.Dim(dim.name, min=dim.low, **({} if dim.high is None else {"max": dim.high}))
            axes[axis] = made[dim.name]
        shapes.append(axes or None)
    return tuple(shapes)


def export(spec: ModelSpec, module: torch.nn.Module | None = None) -> torch.export.ExportedProgram:
    """torch.export of the spec's module (or another with the same signature), with its dynamic dims. Raises what torch raises."""
    with torch.no_grad():
        return torch.export.export(module or spec.module, tuple(spec.inputs), dynamic_shapes=dynamic_shapes(spec), strict=False)


def graph_module(spec: ModelSpec, program: torch.export.ExportedProgram | None = None) -> GraphModule:
    """The spec's module as an fx graph of aten operators that may be edited: a copy that shares the tensors.

    program: the exported program when there is one already; otherwise the module is exported (raises what torch raises).
    """
    if isinstance(spec.module, GraphModule):
        return copy_graph(spec.module)
    module: GraphModule = (program or export(spec)).module(check_guards=False)
    for node in list(module.graph.nodes):  # what export asserts about dtypes counts as a user of the tensor and hides patterns
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
    functional(module)
    module.recompile()
    return module


def is_mutable(node: Node) -> bool:
    """True for a call that writes to one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


_PASSES_THROUGH = {torch.ops.aten.dropout.default, torch.ops.aten.feature_dropout.default, torch.ops.aten.alpha_dropout.default}  # return their argument in eval


def _aliased(node: Node) -> list[Node]:
    """The arguments that the node's result may share memory with, by its schema."""
    if node.target is operator.getitem or node.target in _PASSES_THROUGH:
        return node.all_input_nodes[:1]
    if not isinstance(node.target, torch._ops.OpOverload) or not any(r.alias_info is not None for r in node.target._schema.returns):
        return []
    found: list[Node] = []
    for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
        if argument.alias_info is not None:
            found += [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, Node)]
    return found


def sharing(node: Node) -> set[Node]:
    """Every node that may share memory with this one, itself included."""
    found, waiting = {node}, [node]
    while waiting:
        current = waiting.pop()
        near = [*_aliased(current), *(u for u in current.users if current in _aliased(u))]
        waiting += [n for n in near if n not in found]
        found.update(near)
    return found


def written(module: GraphModule) -> set[Node]:
    """Nodes whose memory some operator of the graph writes to: their values change as the graph runs."""
    found: set[Node] = set()
    for node in calls(module.graph):
        if is_mutable(node):
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False):  # type: ignore[union-attr]
                if argument.is_write and isinstance(value, Node) and value not in found:
                    found |= sharing(value)
    return found


_SCATTERS = {torch.ops.aten.select.int: torch.ops.aten.select_scatter.default, torch.ops.aten.slice.Tensor: torch.ops.aten.slice_scatter.default}


def functional(module: GraphModule) -> int:
    """Turn operators that write in place (relu_, add_, x[:, 0] = y) into those that do not, where nothing else can see the difference; returns how many."""
    count = 0
    for node in list(calls(module.graph)):
        name = node.target._opname if isinstance(node.target, torch._ops.OpOverload) else ""
        if not (is_mutable(node) and name.endswith("_") and node.args and isinstance(node.args[0], Node)):
            continue
        target = getattr(getattr(torch.ops.aten, name[:-1], None), node.target._overloadname or "default", None)  # type: ignore[union-attr]
        count += target is not None and _make_functional(module, node, target)
    return count


def _make_functional(module: GraphModule, node: Node, target: Any) -> bool:
    written_to: Any = node.args[0]
    shared = sharing(written_to) - {node}
    order = {n: i for i, n in enumerate(module.graph.nodes)}
    base = written_to
    if written_to.target in _SCATTERS and any(order[u] > order[node] for n in _aliased(written_to) for u in n.users):
        base = written_to.args[0]
    views_before = {n for n in shared if order[n] < order[node] and n not in (base, written_to) and any(order[u] > order[node] for u in n.users)}
    if views_before or any(n.op != "call_function" for n in shared if n.op != "output"):
        return False
    value = call(module, node, target, *node.args, **node.kwargs)
    fake, old = value.meta.get("val"), written_to.meta.get("val")
    if not isinstance(fake, torch.Tensor) or not isinstance(old, torch.Tensor) or fake.dtype != old.dtype or fake.ndim != old.ndim:
        module.graph.erase_node(value)
        return False
    if base is not written_to:
        whole = call(module, node, _SCATTERS[written_to.target], base, value, *written_to.args[1:])
        base.replace_all_uses_with(whole, delete_user_cb=lambda u: order.get(u, -1) > order[node])
    written_to.replace_all_uses_with(value, delete_user_cb=lambda u: order.get(u, -1) > order[node])
    replace_all(module, node, value)
    return True


def copy_graph(module: GraphModule) -> GraphModule:
    """A copy of the graph; parameters and buffers are the same tensors."""
    graph = Graph()
    graph._codegen = copy.deepcopy(module.graph._codegen)
    values: dict[Node, Node] = {}
    for node in module.graph.nodes:  # node by node: Graph.graph_copy leaves the output node out
        values[node] = graph.node_copy(node, lambda n: values[n])
    copied = GraphModule(module, graph, class_name=module.__class__.__name__)
    copied.meta = dict(module.meta)
    for name, child in module.named_children():  # sub-graphs of torch.cond and kin, and modules that nodes do not name
        if not hasattr(copied, name):
            copied.add_module(name, child)
    copied.train(module.training) if not hasattr(module, "_in_spec") else None
    return copied


def attribute(module: GraphModule, node: Any) -> torch.Tensor | None:
    """The tensor that a get_attr node stands for, or None for any other node or value."""
    if not (isinstance(node, Node) and node.op == "get_attr"):
        return None
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, torch.Tensor) else None


def add_constant(module: GraphModule, before: Node, tensor: torch.Tensor, name: str = "constant") -> Node:
    """Register a buffer under a new name and return a get_attr node for it, placed before `before`."""
    index = 0
    while hasattr(module, f"_{name}_{index}"):
        index += 1
    module.register_buffer(f"_{name}_{index}", tensor.detach())
    with module.graph.inserting_before(before):
        node = module.graph.get_attr(f"_{name}_{index}")
    node.meta["val"] = fake_like(before, tensor)
    return node


def fake_like(neighbour: Node, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as a FakeTensor of the mode that the neighbour's graph was traced with; itself when there is none."""
    for node in neighbour.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode.from_tensor(tensor.detach(), static_shapes=True)
    return tensor


def call(module: GraphModule, before: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new call placed before `before`, with its stack trace, module path and the value that its fake arguments give."""
    with module.graph.inserting_before(before):
        node = module.graph.call_function(target, args, kwargs)
    for key in ("stack_trace", "nn_module_stack", "torch_fn"):
        if key in before.meta:
            node.meta[key] = before.meta[key]
    refresh(node)
    return node


def refresh(node: Node) -> None:
    """Recompute the fake value of a node from those of its arguments; leave it unknown when they are unknown."""
    def value(n: Node) -> Any:
        return n.meta["val"]

    try:
        args = torch.fx.node.map_arg(node.args, value)
        kwargs = torch.fx.node.map_arg(node.kwargs, value)
        modes = {v.fake_mode for v in _tensors(args, kwargs) if isinstance(v, torch._subclasses.FakeTensor)}
        if not modes:  # a factory: arange, full, zeros
            modes = {v.fake_mode for n in node.graph.nodes if isinstance(v := n.meta.get("val"), torch._subclasses.FakeTensor)}
        if len(modes) == 1:
            with modes.pop(), torch.no_grad():
                node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
    except (KeyError, RuntimeError, TypeError, ValueError):
        node.meta.pop("val", None)


def _tensors(*values: Any) -> Iterator[torch.Tensor]:
    yield from (v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor))


def shape(node: Any) -> tuple[Any, ...] | None:
    """Sizes of a node's value (ints, or SymInts where dynamic); None when unknown or not a tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def is_static(node: Any) -> bool:
    """True when every size of the node's value is a known integer."""
    sizes = shape(node)
    return sizes is not None and all(isinstance(s, int) for s in sizes)


def replace_all(module: GraphModule, old: Node, new: Node) -> None:
    """Let every user of `old` use `new`, and erase `old`."""
    old.replace_all_uses_with(new)
    module.graph.erase_node(old)


def tidy(module: GraphModule) -> GraphModule:
    """Drop dead nodes and tensors that nothing names, check the graph and recompile it."""
    module.graph.eliminate_dead_code()
    used = {str(n.target) for n in module.graph.nodes if n.op == "get_attr"}
    kept = {u.rpartition(".")[0] for u in used}
    for node in list(module.graph.nodes):
        if node.op == "get_attr" and not node.users:
            module.graph.erase_node(node)
    for name, _value in [*module.named_parameters(), *module.named_buffers()]:
        parent, _dot, leaf = name.rpartition(".")
        if name not in used and not any(k == name or k.startswith(name + ".") for k in kept):
            owner = module.get_submodule(parent)
            owner._parameters.pop(leaf, None)
            owner._buffers.pop(leaf, None)
    module.graph.lint()
    module.recompile()
    return module


GETITEM = operator.getitem
