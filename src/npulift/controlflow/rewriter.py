"""Find what can be rewritten in the user's forward(), rewrite it, build the module with it, and verify it before anyone sees it."""

from __future__ import annotations

import ast
import copy
import difflib
import inspect
import linecache
import textwrap
import types
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from npulift import graphs
from npulift.capture import Capture
from npulift.changes import Change, Variant
from npulift.controlflow.statements import Edit, Plan, Statements
from npulift.controlflow.values import Refused, text
from npulift.controlflow.verification import Evidence, verify
from npulift.findings import Finding, Location
from npulift.messages import _
from npulift.model import ModelSpec


@dataclass(frozen=True)
class Rewritten:
    """One class whose forward() was rewritten, or could not be.

    file, line: of the class's forward.   lines: lines (of the file) that change.   kinds: what was done, see statements.Plan.
    new_file: the whole file with the change, '' when refused.   diff: unified.   refused: why not, '' when it was done.
    evidence: what verified it.   exports: whether torch.export takes the rewritten model without a draft.
    """

    file: str
    line: int
    class_name: str
    function: str = "forward"
    known: bool = True
    lines: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    new_file: str = ""
    diff: str = ""
    refused: str = ""
    evidence: Evidence | None = None
    exports: bool | None = None
    build: Any = None
    first: int = 0
    last: int = 0
    flop_factor: float | None = None

    @property
    def reason(self) -> str:
        """What was done and why, for people."""
        texts = {
            "early-exit": _("early exit becomes full depth with a mask: every layer runs, and the value of the exit taken is kept"),
            "branch": _("a branch on data becomes torch.where: both sides are computed, the condition selects"),
            "break": _("a loop that stops on data runs to its bound, and a mask keeps what had been reached"),
            "while": _("a while loop on data runs to its bound, and a mask keeps what had been reached"),
            "selection": _("a selection keeps its full size with a mask, and the reduction counts what was chosen"),
            "scatter": _("rows are written through a mask over all rows, instead of by their positions"),
            "item": _("a value stays on the device as a 0-d tensor instead of going to Python"),
        }
        return "; ".join(texts[k] for k in texts if k in self.kinds) + "."

    def as_json(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "file": self.file, "line": self.line, "class": self.class_name, "function": self.function, "lines": list(self.lines), "kinds": list(self.kinds), "refused": self.refused or None,
            "diff": self.diff, "reason": self.reason if not self.refused else None, "exports": self.exports, "flop_factor": self.flop_factor,
            "verified": self.evidence.as_json() if self.evidence else None,
        }


_CACHE: OrderedDict[int, tuple[Capture, list[Rewritten]]] = OrderedDict()


def rewrites_of(capture: Capture) -> list[Rewritten]:
    """Every class of the user's own whose forward() depends on data, rewritten and verified, or refused with the reason. Nothing on disk is touched."""
    found = _CACHE.get(id(capture))
    if found is None or found[0] is not capture:
        _CACHE.clear()
        found = _CACHE[id(capture)] = (capture, list(_rewrites(capture)))
    return found[1]


def proposals(capture: Capture, finding: Finding | None = None) -> Iterator[Change]:
    """The verified rewrites as changes that tune can try: apply() replaces the module by one with the rewritten class."""
    for rewritten in rewrites_of(capture):
        if not rewritten.refused:
            yield Change(
                f"source-{'-'.join(rewritten.kinds)}", _("Rewrite {name}.{function} (line {line}): {reason}").format(
                    name=rewritten.class_name, function=rewritten.function, line=rewritten.line, reason=rewritten.reason),
                0.3, partial(_apply, rewritten), True, finding, f"{rewritten.class_name}:{rewritten.line}",
            )


