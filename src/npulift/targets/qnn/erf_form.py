"""Erf and Gelu by operators that every Hexagon has.

The chip has Gelu (not on v68 in float) but no Erf. erf(x) is computed as sign(x) * (1 - (a1 t + ... + a5 t^5) exp(-x^2)) with t = 1 / (1 + p |x|), whose
error is below 1.5e-7 everywhere (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26): less than float16 can tell.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

_P = 0.3275911
_A = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)  # a5 to a1, in Horner's order


def replace_erf(model: onnx.ModelProto, *, erf: bool = True, gelu: bool = False) -> list[str]:
    """Replace Erf (and Gelu) in place; returns the names of the nodes replaced. Gelu with approximate='tanh' becomes its own formula.

    New nodes keep the metadata of the old; the last one keeps its name. Float inputs only.
    """
    import onnx
    from onnx import helper, numpy_helper

    graph = model.graph
    kinds = {k for k, wanted in (("Erf", erf), ("Gelu", gelu)) if wanted}
    if not any(n.op_type in kinds for n in graph.node):
        return []
    nodes: list[Any] = []
    replaced = []
    for node in graph.node:
        if node.op_type not in kinds:
            nodes.append(node)
            continue
        count = [0]

        def call(operator: str, *inputs: str, output: str = "", node: Any = node, count: list[int] = count) -> str:
            count[0] += 1
            name = output or f"{node.output[0]}_erf{count[0]}"
            made = helper.make_node(operator, list(inputs), [name], name=node.name if output else f"{node.name}_{operator}{count[0]}")
            made.metadata_props.extend(node.metadata_props)
            nodes.append(made)
            return name

        def number(value: float) -> str:
            name = f"erf_constant_{value!r}"
            if all(t.name != name for t in graph.initializer):
                graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
            return name

        def erf_of(x: str, output: str = "", call: Any = call) -> str:
            size = call("Abs", x)
            t = call("Reciprocal", call("Add", call("Mul", size, number(_P)), number(1.0)))
            poly = call("Mul", t, number(_A[0]))
            for a in _A[1:]:
                poly = call("Mul", call("Add", poly, number(a)), t)
            tail = call("Mul", poly, call("Exp", call("Neg", call("Mul", x, x))))
            return str(call("Mul", call("Sign", x), call("Sub", number(1.0), tail), output=output))

        x = node.input[0]
        if node.op_type == "Erf":
            erf_of(x, node.output[0])
        else:
            form = next((a.s for a in node.attribute if a.name == "approximate"), b"none")
            if form == b"tanh":
                cube = call("Mul", call("Mul", x, x), x)
                inner = call("Tanh", call("Mul", call("Add", call("Mul", cube, number(0.044715)), x), number(math.sqrt(2 / math.pi))))
            else:
                inner = erf_of(call("Mul", x, number(math.sqrt(0.5))))
            call("Mul", call("Mul", x, number(0.5)), call("Add", inner, number(1.0)), output=node.output[0])
        replaced.append(node.name)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(model)
    return replaced
