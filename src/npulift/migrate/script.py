"""The transformation of one script with libcst: formatting and comments stay, a second pass changes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.migrate.attention import attention_call
from npulift.migrate.table import Entry, by_name


@dataclass(frozen=True)
class Step:
    """One replacement or one thing that a person has to look at.

    kind: of the table.   old, new: text (new '' for what was only reported).   line: of the original.   note, source: from the table.
    """

    kind: str
    old: str
    new: str
    line: int
    note: str = ""
    source: str = ""


@dataclass
class Migrated:
    """text: the new source.   steps: what was done.   reports: what is left to do by hand."""

    text: str
    steps: list[Step] = field(default_factory=list)
    reports: list[Step] = field(default_factory=list)


def migrate_source(source: str, name: str = "script") -> Migrated:
    """The script for an NPU. Raises NpuliftError when it is not Python."""
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise NpuliftError(_("{name} is not Python that can be parsed (line {line}): {error}.").format(name=name, line=error.raw_line, error=error.message.splitlines()[0])) from error
    wrapper = MetadataWrapper(module)
    transform = _Migration(module)
    result = wrapper.visit(transform)
    text, gone = without_unused(result.code) if any(s.kind == "attention" for s in transform.steps) else (result.code, [])
    transform.steps += [Step("import", line, "", 0, _("nothing uses it any more"), "") for line in gone]
    transform.reports = [r for r in transform.reports if not (r.kind == "package" and any(r.old.partition(".")[0] in line for line in gone))]
    needs = any(s.new for s in transform.steps) and not re.search(r"^\s*(import torch_npu\b|from torch_npu\b)", text, re.MULTILINE)
    if needs and re.search(r"\btorch\b", text):
        text = _with_import(text)
        transform.steps.insert(0, Step("import", "", "import torch_npu", 0, _("registers the device"), "torch_npu documentation"))
    return Migrated(text, transform.steps, transform.reports)


def without_unused(text: str) -> tuple[str, list[str]]:
    """The source without imports of flash_attn and xformers that nothing uses any more, and those imports."""
    module = cst.parse_module(text)
    used = [n.value for n in m.findall(module, m.Name()) if isinstance(n, cst.Name)]
    gone: list[str] = []

    class Cleaner(cst.CSTTransformer):
        def _unused(self, node: cst.SimpleStatementLine) -> bool:
            if len(node.body) != 1 or not isinstance(node.body[0], (cst.Import, cst.ImportFrom)) or isinstance(node.body[0].names, cst.ImportStar):
                return False
            statement = node.body[0]
            package = module.code_for_node(statement.module) if isinstance(statement, cst.ImportFrom) and statement.module is not None else module.code_for_node(statement.names[0].name)  # type: ignore[index]
            if package.partition(".")[0] not in ("flash_attn", "xformers"):
                return False
            locals_ = [module.code_for_node(a.asname.name if a.asname is not None else a.name).partition(".")[0] for a in statement.names]  # type: ignore[union-attr]
            return all(used.count(name) == (1 if name != package.partition(".")[0] else used.count(name)) for name in locals_) and package.partition(".")[0] not in locals_

        def _clean(self, body: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
            kept = [s for s in body if not (isinstance(s, cst.SimpleStatementLine) and self._unused(s))]
            if not kept and body:
                kept = [cst.parse_statement("pass")]
            gone.extend(module.code_for_node(s).strip() for s in body if isinstance(s, cst.SimpleStatementLine) and self._unused(s))
            return kept

        def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
            return updated_node.with_changes(body=self._clean(list(updated_node.body)))

        def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.IndentedBlock:
            return updated_node.with_changes(body=self._clean(list(updated_node.body)))

    return module.visit(Cleaner()).code, gone


def _with_import(text: str) -> str:
    """`import torch_npu` behind the first line that imports torch, else behind docstring and __future__ imports."""
    module = cst.parse_module(text)
    body = list(module.body)
    place = 0
    for index, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        first = statement.body[0]
        if isinstance(first, (cst.Import, cst.ImportFrom)):
            code = module.code_for_node(statement).strip()
            if re.match(r"import torch\b(?!\w)|from torch\b", code.splitlines()[-1]) or re.search(r"^import torch\b", code, re.MULTILINE):
                place = index + 1
                break
        if index == 0 and isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString):
            place = 1
        if isinstance(first, cst.ImportFrom) and first.module is not None and module.code_for_node(first.module) == "__future__":
            place = index + 1
    line = cst.parse_statement("import torch_npu  # registers the device npu\n")
    return module.with_changes(body=[*body[:place], line, *body[place:]]).code


class _Migration(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.module = module
        self.steps: list[Step] = []
        self.reports: list[Step] = []
        self.aliases = _aliases(module)
        self.traces_cuda = "ProfilerActivity.CUDA" in module.code
        self.replaced_calls: set[str] = set()

    # --- what happened ------------------------------------------------------------------------------------------------------

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(PositionProvider, node).start.line)

    def _done(self, node: cst.CSTNode, kind: str, old: str, new: str, entry: Entry | None = None) -> None:
        self.steps.append(Step(kind, old, new, self._line(node), entry.note if entry else "", entry.source if entry else ""))

    def _report(self, node: cst.CSTNode, kind: str, what: str, entry: Entry | None, note: str = "") -> None:
        step = Step(kind, what, entry.npu if entry else "", self._line(node), note or (entry.note if entry else ""), entry.source if entry else "")
        if (step.kind, step.old, step.line) not in {(r.kind, r.old, r.line) for r in self.reports}:
            self.reports.append(step)

    # --- names --------------------------------------------------------------------------------------------------------------

    def _dotted(self, node: cst.BaseExpression) -> str:
        """Full dotted name with import aliases resolved, '' when it is no plain name."""
        parts: list[str] = []
        current: cst.BaseExpression = node
        while isinstance(current, cst.Attribute):
            parts.append(current.attr.value)
            current = current.value
        if not isinstance(current, cst.Name):
            return ""
        return ".".join([self.aliases.get(current.value, current.value), *reversed(parts)])

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if isinstance(self.get_metadata(ParentNodeProvider, original_node), (cst.ImportFrom, cst.ImportAlias)):
            return updated_node
        parent = self.get_metadata(ParentNodeProvider, original_node)
        name = self._dotted(original_node)
        inside = isinstance(parent, cst.Attribute) and parent.value is original_node
        found = by_name("attribute").get(name)
        if found is not None and (not name.startswith("torch.profiler.") or self.traces_cuda):
            self._done(original_node, "attribute", name, found.npu, found)
            return _expression(found.npu, original_node)
        if name in ("torch.profiler.ProfilerActivity.CUDA", "torch_npu.profiler.ProfilerActivity.CUDA") or name.endswith("ProfilerActivity.CUDA"):
            self._done(original_node, "attribute", "ProfilerActivity.CUDA", "ProfilerActivity.NPU")
            return updated_node.with_changes(attr=cst.Name("NPU"))
        if not inside and name:
            for report in by_name("report").values():
                if name == report.cuda or name.startswith(report.cuda + "."):
                    if not any(name.startswith(a) for a in by_name("attribute")):
                        self._report(original_node, "report", name, report)
                    return updated_node
            if name.startswith("torch.cuda."):
                self._report(original_node, "report", name, None, _("torch_npu has no such function; look for what it is used for"))
                return updated_node
        method = by_name("method").get(original_node.attr.value)
        if method is not None and name not in ("torch.cuda", "torch.backends.cuda", "torch.version.cuda", "numba.cuda") and not (inside and name.startswith("torch.")):
            if original_node.attr.value == "cuda" and not (isinstance(parent, cst.Call) and parent.func is original_node):
                return updated_node  # an attribute named cuda that is no call is somebody's own
            self._done(original_node, "method", f".{original_node.attr.value}", f".{method.npu}", method)
            return updated_node.with_changes(attr=cst.Name(method.npu))
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return updated_node

    # --- strings ------------------------------------------------------------------------------------------------------------

    def leave_SimpleString(self, original_node: cst.SimpleString, updated_node: cst.SimpleString) -> cst.BaseExpression:
        if _is_docstring(self.get_metadata(ParentNodeProvider, original_node)):
            return updated_node
        value = original_node.raw_value
        new = _string(value)
        if new is None:
            report = by_name("environment-report").get(value)
            if report is not None:
                self._report(original_node, "environment", value, report)
            return updated_node
        entry = by_name("string").get(value.partition(":")[0]) or by_name("environment").get(value)
        self._done(original_node, "environment" if value in by_name("environment") else "string", value, new, entry)
        return updated_node.with_changes(value=f"{original_node.prefix}{original_node.quote}{new}{original_node.quote}")

    def leave_FormattedStringText(self, original_node: cst.FormattedStringText, updated_node: cst.FormattedStringText) -> cst.FormattedStringText:
        if re.fullmatch(r"cuda:?", original_node.value):
            new = original_node.value.replace("cuda", "npu")
            self._done(original_node, "string", original_node.value, new)
            return updated_node.with_changes(value=new)
        return updated_node

    # --- imports ------------------------------------------------------------------------------------------------------------

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        for alias in original_node.names:
            name = self.module.code_for_node(alias.name)
            self._package(original_node, name)
        names = []
        for alias in updated_node.names:
            if self.module.code_for_node(alias.name) == "torch.cuda" and alias.asname is None:
                self._done(original_node, "import", "import torch.cuda", "import torch_npu")
                names.append(alias.with_changes(name=cst.Name("torch_npu")))
            elif self.module.code_for_node(alias.name) in ("torch.cuda", "torch.cuda.amp"):
                new = self.module.code_for_node(alias.name).replace("torch.cuda", "torch_npu.npu")
                self._done(original_node, "import", self.module.code_for_node(alias.name), new)
                names.append(alias.with_changes(name=_expression(new, alias)))
            else:
                names.append(alias)
        return updated_node.with_changes(names=names)

    def _package(self, node: cst.CSTNode, name: str) -> None:
        for package, entry in by_name("package").items():
            if name == package or name.startswith(package + "."):
                self._report(node, "package", name, entry)

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.ImportFrom | cst.RemovalSentinel | cst.FlattenSentinel[cst.ImportFrom]:
        if original_node.module is None or isinstance(original_node.names, cst.ImportStar):
            return updated_node
        package = self.module.code_for_node(original_node.module)
        kept: list[cst.ImportAlias] = []
        moved: dict[str, list[cst.ImportAlias]] = {}
        for alias in original_node.names:
            name = self.module.code_for_node(alias.name)
            full = f"{package}.{name}"
            extension = by_name("extension").get(full)
            if extension is not None:
                self._report(original_node, "extension", full, extension)
            entry = by_name("import").get(full)
            target = entry.npu if entry else ""
            if not target and package in ("torch.cuda", "torch.cuda.memory", "torch.cuda.random") and (found := by_name("attribute").get(full)):
                target = found.npu.replace("torch.npu.", "torch_npu.npu.")
            elif package == "torch" and name == "cuda":
                target = "torch_npu.npu"
            elif package == "torch.profiler" and self.traces_cuda and full in by_name("attribute"):
                target = by_name("attribute")[full].npu
            if not target:
                kept.append(alias)
                continue
            module, _dot, new = target.rpartition(".")
            self._done(original_node, "import", full, target, entry)
            own = alias.asname or (cst.AsName(cst.Name(name)) if new != name else None)
            moved.setdefault(module, []).append(cst.ImportAlias(cst.Name(new), own))
        if not moved:
            self._package(original_node, package)
            return updated_node
        if kept:
            self._package(original_node, package)
        made: list[cst.ImportFrom] = []
        if kept:
            made.append(updated_node.with_changes(names=_comma(kept)))
        made += [updated_node.with_changes(module=_expression(module, original_node), names=_comma(names)) for module, names in moved.items()]
        return made[0] if len(made) == 1 else cst.FlattenSentinel(made)

    # --- calls ----------------------------------------------------------------------------------------------------------------

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        name = self._dotted(original_node.func)
        extension = by_name("extension").get(name)
        if extension is not None:
            self._report(original_node, "extension", name, extension)
        if name.startswith(("flash_attn.", "xformers.")) and not name.endswith(".LowerTriangularMask"):
            made = attention_call(name, updated_node)
            if isinstance(made, str):
                self._report(original_node, "attention", name, None, made)
            else:
                self._done(original_node, "attention", name, "torch.nn.functional.scaled_dot_product_attention", by_name("package").get(name.partition(".")[0]))
                return made
        for argument in original_node.args:
            if argument.keyword is not None and argument.keyword.value == "fused" and m.matches(argument.value, m.Name("True")) and "Adam" in name:
                self._report(original_node, "report", f"{name}(fused=True)", None, _("torch's fused optimizers are CUDA kernels; torch_npu.optim.NpuFusedAdamW is the counterpart"))
        if name.endswith(".to") and original_node.args and isinstance(original_node.args[0].value, cst.Integer):
            self._report(original_node, "report", f"{name}({original_node.args[0].value.value})", None, _("a device given as a number; say npu:N"))
        return updated_node


def _aliases(module: cst.Module) -> dict[str, str]:
    """Local name → full dotted name, from every import of the file."""
    found: dict[str, str] = {}

    class Finder(cst.CSTVisitor):
        def visit_Import(self, node: cst.Import) -> None:
            for alias in node.names:
                name = module.code_for_node(alias.name)
                if alias.asname is not None:
                    found[module.code_for_node(alias.asname.name)] = name

        def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
            if node.module is None or isinstance(node.names, cst.ImportStar) or node.relative:
                return
            package = module.code_for_node(node.module)
            for alias in node.names:
                name = module.code_for_node(alias.name)
                local = module.code_for_node(alias.asname.name) if alias.asname is not None else name
                found[local] = f"{package}.{name}"

    module.visit(Finder())
    return {k: v for k, v in found.items() if v.partition(".")[0] in ("torch", "flash_attn", "xformers", "apex", "numba")}


def _expression(name: str, like: cst.CSTNode) -> cst.Attribute | cst.Name:
    made = cst.parse_expression(name)
    assert isinstance(made, (cst.Attribute, cst.Name))
    if isinstance(like, cst.Attribute):
        made = made.with_changes(lpar=like.lpar, rpar=like.rpar)
    return made


def _comma(names: list[cst.ImportAlias]) -> list[cst.ImportAlias]:
    last = len(names) - 1
    return [n.with_changes(comma=cst.MaybeSentinel.DEFAULT if i == last else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))) for i, n in enumerate(names)]


def _is_docstring(parent: cst.CSTNode) -> bool:
    return isinstance(parent, cst.Expr)


def _string(value: str) -> str | None:
    """The counterpart of a whole string literal, None when it has none."""
    if value in by_name("environment"):
        return by_name("environment")[value].npu
    if re.fullmatch(r"cuda(:\d+|:)?", value):
        return value.replace("cuda", "npu")
    entry = by_name("string").get(value)
    return entry.npu if entry else None