def rewritten_spec(capture: Capture) -> tuple[ModelSpec, list[Rewritten]] | None:
    """(the spec with every verified rewrite made, those rewrites) for a model that no compiler takes as it is: it cannot be exported, or sizes in it depend on data.

    None when the model is fine as it is, or when nothing could be rewritten so that it is.
    """
    sized = any(isinstance(s, str) and s.startswith("u") and s[1:].isdigit() for op in capture.exported_ops for t in op.outputs for s in t.shape)
    if capture.exported is not None and not capture.draft and not sized:
        return None
    done = [r for r in rewrites_of(capture) if not r.refused]
    module = capture.spec.module
    for rewritten in done:
        module = rewritten.build(module)
    spec = replace(capture.spec, module=module)
    if not done or not _exports(replace(capture, spec=spec), lambda m: m):
        return None
    return spec, done


def _apply(rewritten: Rewritten, variant: Variant) -> Variant | None:
    module = variant.module
    if isinstance(module, torch.fx.GraphModule):
        return None  # a graph that was already traced has no forward() of the user's any more
    return variant.with_module(rewritten.build(module))


def _rewrites(capture: Capture) -> Iterator[Rewritten]:
    if capture.device == "meta":
        return
    spots: dict[str, set[int]] = {}
    for spot in capture.data_dependent:
        if spot.location is not None:
            spots.setdefault(_resolved(spot.location.file), set()).add(spot.location.line)
    # Spots that a branch hides from both views show in the source alone, so every class of the user's own is looked at when anything depends on data.
    if not spots and "data" not in capture.export_error.lower():
        return
    seen = set()
    modules = {name: m for name, m in capture.spec.module.named_modules()}
    for module in modules.values():
        cls = type(module)
        if cls in seen:
            continue
        seen.add(cls)
        made: list[Rewritten] = []
        for name, method in list(cls.__dict__.items()):
            if not isinstance(method, types.FunctionType) or name == "__init__" or graphs.is_library(_resolved(method.__code__.co_filename)):
                continue
            source = _source(method)
            if source is None:
                continue
            mine = spots.get(_resolved(method.__code__.co_filename), set())
            if name != "forward" and not mine & set(range(source[2], source[2] + _block_length(method))):
                continue  # other methods only where something was seen
            made += _rewrite_class(capture, cls, method, source, mine)
        # A forward() that only calls a method in which the spot lies has nothing of its own to refuse.
        yield from (r for r in made if not (r.refused and not r.known and len(made) > 1))


def _resolved(file: str) -> str:
    return str(Path(file).resolve())


def _source(forward: types.FunctionType) -> tuple[str, list[str], int] | None:
    """(file, its lines, number of the line on which forward starts)."""
    file = forward.__code__.co_filename
    lines = linecache.getlines(file)
    if not lines:
        return None
    try:
        _block, start = inspect.getsourcelines(forward)
    except (OSError, TypeError):
        return None
    return file, [line.rstrip("\n") for line in lines], start


def _block_length(method: types.FunctionType) -> int:
    return len(inspect.getsourcelines(method)[0])


