"""Rewriting of expressions: selections stay at full size with their mask until a reduction ends them, and .item() goes."""

from __future__ import annotations

import ast
import copy
from typing import Any

from npulift.controlflow.values import BOOLEAN_CALLS, ELEMENTWISE, REDUCTIONS, ROWWISE, Refused, V, call_name, is_torch, parse, text
from npulift.messages import _


class Expressions:
    """Evaluates expressions of one function. env: what each local name stands for. prelude: statements that the current one needs before it.

    square: True to write row masks as mask[:, None] (for rank 2), False for any rank.
    """

    def __init__(self, env: dict[str, V], square: bool) -> None:
        self.env, self.square = env, square
        self.prelude: list[str] = []
        self.used: set[str] = set()
        self.kinds: set[str] = set()

    def new(self, stem: str) -> str:
        """A name that is not used yet."""
        name, number = stem, 0
        while name in self.used:
            number += 1
            name = f"{stem}_{number}"
        self.used.add(name)
        return name

    def hoist(self, node: ast.expr, stem: str) -> ast.expr:
        """The node as a name, assigned before the current statement; names stay as they are."""
        if isinstance(node, ast.Name):
            return node
        name = self.new(stem)
        self.prelude.append(f"{name} = {text(node)}")
        return parse(name)

    def mask_for(self, value: V, like: ast.expr) -> ast.expr:
        """The mask of a selection, of the shape of `like`."""
        assert value.chosen is not None
        if not value.rows:
            return value.chosen
        mask = text(self.hoist(value.chosen, "chosen"))
        if self.square:
            return parse(f"{mask}[:, None]")
        like = self.hoist(like, "full")
        return parse(f"{mask}.reshape({mask}.shape + (1,) * ({text(like)}.ndim - {mask}.ndim))")

    def ev(self, node: ast.expr) -> V:
        """What the expression stands for."""
        match node:
            case ast.Name():
                return self.env.get(node.id, V("plain", node))
            case ast.Constant():
                return V("plain", node)
            case ast.BinOp():
                return self._join(node, [node.left, node.right], lambda a, b: ast.BinOp(a, node.op, b), boolean=isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor)))
            case ast.Compare() if len(node.ops) == 1:
                return self._join(node, [node.left, node.comparators[0]], lambda a, b: ast.Compare(a, node.ops, [b]), boolean=True)
            case ast.UnaryOp():
                return self._join(node, [node.operand], lambda a: ast.UnaryOp(node.op, a), boolean=isinstance(node.op, (ast.Invert, ast.Not)))
            case ast.Call():
                return self._call(node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Attribute():
                return self._attribute(node)
        return self._children(node)

    def plain(self, node: ast.expr) -> ast.expr:
        """The expression as a value that stands by itself. Raises Refused for a selection that no reduction has ended."""
        value = self.ev(node)
        if value.kind in ("masked", "rows", "slots"):
            raise Refused(_("the selection {what} is used as a whole, so its size still depends on data").format(what=text(node)[:80]))
        return value.node

    def _children(self, node: ast.expr) -> V:
        made = copy.copy(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(made, field, self.plain(value))
            elif isinstance(value, list):
                setattr(made, field, [self.plain(v) if isinstance(v, ast.expr) else v for v in value])
        return V("plain", made)

    def _join(self, node: ast.expr, parts: list[ast.expr], build: Any, *, boolean: bool) -> V:
        values = [self.ev(p) for p in parts]
        if any(v.kind == "rows" for v in values):
            raise Refused(_("positions are computed with ({what})").format(what=text(node)[:80]))
        selected = [v for v in values if v.kind == "masked"]
        made = build(*(v.node for v in values))
        if not selected:
            kind = "scalar" if any(v.kind in ("scalar", "count") for v in values) and not any(v.kind == "plain" and not isinstance(v.node, ast.Constant) for v in values) else "plain"
            return V(kind, made, boolean=boolean and all(v.boolean for v in values) if isinstance(node, ast.BinOp) else boolean)
        first = selected[0]
        if any(text(v.chosen) != text(first.chosen) for v in selected if v.chosen is not None and first.chosen is not None):
            raise Refused(_("two different selections meet in {what}").format(what=text(node)[:80]))
        return V("masked", made, first.chosen, first.rows, boolean)

    # --- calls ----------------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> V:
        name = call_name(node)
        method = isinstance(node.func, ast.Attribute) and not is_torch(node.func.value)
        subject = node.func.value if method else node.args[0] if node.args else None  # type: ignore[attr-defined]
        arguments = node.args if method else node.args[1:]
        found = self._rows_of(node)
        if found is not None:
            return found
        if name in ("masked_select",) and subject is not None and arguments:
            return self._masked_select(subject, arguments[0])
        if name == "item" and method and not node.args:
            self.kinds.add("item")
            value = self.ev(subject)  # type: ignore[arg-type]
            return V("scalar", value.node, boolean=value.boolean)
        if subject is None:
            return self._children(node)
        value = self.ev(subject)
        if method and value.kind == "plain" and node.args and not name.startswith("index_"):
            given = self.ev(node.args[0])
            if given.kind == "masked":  # self.layer(selection): a function of the selection
                value, method, arguments = given, False, node.args[1:]
        if not method and isinstance(node.func, ast.Name) and name in ("float", "int", "bool", "len", "max", "min", "abs"):
            return self._builtin(node, name, value)
        if isinstance(node.func, ast.Attribute) and text(node.func.value) == "math" and value.kind in ("scalar", "count"):
            return V("scalar", ast.Call(ast.Attribute(value.node, {"fabs": "abs"}.get(name, name)), [], []))
        if name in ("index_add", "index_add_", "index_copy", "index_copy_") and method and len(node.args) >= 3:
            made = self.write(value.node, node.args[1], node.args[2], add=name.startswith("index_add"))
            if made is not None:
                return V("plain", made)
        if value.kind == "masked":
            return self._on_selection(node, name, value, method, arguments)
        if value.kind == "rows":
            if name in ("numel", "size") or (name == "len"):
                return V("count", parse(f"({text(value.chosen)}).sum()"))  # type: ignore[arg-type]
            raise Refused(_("positions are computed with ({what})").format(what=text(node)[:80]))
        made = copy.copy(node)
        made.func = ast.Attribute(value.node, node.func.attr) if method else node.func  # type: ignore[attr-defined]
        made.args = [self.plain(a) for a in node.args] if method else [value.node, *(self.plain(a) for a in arguments)]
        made.keywords = [ast.keyword(k.arg, self.plain(k.value)) for k in node.keywords]
        kind = "scalar" if value.kind in ("scalar", "count") else "plain"
        return V(kind, made, boolean=name in BOOLEAN_CALLS)

    def _builtin(self, node: ast.Call, name: str, value: V) -> V:
        if value.kind == "rows" and name == "len":
            return V("count", parse(f"({text(value.chosen)}).sum()"))  # type: ignore[arg-type]
        if value.kind == "masked" and name == "len":
            return V("count", self._count(value, first_axis=True))
        if name in ("float", "int", "bool") and len(node.args) == 1 and (value.kind in ("scalar", "count") or self._reads(node.args[0])):
            self.kinds.add("item")
            return V("scalar", value.node if name != "int" else parse(f"({text(value.node)}).long()"), boolean=name == "bool" or value.boolean)
        if name in ("max", "min") and len(node.args) == 2:
            other = self.ev(node.args[1])
            if value.kind not in ("scalar", "count") and other.kind in ("scalar", "count"):
                value, other = other, value
            if value.kind in ("scalar", "count"):
                bound = "min" if name == "max" else "max"
                if other.kind in ("scalar", "count"):
                    return V("scalar", parse(f"torch.{name}imum({text(value.node)}, {text(other.node)})"))
                return V("scalar", parse(f"({text(value.node)}).clamp({bound}={text(other.node)})"))
        if name == "abs" and value.kind in ("scalar", "count", "masked"):
            return V(value.kind, parse(f"({text(value.node)}).abs()"), value.chosen, value.rows)
        return self._children(node)

    @staticmethod
    def _reads(node: ast.expr) -> bool:
        return call_name(node) in ("mean", "sum", "max", "min", "norm", "any", "all", "std", "var", "amax", "amin", "median")

    def _on_selection(self, node: ast.Call, name: str, value: V, method: bool, arguments: list[ast.expr]) -> V:
        others = [self.plain(a) for a in arguments]
        keywords = [ast.keyword(k.arg, self.plain(k.value)) for k in node.keywords]

        def again() -> ast.expr:
            if method:
                return ast.Call(ast.Attribute(value.node, name), others, keywords)
            return ast.Call(node.func, [value.node, *others], keywords)

        if name in REDUCTIONS:
            return self._reduce(node, name, value, others, keywords)
        if name in ELEMENTWISE:
            return V("masked", again(), value.chosen, value.rows, name in BOOLEAN_CALLS)
        if value.rows and name in ("reshape", "view") and others and text(others[0]) == "-1":
            return V("masked", again(), value.chosen, True)
        if value.rows and (name in ROWWISE or not method or name in ("unsqueeze", "flatten", "matmul")):
            return V("masked", again(), value.chosen, True)  # a module or function applied to each row; verification tells whether it is
        raise Refused(_("{name} is called on the selection {what}").format(name=name, what=text(node)[:80]))

    def _masked_select(self, subject: ast.expr, mask: ast.expr) -> V:
        self.kinds.add("selection")
        value, chosen = self.ev(subject), self.ev(mask)
        full = value.node
        if value.kind == "masked":
            before = self.mask_for(value, value.node)
            return V("masked", full, self.hoist(parse(f"{text(before)} & ({text(chosen.node)})"), "chosen"), False)
        return V("masked", full, self.hoist(parse(f"torch.broadcast_to({text(chosen.node)}, ({text(full)}).shape)"), "chosen"), False)

    def _count(self, value: V, *, first_axis: bool) -> ast.expr:
        if value.rows and first_axis:
            return parse(f"({text(value.chosen)}).sum()")  # type: ignore[arg-type]
        mask = self.mask_for(value, value.node)
        if not value.rows:
            return parse(f"{text(mask)}.sum()")
        return parse(f"({text(mask)}).expand_as({text(value.node)}).sum()")

    def _reduce(self, node: ast.Call, name: str, value: V, others: list[ast.expr], keywords: list[ast.keyword]) -> V:
        axis = others[0] if others else next((k.value for k in keywords if k.arg in ("dim", "axis")), None)
        options = [k for k in keywords if k.arg not in ("dim", "axis")]
        number = ast.literal_eval(axis) if axis is not None and _is_number(axis) else None
        if name in ("numel", "size"):
            if name == "size" and number != 0:
                raise Refused(_("{what} asks for a size of a selection").format(what=text(node)[:80]))
            return V("count", self._count(value, first_axis=name == "size"))
        if axis is not None and (number is None or (number != 0 and not value.rows)):
            raise Refused(_("{what} reduces a selection over other axes than its rows").format(what=text(node)[:80]))
        if number not in (None, 0):  # along each row: the selection stays
            if name not in ("sum", "mean", "amax", "amin", "any", "all", "norm", "std", "var"):
                raise Refused(_("{what} gives values and indices").format(what=text(node)[:80]))
            return V("masked", ast.Call(ast.Attribute(value.node, name), others, keywords), value.chosen, True)
        full = self.hoist(value.node, "full")
        mask = self.hoist(self.mask_for(V("masked", full, value.chosen, value.rows), full), "mask")
        f, m = text(full), text(mask)
        rest = "".join(f", {k.arg}={text(k.value)}" for k in options)
        inside = f"{'0' if axis is not None else ''}{rest if axis is not None else rest.removeprefix(', ')}"
        total = f"torch.where({m}, {f}, 0).sum({inside})"
        spread = f"{m}.expand_as({f})" if value.rows else m
        match name:
            case "sum":
                made = total
            case "mean":
                made = f"{total} / {spread}.sum({inside})"
            case "any":
                made = f"({m} & ({f} != 0)).any({inside})"
            case "all":
                made = f"(~{m} | ({f} != 0)).all({inside})"
            case "prod":
                made = f"torch.where({m}, {f}, 1).prod({inside})"
            case "max" | "amax" if name == "amax" or axis is None:
                made = f"torch.where({m}, {f}, -torch.inf).amax({inside})"
            case "min" | "amin" if name == "amin" or axis is None:
                made = f"torch.where({m}, {f}, torch.inf).amin({inside})"
            case "var" | "std" if axis is None and not options:
                inner = f"torch.where({m}, {f}, 0).sum() / {spread}.sum()"
                made = f"(torch.where({m}, {f} - {inner}, 0) ** 2).sum() / ({spread}.sum() - 1).clamp(min=0)"
                made = f"({made}).sqrt()" if name == "std" else made
            case "norm" if axis is None and not options:
                made = f"torch.where({m}, {f}, 0).norm()"
            case _:
                raise Refused(_("{what} is a reduction without a masked form here").format(what=text(node)[:80]))
        self.kinds.add("selection")
        return V("plain", parse(made))

    # --- subscripts and positions -----------------------------------------------------------------------------------------------

    def _rows_of(self, node: ast.expr) -> V | None:
        """Positions of a mask: mask.nonzero().squeeze(-1) and its spellings."""
        inner = node
        if isinstance(inner, ast.Call) and call_name(inner) in ("squeeze", "flatten", "view", "reshape", "ravel") and isinstance(inner.func, ast.Attribute):
            inner = inner.func.value
        elif isinstance(inner, ast.Subscript):
            inner = inner.value
        else:
            return None
        if call_name(inner) not in ("nonzero", "argwhere", "where") or not isinstance(inner, ast.Call):
            return None
        if call_name(inner) == "where" and len(inner.args) != 1:
            return None
        mask = inner.func.value if isinstance(inner.func, ast.Attribute) and not is_torch(inner.func.value) else inner.args[0] if inner.args else None
        if mask is None:
            return None
        self.kinds.add("selection")
        chosen = self.ev(mask)
        if chosen.kind != "plain":
            raise Refused(_("positions are taken of a selection ({what})").format(what=text(node)[:80]))
        node_mask = chosen.node if chosen.boolean else parse(f"({text(chosen.node)}) != 0")
        return V("rows", node_mask, node_mask)

    def _subscript(self, node: ast.Subscript) -> V:
        found = self._rows_of(node)
        if found is not None:
            return found
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and _is_number(node.slice):
            base = self.ev(node.value.value)
            if base.kind in ("masked", "rows"):
                if ast.literal_eval(node.slice) == 0:
                    return V("count", self._count(base, first_axis=True) if base.kind == "masked" else parse(f"({text(base.chosen)}).sum()"))  # type: ignore[arg-type]
                if base.rows:
                    return V("plain", parse(f"({text(base.node)}).shape[{text(node.slice)}]"))
                raise Refused(_("{what} asks for a size of a selection").format(what=text(node)[:80]))
        value = self.ev(node.value)
        parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        if value.kind == "masked":
            if value.rows and isinstance(parts[0], ast.Slice) and parts[0].lower is None and parts[0].upper is None:
                return V("masked", ast.Subscript(value.node, node.slice, ast.Load()), value.chosen, True)
            index = self.ev(node.slice) if len(parts) == 1 and isinstance(node.slice, ast.expr) else None
            if index is not None and index.kind == "masked" and index.boolean:
                if text(index.chosen) == text(value.chosen) and value.rows and index.rows:  # type: ignore[arg-type]
                    return V("masked", value.node, self.hoist(parse(f"({text(value.chosen)}) & ({text(index.node)})"), "chosen"), True)  # type: ignore[arg-type]
                before = self.mask_for(value, value.node)
                return V("masked", value.node, self.hoist(parse(f"({text(before)}) & ({text(index.node)})"), "chosen"), False)
            raise Refused(_("{what} takes a part of a selection").format(what=text(node)[:80]))
        if len(parts) == 2 and isinstance(parts[0], ast.Constant) and parts[0].value is None and self.ev(parts[1]).kind == "rows":
            parts = parts[1:]  # a leading axis of size 1, which a reshape takes away again
        if len(parts) > 1 and isinstance(parts[1], ast.Name) and self.env.get(parts[1].id, V("plain", parts[1])).kind == "slots":
            slots = self.env[parts[1].id]
            weighed = f"torch.where({text(slots.node)}.T, {text(value.node)}, 0).sum(-1)"
            rest = "".join(f"[:, {text(p)}]" for p in parts[2:])
            return V("masked", parse(weighed + rest), slots.chosen, True)
        first = self.ev(parts[0]) if not isinstance(parts[0], ast.Slice) else V("plain", parts[0])
        if first.kind == "rows" or (first.kind == "plain" and first.boolean):
            self.kinds.add("selection")
            chosen = self.hoist(first.chosen if first.kind == "rows" and first.chosen is not None else first.node, "chosen")
            full = value.node
            if len(parts) > 1:
                full = ast.Subscript(value.node, ast.Tuple([ast.Slice(), *parts[1:]], ast.Load()), ast.Load())
            return V("masked", full, chosen, True, value.boolean)
        made = copy.copy(node)
        made.value = value.node
        if not isinstance(node.slice, (ast.Slice, ast.Tuple)):
            made.slice = self.plain(node.slice)
        return V("plain", made)

    def _attribute(self, node: ast.Attribute) -> V:
        value = self.ev(node.value)
        if value.kind == "masked":
            if node.attr in ("dtype", "device", "ndim"):
                return V("plain", ast.Attribute(value.node, node.attr))
            raise Refused(_("{what} is asked of a selection").format(what=text(node)[:80]))
        return V("plain", ast.Attribute(value.node, node.attr), boolean=False)

    def write(self, target: ast.expr, index: ast.expr, value: ast.expr, *, add: bool) -> ast.expr | None:
        """target with `value` put (or added) at the chosen rows, None when the index is no selection."""
        where = self.ev(index)
        if where.kind != "rows" and not where.boolean:
            return None
        self.kinds.add("scatter")
        chosen = self.hoist(where.chosen if where.chosen is not None else where.node, "chosen")
        given = self.ev(value)
        if given.kind == "masked" and (not given.rows or text(given.chosen) != text(chosen)):  # type: ignore[arg-type]
            raise Refused(_("two different selections meet in {what}").format(what=text(value)[:80]))
        mask = text(self.mask_for(V("masked", target, chosen, True), target))
        if add:
            return parse(f"{text(target)} + torch.where({mask}, {text(given.node)}, 0)")
        return parse(f"torch.where({mask}, {text(given.node)}, {text(target)})")


def _is_number(node: ast.expr) -> bool:
    try:
        return isinstance(ast.literal_eval(node), int)
    except (ValueError, SyntaxError):
        return False
