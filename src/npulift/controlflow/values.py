"""What an expression of forward() stands for while it is rewritten: a plain value, a selection kept at full size with its mask, or a scalar kept on the device."""

from __future__ import annotations

import ast
from dataclasses import dataclass

ELEMENTWISE = frozenset(
    ["relu", "gelu", "silu", "tanh", "sigmoid", "exp", "log", "log1p", "sqrt", "rsqrt", "abs", "neg", "square", "pow", "clamp", "clamp_min", "clamp_max", "float", "half", "double", "bfloat16", "long", "int", "bool", "to", "type", "sin", "cos", "softplus", "elu", "leaky_relu", "add", "sub", "mul", "div", "gt", "lt", "ge", "le", "eq", "ne", "logical_not", "logical_and", "logical_or", "isnan", "isinf", "isfinite", "nan_to_num", "detach", "contiguous", "clone", "reciprocal", "floor", "ceil", "round", "sign"]
)
ROWWISE = frozenset(["softmax", "log_softmax", "normalize", "layer_norm", "linear", "dropout"])
REDUCTIONS = frozenset(["sum", "mean", "max", "min", "amax", "amin", "any", "all", "numel", "size", "std", "var", "prod", "norm"])
BOOLEAN_CALLS = frozenset(["isnan", "isinf", "isfinite", "gt", "lt", "ge", "le", "eq", "ne", "logical_not", "logical_and", "logical_or", "bool", "any", "all", "isclose"])
# A call of one of these makes an `if` on it depend on data (unless it is on something that is no tensor, which verification would show).
READS = frozenset(["any", "all", "item", "mean", "sum", "max", "min", "norm", "std", "var", "amax", "amin", "isnan", "isinf", "isfinite", "allclose", "equal", "count_nonzero", "median", "argmax", "argmin", "numel", "tolist"])


class Refused(Exception):
    """This spot cannot be rewritten; the text says why, to the user."""


@dataclass(frozen=True)
class V:
    """kind: 'plain' | 'masked' (node: the full tensor; chosen: its mask, of one entry a row where rows, else of its shape) | 'rows' (chosen: the mask whose positions these
    indices are) | 'count' (how many a mask chooses, a tensor) | 'slots' (the slot numbers beside
    'rows', node: the whole mask of (slots, rows)) | 'scalar' (a value that was a Python number and now stays a 0-d tensor)."""

    kind: str
    node: ast.expr
    chosen: ast.expr | None = None
    rows: bool = True
    boolean: bool = False


def parse(text: str) -> ast.expr:
    """An expression from text."""
    return ast.parse(text, mode="eval").body


def text(node: ast.AST) -> str:
    """Source text of a node."""
    return ast.unparse(ast.fix_missing_locations(node))


def call_name(node: ast.AST) -> str:
    """'sum' for x.sum(...) and torch.sum(...), '' for anything that is no call of a name."""
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def is_torch(node: ast.AST) -> bool:
    """True for torch, F, functional, torch.nn.functional and math: modules whose functions take the tensor as first argument."""
    return text(node) in ("torch", "F", "functional", "nn.functional", "torch.nn.functional", "torch.special", "math") if isinstance(node, (ast.Name, ast.Attribute)) else False


def depends_on_data(node: ast.AST, scalars: set[str]) -> bool:
    """True when the expression reads tensor data: a call that READS, or a name that holds a scalar from the device."""
    return any(call_name(n) in READS or (isinstance(n, ast.Name) and n.id in scalars) for n in ast.walk(node))