def _rewrite_class(capture: Capture, cls: type, forward: types.FunctionType, source: tuple[str, list[str], int], spots: set[int]) -> Iterator[Rewritten]:
    file, lines, start = source
    base = Rewritten(file, start, cls.__name__, forward.__name__)
    reason = ""
    for square in (True, False):
        function = _function(lines, start)
        if function is None:
            return
        end = function.end_lineno or start
        try:
            plan = _plan(capture, function, spots, cls, square, "")
        except Refused as error:
            if spots & set(range(start, end + 1)):
                yield replace(base, refused=str(error), lines=tuple(sorted(spots & set(range(start, end + 1)))))
            return
        if not plan.edits or not plan.kinds:
            mine = sorted(spots & set(range(start, end + 1)))
            if mine:
                yield replace(base, refused=_("none of the known forms is on line {line}").format(line=mine[0]), lines=tuple(mine), known=False)
            return
        new = _edited(lines, plan.edits)
        low, high = start, end + len(new) - len(lines)
        try:
            build = partial(_build, cls=cls, forward=forward, text="\n".join(new[low - 1:high]), file=file, line=low)
            evidence = verify(capture.spec, build, *_hooked(capture, cls, forward, lines, start, spots, square))
        except Refused as error:
            reason = str(error)
            continue
        except SyntaxError as error:  # a form that the editing does not handle (several statements on a line)
            reason = _("the lines cannot be edited one by one ({error})").format(error=error.msg)
            continue
        diff = "\n".join(difflib.unified_diff(lines, new, file, file, lineterm="", n=2))
        exports = _exports(capture, build)
        yield replace(
            base, lines=tuple(sorted(plan.lines)), kinds=tuple(sorted(plan.kinds)), new_file="\n".join(new) + "\n", diff=diff, evidence=evidence, exports=exports,
            build=build, first=low, last=end, flop_factor=_flop_factor(capture, build),
        )
        return
    yield replace(base, refused=reason, lines=tuple(sorted(spots & set(range(start, start + 200)))))


def _function(lines: list[str], start: int) -> ast.FunctionDef | None:
    """The function that starts (with its decorators) at this line, with the line numbers of the file."""
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and start in (node.lineno, *(d.lineno for d in node.decorator_list)):
            return node
    return None


def _plan(capture: Capture, function: ast.FunctionDef, spots: set[int], cls: type, square: bool, branch: str) -> Plan:
    booleans: set[str] = set()
    if type(capture.spec.module) is cls and function.name == "forward":
        names = [a.arg for a in function.args.args if a.arg != "self"]
        booleans = {n for n, v in zip(names, capture.spec.inputs, strict=False) if isinstance(v, torch.Tensor) and v.dtype is torch.bool}
    return Statements(function, spots, booleans, square=square, branch=branch).run()


def _edited(lines: list[str], edits: list[Edit]) -> list[str]:
    """The lines with the edits made; those that come later in the file first, insertions before a line after the replacement of that line."""
    new = list(lines)
    for edit in sorted(edits, key=lambda e: (e.first, e.last), reverse=True):
        indent = " " * edit.column
        made = [indent + part for line in edit.lines for part in line.splitlines()]
        tail = ""
        if edit.last >= edit.first:
            own = lines[edit.last - 1]
            hash_at = own.find("  #")
            if hash_at > 0 and made and edit.first == edit.last:
                tail = own[hash_at:]
                made[-1] += tail
        new[edit.first - 1:max(edit.last, edit.first - 1)] = made
    return new


def _build(module: torch.nn.Module, *, cls: type, forward: types.FunctionType, text: str, file: str, line: int, extra: dict[str, Any] | None = None) -> torch.nn.Module:
    """A copy of the module in which every instance of cls has the rewritten forward. Parameters and buffers are copies with the same names."""
    function = compiled(forward, text, file, line, extra)
    name = f"{cls.__name__}"
    made = type(name, (cls,), {forward.__name__: function, "__module__": cls.__module__, "__qualname__": cls.__qualname__})
    memo: dict[int, Any] = {}
    result = copy.deepcopy(module, memo)
    for part in result.modules():
        if type(part) is cls:
            part.__class__ = made
    return result


def compiled(forward: types.FunctionType, source: str, file: str, line: int, extra: dict[str, Any] | None = None) -> types.FunctionType:
    """The function of this source with forward's globals and closure. Its code keeps the user's file name, with line numbers of the new text."""
    free = forward.__code__.co_freevars
    body = textwrap.indent(textwrap.dedent(source), "    ")
    wrapper = f"def _make({', '.join(free)}):\n{body}\n    return {forward.__name__}\n"
    namespace = {**forward.__globals__, **(extra or {}), "torch": torch}
    code = compile(ast.parse(wrapper), f"<rewritten {Path(file).name}>", "exec")
    exec(code, namespace)
    cells = [c.cell_contents for c in forward.__closure__ or ()]
    made = namespace["_make"](*cells)
    made.__defaults__, made.__kwdefaults__ = forward.__defaults__, forward.__kwdefaults__
    linecache.cache[code.co_filename] = (len(wrapper), None, wrapper.splitlines(True), code.co_filename)
    return made


