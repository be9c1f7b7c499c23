"""Rewriting of statements: branches on data become torch.where, early exits and breaks become masks, loops over experts become dense.

Only the statements that change are edited, so comments and formatting elsewhere stay.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field

from npulift.controlflow.expressions import Expressions
from npulift.controlflow.values import Refused, V, call_name, depends_on_data, is_torch, parse, text
from npulift.messages import _


@dataclass
class Edit:
    """Lines first..last of the function (counted as in its ast) are replaced by `lines`, unindented relative to `column`; last < first inserts before first."""

    first: int
    last: int
    column: int
    lines: list[str]


@dataclass
class Plan:
    """What a function becomes. kinds: what was done ('branch', 'early-exit', 'break', 'while', 'selection', 'scatter', 'item')."""

    edits: list[Edit] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    lines: set[int] = field(default_factory=set)
    guards: set[int] = field(default_factory=set)
    sites: int = 0


class Statements:
    """Rewrites one function. spots: lines on which a branch or a value depends on data, as the capture saw it; branch: name of a hook around each condition ('' for none)."""

    def __init__(self, function: ast.FunctionDef, spots: set[int], booleans: set[str], *, square: bool, branch: str = "") -> None:
        self.function, self.spots, self.branch = function, spots, branch
        self.plan = Plan()
        env = {name: V("plain", parse(name), boolean=True) for name in booleans}
        self.e = Expressions(env, square)
        self.e.used |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} | {a.arg for a in function.args.args}
        self.anchor = next((a.arg for a in function.args.args if a.arg != "self"), "")
        self.done = self.result = ""
        self.exits = any(self._leaves(n) for n in ast.walk(function) if isinstance(n, ast.If))

    def run(self) -> Plan:
        """The plan. Raises Refused."""
        known = {a.arg for a in self.function.args.args}
        self._block(self.function.body, "", known, top=True)
        self.plan.kinds |= self.e.kinds
        return self.plan

    # --- what depends on data ------------------------------------------------------------------------------------------------------

    def _scalars(self) -> set[str]:
        return {n for n, v in self.e.env.items() if v.kind in ("scalar", "count")}

    def _on_data(self, test: ast.expr) -> bool:
        lines = range(test.lineno, (test.end_lineno or test.lineno) + 1)
        names = self._scalars() | {n for n, v in self.e.env.items() if v.kind in ("masked", "rows")}
        static = isinstance(test, ast.Compare) and any(isinstance(o, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for o in test.ops)
        return not static and (bool(self.spots & set(lines)) or depends_on_data(test, names))

    def _leaves(self, node: ast.If) -> bool:
        return self._on_data(node.test) and any(isinstance(s, ast.Return) for s in (*node.body, *node.orelse))

    def condition(self, test: ast.expr) -> str:
        """The test as a boolean tensor."""
        made = self._condition(test)
        return f"{self.branch}({test.lineno}, {made})" if self.branch else made

    def _condition(self, test: ast.expr) -> str:
        match test:
            case ast.BoolOp():
                symbol = " & " if isinstance(test.op, ast.And) else " | "
                reads = [depends_on_data(v, self._scalars()) for v in test.values]
                reads = reads if any(reads) else [True] * len(reads)
                return symbol.join(f"({self._condition(v)})" if r else f"bool({text(v)})" for v, r in zip(test.values, reads, strict=True))
            case ast.UnaryOp(op=ast.Not()):
                return f"~({self._condition(test.operand)})"
            case ast.Compare() if len(test.ops) > 1:
                sides = [test.left, *test.comparators]
                pairs = [ast.Compare(a, [op], [b]) for a, op, b in zip(sides, test.ops, sides[1:], strict=False)]
                return " & ".join(f"({self._condition(ast.copy_location(p, test))})" for p in pairs)
            case ast.Compare():
                if any(isinstance(o, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for o in test.ops):
                    raise Refused(_("the condition {what} is no comparison of numbers").format(what=text(test)[:80]))
                return text(self.e.plain(test))
            case ast.Call():
                name = call_name(test)
                if name == "equal" and len(test.args) == 2:
                    a, b = (text(self.e.plain(x)) for x in test.args)
                    return f"(({a}) == ({b})).all()"
                if name == "allclose":
                    return f"torch.isclose({', '.join(text(a) for a in test.args)}{''.join(f', {k.arg}={text(k.value)}' for k in test.keywords)}).all()"
                if name == "bool" and len(test.args) == 1:
                    return self._condition(test.args[0])
        made = self.e.plain(test)
        if call_name(test) in ("any", "all", "isnan", "isinf", "isfinite", "logical_not", "logical_and", "logical_or", "gt", "lt", "ge", "le"):
            return text(made)
        if isinstance(test, ast.Name) and self.e.env.get(test.id, V("plain", test)).boolean:
            return text(made)
        return f"({text(made)}) != 0"

    # --- statements ----------------------------------------------------------------------------------------------------------------

    def _edit(self, node: ast.stmt, lines: list[str], kind: str = "") -> None:
        self.plan.edits.append(Edit(node.lineno, node.end_lineno or node.lineno, node.col_offset, [*self.e.prelude, *lines]))
        self.e.prelude.clear()
        self.plan.lines.add(node.lineno)
        if kind:
            self.plan.kinds.add(kind)
            self.plan.sites += 1

    def _block(self, body: list[ast.stmt], live: str, known: set[str], *, top: bool = False) -> None:
        """live: name of the mask under which assignments of known names take effect, '' for none."""
        for position, node in enumerate(body):
            following = body[position + 1:]
            match node:
                case ast.If() if self._guard(node):
                    self._drop_guard(node, live, known)
                case ast.If() if self._on_data(node.test):
                    if self._simple_return(node, following):
                        self._select_return(node, following[0] if following else None)
                        return
                    self._branch(node, live, known, top=top, before=node)
                case ast.If():
                    self._reject_breaks(node, live)
                    self._block(node.body, live, known)
                    self._block(node.orelse, live, known)
                case ast.For():
                    self._loop(node, live, known, top=top)
                case ast.While():
                    self._while(node, live, known)
                case ast.With():
                    self._block(node.body, live, known)
                case ast.Assert() if self._on_data(node.test):
                    raise Refused(_("an assert on data (line {line}); check the inputs outside of the model, or use torch._assert_async").format(line=node.lineno))
                case ast.Return():
                    self._return(node, live)
                case _:
                    self._simple(node, live, known)
            for name in _assigned([node]):
                known.add(name)

    def _reject_breaks(self, node: ast.If, live: str) -> None:
        if live and any(isinstance(n, (ast.Break, ast.Continue)) for n in ast.walk(node)):
            raise Refused(_("break or continue beside a masked exit (line {line})").format(line=node.lineno))

    def _simple(self, node: ast.stmt, live: str, known: set[str]) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                return self._assign(node, target.id, node.value, live, known)
            if isinstance(target, ast.Subscript):
                made = self.e.write(target.value, target.slice, node.value, add=False) if isinstance(target.value, ast.Name) else None
                if made is not None:
                    return self._store(node, target.value.id, made, live)  # type: ignore[attr-defined]
            if isinstance(target, ast.Tuple) and len(target.elts) == 1 and isinstance(target.elts[0], ast.Name) and call_name(node.value) == "where":
                value = self.e._rows_of(ast.Subscript(node.value, ast.Constant(0), ast.Load()))
                if value is not None:
                    return self._assign_value(node, target.elts[0].id, value)
            if isinstance(target, ast.Tuple) and len(target.elts) == 2 and all(isinstance(t, ast.Name) for t in target.elts) and call_name(node.value) in ("where", "nonzero"):
                return self._slots(node, target.elts[0].id, target.elts[1].id)  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            return self._assign(node, node.target.id, node.value, live, known)
        if isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Subscript) and isinstance(node.target.value, ast.Name) and isinstance(node.op, ast.Add):
                made = self.e.write(node.target.value, node.target.slice, node.value, add=True)
                if made is not None:
                    return self._store(node, node.target.value.id, made, live)
            if isinstance(node.target, ast.Name):
                sum_ = ast.copy_location(ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value), node)
                plain = text(self.e.plain(node.value)) == text(node.value) and not self.e.prelude
                if plain and not (live and node.target.id in known) and not self.exits:
                    return None
                return self._assign(node, node.target.id, sum_, live, known, changed=True)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            name = call_name(call)
            if name in ("index_add_", "index_copy_") and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and len(call.args) >= 3:
                made = self.e.write(call.func.value, call.args[1], call.args[2], add=name == "index_add_")
                if made is not None:
                    return self._store(node, call.func.value.id, made, live)
            if name.endswith("_") and not name.startswith("_") and (live or self.exits):
                raise Refused(_("{name} changes a tensor in place, which a mask cannot undo (line {line})").format(name=name, line=node.lineno))
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.AnnAssign)) and getattr(node, "value", None) is not None:
            before = text(node.value)  # type: ignore[union-attr, arg-type]
            made_value = self.e.plain(node.value)  # type: ignore[union-attr, arg-type]
            if live and isinstance(node, ast.Assign):
                names = [n for n in _assigned([node]) if n in known]
                if names:
                    raise Refused(_("several values are assigned at once under a mask (line {line})").format(line=node.lineno))
            if text(made_value) != before or self.e.prelude:
                again = ast.parse(text(node)).body[0]
                again.value = made_value  # type: ignore[attr-defined]
                self._edit(node, [text(again)])
        return None

    def _store(self, node: ast.stmt, name: str, made: ast.expr, live: str) -> None:
        value = text(made)
        if live:
            value = f"torch.where({live}, {value}, {name})"
        self._edit(node, [f"{name} = {value}"], "scatter")
        self.e.env.pop(name, None)

    def _assign(self, node: ast.stmt, name: str, expression: ast.expr, live: str, known: set[str], *, changed: bool = False) -> None:
        if isinstance(expression, ast.IfExp) and self._on_data(expression.test):
            a, b = text(self.e.plain(expression.body)), text(self.e.plain(expression.orelse))
            made = f"torch.where({self.condition(expression.test)}, {a}, {b})"
            self.e.env.pop(name, None)
            return self._edit(node, [f"{name} = {self._masked(live, made, name, known)}"], "branch")
        value = self.e.ev(expression)
        if value.kind in ("masked", "rows"):
            if live:
                raise Refused(_("a selection is made under a mask (line {line})").format(line=node.lineno))
            return self._assign_value(node, name, value)
        now = text(value.node)
        self.e.env.pop(name, None)
        if value.kind in ("scalar", "count"):
            self.e.env[name] = V(value.kind, parse(name), boolean=value.boolean)
        elif value.boolean:
            self.e.env[name] = V("plain", parse(name), boolean=True)
        wrapped = self._masked(live, now, name, known)
        if wrapped != text(expression) or changed or self.e.prelude:
            self._edit(node, [f"{name} = {wrapped}"])
        return None

    def _masked(self, live: str, value: str, name: str, known: set[str]) -> str:
        return f"torch.where({live}, {value}, {name})" if live and name in known else value

    def _assign_value(self, node: ast.stmt, name: str, value: V) -> None:
        """A name that stands for a selection: the full tensor under the same name, the mask beside it."""
        assert value.chosen is not None
        lines = []
        if value.kind == "masked":
            lines.append(f"{name} = {text(value.node)}")
        chosen = value.chosen
        if not isinstance(chosen, ast.Name):
            mask = self.e.new(f"{name}_chosen" if value.kind == "masked" else f"{name}_mask")
            lines.append(f"{mask} = {text(chosen)}")
            chosen = parse(mask)
        self.e.env[name] = V(value.kind, parse(name) if value.kind == "masked" else chosen, chosen, value.rows, value.boolean)
        self._edit(node, lines or ["pass"], "selection")

    def _slots(self, node: ast.Assign, slot: str, row: str) -> None:
        """slot, row = torch.where(mask) with a mask of (slots, rows): the rows that any slot chose, and the mask itself to weigh them with."""
        call = node.value
        assert isinstance(call, ast.Call)
        source = call.args[0] if call_name(call) == "where" and len(call.args) == 1 else call.func.value if isinstance(call.func, ast.Attribute) and not is_torch(call.func.value) else None
        if source is None:
            raise Refused(_("positions along two axes are taken of something else than a mask (line {line})").format(line=node.lineno))
        whole, rows = self.e.new(f"{row}_slots"), self.e.new(f"{row}_mask")
        self.e.env[slot] = V("slots", parse(whole), parse(rows))
        self.e.env[row] = V("rows", parse(rows), parse(rows))
        self._edit(node, [f"{whole} = ({text(self.e.plain(source))}) != 0", f"{rows} = {whole}.any(0)"], "selection")

    def _return(self, node: ast.Return, live: str) -> None:
        if live:
            raise Refused(_("a return inside a masked loop (line {line})").format(line=node.lineno))
        if node.value is None:
            if self.done:
                raise Refused(_("a return without a value (line {line})").format(line=node.lineno))
            return
        if isinstance(node.value, ast.IfExp) and self._on_data(node.value.test):
            a, b = text(self.e.plain(node.value.body)), text(self.e.plain(node.value.orelse))
            made = f"torch.where({self.condition(node.value.test)}, {a}, {b})"
        else:
            made = text(self.e.plain(node.value))
        if self.done:
            made = self._keep(made, node.value)
            if self._loop_exit:
                made = f"{made} if {self.result} is not None else {text(self.e.plain(node.value))}"
        if made != text(node.value) or self.e.prelude:
            self._edit(node, [f"return {made}"], "branch" if isinstance(node.value, ast.IfExp) else "")

    # --- branches ------------------------------------------------------------------------------------------------------------------

    def _guard(self, node: ast.If) -> bool:
        """`if idx.numel() == 0: continue` and `if mask.any(): ...` around work on a selection: the masked form needs no guard."""
        empty, filled = self._emptiness(node.test)
        return (empty and len(node.body) == 1 and isinstance(node.body[0], (ast.Continue, ast.Pass)) and not node.orelse) or (filled and not node.orelse and self._selects(node.body))

    def _emptiness(self, test: ast.expr) -> tuple[bool, bool]:
        """(the test is true for an empty selection, the test is true for one that is not empty)."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            a, b = self._emptiness(test.operand)
            return b, a
        if call_name(test) == "any" and isinstance(test, ast.Call):
            return False, True
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value == 0:
            source = text(test.left)
            sized = any(s in source for s in (".numel()", ".shape[0]", "len(", ".size(0)", ".sum()"))
            names = {n.id for n in ast.walk(test.left) if isinstance(n, ast.Name)}
            about = any(self.e.env.get(n, V("plain", test.left)).kind in ("rows", "masked") or self.e.env.get(n, V("plain", test.left)).boolean for n in names)
            if sized and about:
                return isinstance(test.ops[0], ast.Eq), isinstance(test.ops[0], (ast.Gt, ast.NotEq))
        return False, False

    @staticmethod
    def _selects(body: list[ast.stmt]) -> bool:
        return any(isinstance(n, ast.Subscript) for s in body for n in ast.walk(s)) and not any(isinstance(n, (ast.Return, ast.Break)) for s in body for n in ast.walk(s))

    def _drop_guard(self, node: ast.If, live: str, known: set[str]) -> None:
        self.plan.guards.add(node.test.lineno)
        if isinstance(node.body[0], (ast.Continue, ast.Pass)):
            self.plan.edits.append(Edit(node.lineno, node.end_lineno or node.lineno, node.col_offset, []))
            self.plan.lines.add(node.lineno)
            return
        # The body moves out of the guard: edits inside it are made first, then its lines lose one level.
        start = len(self.plan.edits)
        self._block(node.body, live, known)
        inner = self.plan.edits[start:]
        del self.plan.edits[start:]
        lines: list[str] = []
        for statement in node.body:
            found = [e for e in inner if e.first == statement.lineno]
            lines += found[0].lines if found else text(statement).splitlines()
        self.plan.edits.append(Edit(node.lineno, node.end_lineno or node.lineno, node.col_offset, lines))
        self.plan.lines.add(node.lineno)

    @staticmethod
    def _simple_return(node: ast.If, following: list[ast.stmt]) -> bool:
        def one(body: list[ast.stmt]) -> bool:
            return len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None and not isinstance(body[0].value, (ast.Tuple, ast.Dict, ast.List))

        return one(node.body) and (one(node.orelse) or (not node.orelse and one(following)))

    def _select_return(self, node: ast.If, following: ast.stmt | None) -> None:
        if self.done:
            raise Refused(_("several exits of different kinds (line {line})").format(line=node.lineno))
        other = node.orelse[0] if node.orelse else following
        assert isinstance(node.body[0], ast.Return)
        assert isinstance(other, ast.Return)
        condition = self.condition(node.test)
        a, b = text(self.e.plain(node.body[0].value)), text(self.e.plain(other.value))  # type: ignore[arg-type]
        self._edit(node, [f"return torch.where({condition}, {a}, {b})"], "branch")
        if not node.orelse and following is not None:
            self.plan.edits.append(Edit(following.lineno, following.end_lineno or following.lineno, following.col_offset, []))

    def _branch(self, node: ast.If, live: str, known: set[str], *, top: bool, before: ast.stmt) -> None:
        leaves = [s for s in (*node.body, *node.orelse) if isinstance(s, ast.Return)]
        breaks = [s for s in (*node.body, *node.orelse) if isinstance(s, ast.Break)]
        if any(isinstance(n, ast.Raise) for s in (*node.body, *node.orelse) for n in ast.walk(s)):
            raise Refused(_("the branch at line {line} raises; check its condition outside of the model or with torch._assert_async").format(line=node.lineno))
        if leaves:
            return self._exit(node, live, known)
        if breaks:
            if not live:
                raise Refused(_("a break outside of a loop that could be masked (line {line})").format(line=node.lineno))
            if len(node.body) == 1 and not node.orelse:
                return self._edit(node, [f"{live} = {live} & ~({self.condition(node.test)})"], "break")
            if node.orelse or not isinstance(node.body[-1], ast.Break):
                raise Refused(_("a break inside a larger branch (line {line})").format(line=node.lineno))
            stop = self.e.new("stop")
            lines = [f"{stop} = {self.condition(node.test)}", *self._converted(stop, node.body[:-1], [], live, known), f"{live} = {live} & ~{stop}"]
            return self._edit(node, lines, "break")
        assignments = [s for s in (*node.body, *node.orelse)]
        single = [s for s in assignments if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)]
        if len(single) == len(assignments) and len(node.body) == 1 and len(node.orelse) <= 1:
            names = {s.targets[0].id for s in single}  # type: ignore[attr-defined]
            name = next(iter(names))
            if len(names) == 1 and (node.orelse or name in known):
                condition = self.condition(node.test)
                a = text(self.e.plain(single[0].value))
                b = text(self.e.plain(single[1].value)) if node.orelse else name
                value = f"torch.where({condition}, {a}, {b})"
                self.e.env.pop(name, None)
                return self._edit(node, [f"{name} = {self._masked(live, value, name, known)}"], "branch")
        name = self.e.new("condition")
        lines = [f"{name} = {self.condition(node.test)}", *self._converted(name, node.body, node.orelse, live, known)]
        return self._edit(node, lines, "branch")

    def _converted(self, condition: str, then: list[ast.stmt], other: list[ast.stmt], live: str, known: set[str]) -> list[str]:
        """Both sides computed, each under names of its own, and selected."""
        lines: list[str] = []
        names: list[str] = []
        sides: list[dict[str, str]] = []
        for body, suffix in ((then, "then"), (other, "otherwise")):
            renamed: dict[str, str] = {}
            for statement in body:
                if isinstance(statement, ast.Pass) or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                    continue
                if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                    target, value = statement.target.id, ast.BinOp(ast.Name(statement.target.id, ast.Load()), statement.op, statement.value)
                elif isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
                    target, value = statement.targets[0].id, statement.value  # type: ignore[assignment]
                elif isinstance(statement, ast.If) and self._on_data(statement.test):
                    nested = self.e.new("inner")
                    lines.append(f"{nested} = {text(_rename(parse(self.condition(statement.test)), renamed))}")
                    inner = self._converted(nested, statement.body, statement.orelse, "", known | set(renamed))
                    for line in inner:  # the nested branch works on this side's names
                        made = _rename(ast.parse(line).body[0], renamed, store=True)
                        lines.append(text(made))
                    for changed in _assigned([statement]):
                        if changed not in renamed:
                            raise Refused(_("a branch inside a branch changes {name} (line {line})").format(name=changed, line=statement.lineno))
                    continue
                else:
                    raise Refused(_("the branch at line {line} does more than assign names: {what}").format(line=statement.lineno, what=text(statement).splitlines()[0][:60]))
                made = _rename(self.e.plain(value), renamed)  # type: ignore[assignment]
                fresh = self.e.new(f"{target}_{suffix}")
                lines += [*self.e.prelude, f"{fresh} = {text(made)}"]
                self.e.prelude.clear()
                renamed[target] = fresh
                if target not in names:
                    names.append(target)
            sides.append(renamed)
        for name in names:
            a, b = (side.get(name, name if name in known else "") for side in sides)
            self.e.env.pop(name, None)
            if not a or not b:  # assigned on one side alone and unknown before: only that side can use it
                lines.append(f"{name} = {a or b}")
                continue
            lines.append(f"{name} = {self._masked(live, f'torch.where({condition}, {a}, {b})', name, known)}")
        return lines

    # --- exits ---------------------------------------------------------------------------------------------------------------------

    _loop_exit = False

    def _begin(self, before: ast.stmt) -> None:
        if not self.done:
            self.done, self.result = self.e.new("done"), self.e.new("result")
            self.plan.edits.append(Edit(before.lineno, before.lineno - 1, before.col_offset, [
                f"{self.done} = torch.zeros((), dtype=torch.bool, device={self.anchor}.device)", f"{self.result} = None",
            ]))

    def _keep(self, value: str, node: ast.expr) -> str:
        if isinstance(node, ast.Tuple):
            return f"tuple(torch.where({self.done}, kept, new) for kept, new in zip({self.result}, {value}))"
        if isinstance(node, (ast.Dict, ast.List, ast.Constant)):
            raise Refused(_("an exit returns {what}, which torch.where cannot select").format(what=text(node)[:40]))
        return f"torch.where({self.done}, {self.result}, {value})"

    def _exit(self, node: ast.If, live: str, known: set[str]) -> None:
        if live:
            raise Refused(_("return and break in the same loop (line {line})").format(line=node.lineno))
        if node.orelse or not isinstance(node.body[-1], ast.Return) or node.body[-1].value is None:
            raise Refused(_("the exit at line {line} has another form than `if ...: return value`").format(line=node.lineno))
        self._begin(self._outermost or node)
        renamed: dict[str, str] = {}
        leave = self.e.new("leave")
        lines = [f"{leave} = {self.condition(node.test)}"]
        for statement in node.body[:-1]:
            if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
                raise Refused(_("the exit at line {line} does more than assign names and return").format(line=node.lineno))
            fresh = self.e.new(f"{statement.targets[0].id}_leaving")
            lines.append(f"{fresh} = {text(_rename(self.e.plain(statement.value), renamed))}")
            renamed[statement.targets[0].id] = fresh
        value = text(_rename(self.e.plain(node.body[-1].value), renamed))
        lines += [
            f"{self.result} = {value} if {self.result} is None else {self._keep(value, node.body[-1].value)}",
            f"{self.done} = {self.done} | {leave}",
        ]
        self._edit(node, lines, "early-exit")

    _outermost: ast.stmt | None = None

    def _loop(self, node: ast.For, live: str, known: set[str], *, top: bool) -> None:
        if isinstance(node.iter, ast.Call) and call_name(node.iter) == "range" and any(self._on_data(a) for a in node.iter.args):
            raise Refused(_("the loop at line {line} runs as often as the data says; give it a bound").format(line=node.lineno))
        if any(call_name(n) in ("nonzero", "unique", "tolist") for n in ast.walk(node.iter)) or any(
            isinstance(n, ast.Name) and self.e.env.get(n.id, V("plain", n)).kind in ("rows", "masked") for n in ast.walk(node.iter)
        ):
            raise Refused(_("the loop at line {line} goes over what the data chose; loop over all and mask").format(line=node.lineno))
        outermost = self._outermost
        if self._outermost is None:
            self._outermost = node
        if any(isinstance(n, ast.If) and self._leaves(n) for n in ast.walk(node)):
            self._loop_exit = True
        own = self._breaks_on_data(node)
        if own and node.orelse:
            raise Refused(_("a loop with else (line {line})").format(line=node.lineno))
        inner = live
        if own:
            if live:
                raise Refused(_("masked loops inside one another (line {line})").format(line=node.lineno))
            inner = self.e.new("live")
            self.plan.edits.append(Edit(node.lineno, node.lineno - 1, node.col_offset, [f"{inner} = torch.ones((), dtype=torch.bool, device={self.anchor}.device)"]))
            self._check_after(node, known)
        self._block(node.body, inner, set(known) if inner and not live else known)
        self._outermost = outermost

    def _breaks_on_data(self, node: ast.For) -> bool:
        found = False
        todo: list[ast.stmt] = list(node.body)
        while todo:
            statement = todo.pop()
            if isinstance(statement, ast.If):
                if self._on_data(statement.test) and any(isinstance(s, ast.Break) for s in (*statement.body, *statement.orelse)):
                    found = True
                todo += [*statement.body, *statement.orelse]
            elif isinstance(statement, ast.With):
                todo += statement.body
        return found

    def _check_after(self, node: ast.For | ast.While, known: set[str]) -> None:
        """A name that the loop makes and the code behind it reads would have the last trip's value."""
        made = _assigned(node.body) - known
        if isinstance(node, ast.For):
            made |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
        after = {n.id for s in ast.walk(self.function) if isinstance(s, ast.Name) and s.lineno > (node.end_lineno or 0) for n in [s] if isinstance(n.ctx, ast.Load)}
        if made & after:
            raise Refused(_("{names} come from the loop and are read behind it (line {line})").format(names=", ".join(sorted(made & after)), line=node.lineno))

    def _while(self, node: ast.While, live: str, known: set[str]) -> None:
        if not self._on_data(node.test):
            return self._block(node.body, live, known)
        if live:
            raise Refused(_("masked loops inside one another (line {line})").format(line=node.lineno))
        parts = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else [node.test]
        counters = [p for p in parts if isinstance(p, ast.Compare) and isinstance(p.left, ast.Name) and isinstance(p.ops[0], ast.Lt) and not depends_on_data(p, self._scalars())]
        last = node.body[-1]
        counter = counters[0] if counters else None
        counts = (
            isinstance(last, ast.AugAssign) and isinstance(last.target, ast.Name) and counter is not None and isinstance(counter.left, ast.Name)
            and last.target.id == counter.left.id and isinstance(last.value, ast.Constant) and last.value.value == 1
        )
        if counter is None or not counts or node.orelse:
            raise Refused(_("the while loop at line {line} has no bound; add one (`while ... and step < 10`, with `step += 1` as the last statement)").format(line=node.lineno))
        rest = [p for p in parts if p is not counter]
        name = counter.left.id  # type: ignore[attr-defined]
        self._check_after(node, known - {name})
        mask = self.e.new("live")
        condition = " & ".join(f"({self.condition(p)})" for p in rest)
        start = [f"{mask} = torch.ones((), dtype=torch.bool, device={self.anchor}.device)"]
        header = f"for {name} in range({name}, {text(counter.comparators[0])}):"
        self.plan.edits.append(Edit(node.lineno, node.test.end_lineno or node.lineno, node.col_offset, [*start, header, f"    {mask} = {mask} & {condition}"]))
        self.plan.kinds.add("while")
        self.plan.sites += 1
        self.plan.lines.add(node.lineno)
        self._block(node.body[:-1], mask, set(known))
        self.plan.edits.append(Edit(last.lineno, last.end_lineno or last.lineno, last.col_offset, ["pass"] if len(node.body) == 1 else []))
        return None


def _assigned(body: list[ast.stmt]) -> set[str]:
    names = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def _rename(node: ast.AST, names: dict[str, str], *, store: bool = False):  # type: ignore[no-untyped-def]
    class Renamer(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.Name:
            return ast.copy_location(ast.Name(names[name.id], name.ctx), name) if name.id in names else name

    return Renamer().visit(copy.deepcopy(node))
