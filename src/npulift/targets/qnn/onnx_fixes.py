"""Changes of the ONNX graph that the Qualcomm compiler needs to give right answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx


def replace_gather_nd(model: onnx.ModelProto) -> list[str]:
    """Replace GatherND by Gather in place; returns the names of the nodes replaced.

    The compiler of onnxruntime-qnn 2.7.0 accepts GatherND over data of rank 3 and more and returns wrong rows without an error (tried with
    x[:, [0, 3, 5]], which gave rows 0, 4 and 7, on SoC 30, 36, 57, 60, 69 and 87). The data's indexed axes are made one, and the index
    tuples one number each, so that Gather picks the same rows. Cases: batch_dims 0, static sizes of the indexed axes. New nodes keep the
    old one's name and metadata.
    """
    import onnx
    from onnx import helper, numpy_helper

    graph = model.graph
    if not any(n.op_type == "GatherND" for n in graph.node):
        return []
    shapes = shapes_of(model)
    constants = {t.name: t for t in graph.initializer}
    replaced, nodes = [], []
    for node in graph.node:
        data = shapes.get(node.input[0]) if node.op_type == "GatherND" else None
        index = shapes.get(node.input[1]) if data else None
        batch = next((a.i for a in node.attribute if a.name == "batch_dims"), 0)
        if not data or not index or batch or not all(isinstance(s, int) for s in (*data, index[-1])):
            nodes.append(node)
            continue
        depth = int(index[-1])
        strides = [int(np.prod(data[i + 1 : depth], dtype=np.int64)) for i in range(depth)]
        made: list[Any] = []

        def constant(value: Any, name: str, node: Any = node) -> str:
            full = f"{node.name}_{name}"
            graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.int64), full))
            return full

        def call(operator: str, inputs: list[str], suffix: str, node: Any = node, made: list[Any] = made, **attributes: Any) -> str:
            output = f"{node.output[0]}_{suffix}"
            new = helper.make_node(operator, inputs, [output], name=f"{node.name}_{suffix}", **attributes)
            new.metadata_props.extend(node.metadata_props)
            made.append(new)
            return output

        if node.input[1] in constants:
            tuples = numpy_helper.to_array(constants[node.input[1]]).astype(np.int64)
            tuples = np.where(tuples < 0, tuples + np.asarray(data[:depth]), tuples)
            rows = constant((tuples * np.asarray(strides)).sum(-1), "rows")
        elif depth == 1:
            rows = call("Squeeze", [node.input[1], constant([-1], "axis")], "rows")
        else:
            sizes, zero = constant(data[:depth], "sizes"), constant(0, "zero")
            wrapped = call("Where", [call("Less", [node.input[1], zero], "negative"), call("Add", [node.input[1], sizes], "shifted"), node.input[1]], "wrapped")
            scaled = call("Mul", [wrapped, constant(strides, "strides")], "scaled")
            rows = call("ReduceSum", [scaled, constant([-1], "axis")], "rows", keepdims=0)
        source = node.input[0]
        if depth > 1:
            source = call("Reshape", [source, constant([int(np.prod(data[:depth])), *data[depth:]], "flat")], "flat")
        gather = helper.make_node("Gather", [source, rows], list(node.output), name=node.name, axis=0)
        gather.metadata_props.extend(node.metadata_props)
        nodes += [*made, gather]
        replaced.append(node.name)
    if replaced:
        del graph.node[:]
        graph.node.extend(nodes)
        onnx.checker.check_model(model)
    return replaced


def constants_last(model: onnx.ModelProto) -> int:
    """Let constants be the second operand of Mul and Add, in place; returns how many were swapped. Exact: both are commutative.

    The compiler of onnxruntime-qnn 2.7.0 recognises Pow, ReduceMean, Add, Sqrt, Reciprocal, Mul, Mul as an RMS norm, and fails to finalize
    it (error 1002) when the last Mul has the weight first, as in `self.weight * x`, the way transformers writes Llama's norms. With the weight
    second it compiles (tried on SoC 36, 60 and 69).
    """
    constants = {t.name for t in model.graph.initializer} | {o for n in model.graph.node if n.op_type == "Constant" for o in n.output}
    swapped = 0
    for node in model.graph.node:
        if node.op_type in ("Mul", "Add") and node.input[0] in constants and node.input[1] not in constants:
            node.input[0], node.input[1] = node.input[1], node.input[0]
            swapped += 1
    return swapped


def shapes_of(model: onnx.ModelProto) -> dict[str, tuple[Any, ...]]:
    """Sizes by value name; a size that is not known is a str or None."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    found: dict[str, tuple[Any, ...]] = {t.name: tuple(t.dims) for t in model.graph.initializer}
    for value in (*inferred.input, *inferred.output, *inferred.value_info):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            found[value.name] = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim)
    return found


def value_bytes(model: onnx.ModelProto) -> dict[str, int]:
    """Bytes of each value whose shape and type are known."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    found = {}
    for value in (*inferred.input, *inferred.output, *inferred.value_info):
        kind = value.type.tensor_type
        sizes = [d.dim_value for d in kind.shape.dim] if kind.HasField("shape") else [0]
        found[value.name] = int(np.prod(sizes, dtype=np.int64)) * onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize
    return found