def _hooked(capture: Capture, cls: type, forward: types.FunctionType, lines: list[str], start: int, spots: set[int], square: bool) -> tuple[Any, Any]:
    """Builders of the original and of the rewritten module in which a hook decides every branch on data, so that every path can be walked."""
    function = _function(lines, start)
    assert function is not None
    judge = Statements(function, spots, set(), square=square)
    edits = []
    for node in ast.walk(function):
        if isinstance(node, (ast.If, ast.While, ast.IfExp)) and judge._on_data(node.test) and node.test.lineno == node.test.end_lineno and not isinstance(node, ast.While):
            edits.append((node.test.lineno, node.test.col_offset, node.test.end_col_offset or 0))
    original = list(lines)
    fresh = _function(lines, start)
    assert fresh is not None
    plan = _plan(capture, fresh, spots, cls, square, "__npulift_branch_tensor")
    for number, first, last in sorted((e for e in edits if e[0] not in plan.guards), reverse=True):
        raw = original[number - 1].encode()
        original[number - 1] = (raw[:first] + f"__npulift_branch({number}, ".encode() + raw[first:last] + b")" + raw[last:]).decode()
    end = function.end_lineno or start
    new = _edited(lines, plan.edits)
    file = forward.__code__.co_filename

    def original_builder(hook: Any) -> torch.nn.Module:
        return _build(capture.spec.module, cls=cls, forward=forward, text="\n".join(original[start - 1:end]), file=file, line=start, extra={"__npulift_branch": hook})

    def new_builder(hook: Any) -> torch.nn.Module:
        return _build(capture.spec.module, cls=cls, forward=forward, text="\n".join(new[start - 1:end + len(new) - len(lines)]), file=file, line=start,
                      extra={"__npulift_branch_tensor": hook})

    return original_builder, new_builder


def _exports(capture: Capture, build: Any) -> bool:
    """Whether torch.export takes the rewritten module, with nothing left whose size depends on data."""
    try:
        program = graphs.export(capture.spec, build(capture.spec.module))
    except Exception:  # any reason of torch's is the answer no
        return False
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and any(isinstance(s, torch.SymInt) and str(s).startswith("u") for s in value.shape):
            return False
    return True


def _flop_factor(capture: Capture, build: Any) -> float | None:
    """Floating-point operations of contractions after over before, counted in eager on the example inputs; None when there are none."""
    from torch.utils.flop_counter import FlopCounterMode

    totals = []
    for module in (capture.spec.module, build(capture.spec.module)):
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            module(*[v.clone() if isinstance(v, torch.Tensor) else v for v in capture.spec.inputs])
        totals.append(counter.get_total_flops())
    return totals[1] / totals[0] if totals[0] else None


def rewrite_file(path: Path, rewrites: list[Rewritten]) -> str:
    """The file's text with all of its verified rewrites made (they are in classes of their own, so their lines do not overlap)."""
    mine = [r for r in rewrites if not r.refused and _resolved(r.file) == _resolved(str(path))]
    lines = path.read_text(encoding="utf-8").splitlines()
    for rewritten in sorted(mine, key=lambda r: -r.first):
        whole = rewritten.new_file.splitlines()
        lines[rewritten.first - 1:rewritten.last] = whole[rewritten.first - 1:rewritten.last + len(whole) - _length(path)]
    ending = "\r\n" if b"\r\n" in path.read_bytes()[:65536] else "\n"
    return ending.join(lines) + ending


def _length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


__all__ = ["Location", "Rewritten", "compiled", "proposals", "rewrite_file", "rewrites_of", "text"]
