"""From a .pt2 to a program for the Qualcomm NPU: one attempt, in parts where the graph has to be split."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift.capture import Op
from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.onnx_export import export_onnx
from npulift.targets.base import Placed
from npulift.targets.qnn import quantising, schematic, scoring
from npulift.targets.qnn.attention import decompose_attention
from npulift.targets.qnn.erf_form import replace_erf
from npulift.targets.qnn.onnx_fixes import constants_last, replace_gather_nd, value_bytes
from npulift.targets.qnn.session import Opened, check_set_up, open_session
from npulift.targets.qnn.socs import Soc
from npulift.targets.qnn.vendor_errors import VendorError

if TYPE_CHECKING:
    import onnx
    import torch

RECORD = "qnn.json"
_FINALIZE = "htp_graph_finalization_optimization_mode"
_SPLIT_LIMIT = 60  # compilations that splitting may cost


@dataclass(frozen=True)
class Attempt:
    """How to compile. attention: 'whole' | 'per-head' | 'blocks' | 'exporter' (see attention.py); block: queries a block.

    precision: 'float' (fp16 on the chip) | 'int8' | 'int16'.   ignored: see quantising.   finalize: the compiler's optimisation mode, '' for
    its own default.   erf: 'native' | 'exponential' (Erf) | 'all' (Erf and Gelu; see
    erf_form.py).   split: cut the graph where it does not compile, and keep what never compiles on the CPU.
    """

    soc: Soc
    attention: str = "whole"
    block: int = 128
    precision: str = "float"
    ignored: tuple[int, ...] = ()
    finalize: str = ""
    erf: str = "native"
    split: bool = False

    def form(self) -> tuple[Any, ...]:
        """What the float ONNX file depends on."""
        return self.attention, self.block if self.attention == "blocks" else 0, self.erf

    def provider_options(self) -> dict[str, str]:
        """Options of the provider."""
        return {_FINALIZE: self.finalize} if self.finalize else {}


# The ONNX form of a program by attention form, kept as long as the program is: one export serves every attempt.
_exports: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], tuple[bytes, dict[str, Op], list[str]]]] = weakref.WeakKeyDictionary()


@dataclass
class Prepared:
    """The ONNX file of an attempt. path, model, origins (operator of ours by node), replaced (GatherND nodes), quantisable (count)."""

    path: Path
    model: onnx.ModelProto
    origins: dict[str, Op]
    replaced: list[str]
    quantisable: int


@dataclass
class Build:
    """A program in `folder` (parts, reference.onnx, qnn.json), and what is known of it."""

    folder: Path
    attempt: Attempt
    prepared: Prepared
    placed: list[Placed] = field(default_factory=list)
    crossings: int = 0
    inserted_transposes: int = 0
    parts: dict[str, Any] = field(default_factory=dict)
    by_node: dict[str, dict[str, int]] = field(default_factory=dict)


def prepare(program: torch.export.ExportedProgram, attempt: Attempt, folder: Path, samples: Sequence[Sequence[np.ndarray[Any, Any]]]) -> Prepared:
    """Export, mend and quantise as the attempt asks. Raises NpuliftError when the program cannot be written as ONNX."""
    import onnx

    path = folder / "reference.onnx"
    key = attempt.form()
    exports = _exports.setdefault(program, {})
    if key in exports:
        content, origins, replaced = exports[key]
        path.write_bytes(content)
        model = onnx.load(path)
    else:
        form = program
        if attempt.attention != "exporter":
            block = attempt.block if attempt.attention == "blocks" else None
            form = decompose_attention(program, per_head=attempt.attention != "whole", block=block) or program
        origins = export_onnx(form, path)
        model = onnx.load(path)
        plain = attempt.attention == "exporter"
        replaced = [] if plain else replace_gather_nd(model)
        swapped = 0 if plain else constants_last(model)
        replaced_erf = replace_erf(model, gelu=attempt.erf == "all") if attempt.erf != "native" else []
        if replaced or swapped or replaced_erf:
            onnx.save(model, path)
        if not path.with_name(path.name + ".data").exists():
            exports[key] = path.read_bytes(), origins, replaced
    count = len(quantising.weighted(model))
    if attempt.precision != "float":
        quantising.quantise(path, attempt.precision, samples, attempt.ignored)
        model = onnx.load(path)
    return Prepared(path, model, origins, replaced, count)


def float_model(program: torch.export.ExportedProgram, attempt: Attempt) -> bytes | None:
    """The ONNX file of the attempt before it was quantised; None when it is too large to be kept."""
    kept = _exports.get(program, {}).get(attempt.form())
    return kept[0] if kept is not None else None


def build(program: torch.export.ExportedProgram, attempt: Attempt, folder: Path, samples: Sequence[Sequence[np.ndarray[Any, Any]]]) -> Build:
    """Compile into the folder, which is empty. Raises VendorError when the compiler stops, NpuliftError for what is not its business."""
    prepared = prepare(program, attempt, folder, samples)
    made = Build(folder, attempt, prepared)
    totals: list[schematic.Schematic] = []
    pieces = _pieces(prepared, attempt, folder)
    sizes = value_bytes(prepared.model)
    names = _Names(prepared)
    records, crossing = [], 0
    for number, (path, on_npu) in enumerate(pieces):
        with tempfile.TemporaryDirectory() as trace:
            if not on_npu:
                records.append(_cpu_part(path, folder / f"part_{number}_cpu.onnx", names, made))
                continue
            context = folder / f"part_{number}.onnx"
            opened = open_session(path, attempt.soc.number, options=attempt.provider_options(), context=context, trace=Path(trace))
            check_set_up(opened)
            _place(opened, names, made)
            for file in sorted(Path(trace).glob("*_schematic.bin")):
                read = schematic.read_schematic(file)
                totals.append(read)
                for name, total in read.nodes.items():
                    entry = made.by_node.setdefault(names.source(name) or name, {})
                    for key in total.__dataclass_fields__:
                        entry[key] = entry.get(key, 0) + getattr(total, key)
            records.append({"file": context.name, "device": "npu"})
            inside, moved = _crossings(context, sizes)
            made.crossings += inside
            crossing += moved
            del opened
    shutil.rmtree(folder / "pieces", ignore_errors=True)
    if len(pieces) > 1:
        between, moved = _between(folder, records, sizes)
        made.crossings += between
        crossing += moved
    on_cpu = sum(not p.accelerated for p in made.placed)
    made.parts = scoring.parts_of(totals, cpu_operators=on_cpu, crossings=made.crossings, crossing_bytes=crossing)
    record = {
        "soc": attempt.soc.number, "parts": records, "score": made.parts, "precision": attempt.precision,
        "inputs": [i.name for i in prepared.model.graph.input], "outputs": [o.name for o in prepared.model.graph.output],
        "on_cpu": [p.node for p in made.placed if not p.accelerated],
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    return made


class _Names:
    """ONNX Runtime's node names as the names of the file: it adds '_token_7' to nodes that it moves and '/MatMulAddFusion' to nodes that it fuses."""

    def __init__(self, prepared: Prepared) -> None:
        self._names = {n.name for n in prepared.model.graph.node}
        self._prepared = prepared

    def source(self, name: str) -> str:
        """The file's node, '' for one that was inserted."""
        for candidate in (name, name.partition("/")[0], re.sub(r"_token_\d+.*$", "", name), re.sub(r"_token_\d+.*$", "", name.partition("/")[0])):
            if candidate in self._names:
                return candidate
        return ""

    def op(self, name: str) -> Op | None:
        """The operator of ours; also of a Quantize or Dequantize node, which is named after what it feeds."""
        source = self.source(name) or name
        origins = self._prepared.origins
        if source in origins:
            return origins[source]
        made = source.rpartition("_")[0]  # a node that we made is named after the one that it replaces
        if made in origins and source in self._names:
            return origins[made]
        plain = re.sub(r"_(Quantize|Dequantize)Linear.*$", "", source)
        return origins.get(plain) or origins.get(f"node_{plain}")


def _place(opened: Opened, names: _Names, made: Build) -> None:
    for name, operator, here in opened.nodes:
        source = names.source(name)
        if not source and operator == "Transpose":
            made.inserted_transposes += 1
        reason = "" if here else opened.refused.get(name) or opened.refused.get(source) or ""
        made.placed.append(Placed(source or name, operator, "NPU" if here else "CPU", here, names.op(name), reason))


def _cpu_part(path: Path, file: Path, names: _Names, made: Build) -> dict[str, Any]:
    import onnx

    shutil.copyfile(path, file)
    for node in onnx.load(path, load_external_data=False).graph.node:
        made.placed.append(Placed(node.name, node.op_type, "CPU", False, names.op(node.name), _("the compiler stops on it")))
    return {"file": file.name, "device": "cpu"}


def _crossings(context: Path, sizes: dict[str, int]) -> tuple[int, int]:
    """(tensors, bytes) that pass between NPU programs and CPU nodes inside a compiled part."""
    import onnx

    graph = onnx.load(context, load_external_data=False).graph
    made = {o: n.op_type == "EPContext" for n in graph.node for o in n.output}
    crossing = {
        name for node in graph.node for name in node.input
        if name in made and made[name] != (node.op_type == "EPContext")
    }
    return len(crossing), sum(sizes.get(name, 0) for name in crossing)


def _between(folder: Path, records: list[dict[str, Any]], sizes: dict[str, int]) -> tuple[int, int]:
    """(tensors, bytes) that pass between parts on different devices."""
    import onnx

    where: dict[str, str] = {}
    crossing = set()
    for record in records:
        graph = onnx.load(folder / record["file"], load_external_data=False).graph
        crossing |= {i.name for i in graph.input if i.name in where and where[i.name] != record["device"]}
        where |= {o.name: record["device"] for o in graph.output}
    return len(crossing), sum(sizes.get(name, 0) for name in crossing)


# --- splitting --------------------------------------------------------------------------------------------------------------


def _pieces(prepared: Prepared, attempt: Attempt, folder: Path) -> list[tuple[Path, bool]]:
    """(ONNX file, whether it is for the NPU), in the order in which they run; one piece unless the attempt splits."""
    if not attempt.split:
        return [(prepared.path, True)]
    import onnx

    model = onnx.shape_inference.infer_shapes(prepared.model)
    pieces = folder / "pieces"
    pieces.mkdir()
    budget = [_SPLIT_LIMIT]
    ranges = _ranges(model, 0, len(model.graph.node), attempt, pieces, budget)
    if not any(on_npu for _low, _high, on_npu in ranges):
        raise VendorError(-1, _("no part of the graph compiles"))
    merged: list[tuple[int, int, bool]] = []
    for low, high, on_npu in ranges:  # as few parts as there can be: a part is joined to the one before as long as both compile together
        if merged and merged[-1][2] == on_npu and (not on_npu or _compiles(model, merged[-1][0], high, attempt, pieces)):
            merged[-1] = (merged[-1][0], high, on_npu)
        else:
            merged.append((low, high, on_npu))
    return [(_extract(model, low, high, pieces / f"final_{i}.onnx"), on_npu) for i, (low, high, on_npu) in enumerate(merged)]


def _ranges(model: onnx.ModelProto, low: int, high: int, attempt: Attempt, folder: Path, budget: list[int]) -> list[tuple[int, int, bool]]:
    """Ranges of nodes (in the file's order) with whether they compile; halved until they do or are one node."""
    budget[0] -= 1
    if budget[0] < 0:
        return [(low, high, False)]
    whole = low == 0 and high == len(model.graph.node)  # that the whole does not compile is why we are here
    if not whole and _compiles(model, low, high, attempt, folder):
        return [(low, high, True)]
    if high - low <= 1:
        return [(low, high, False)]
    middle = (low + high) // 2
    return _ranges(model, low, middle, attempt, folder, budget) + _ranges(model, middle, high, attempt, folder, budget)


def _compiles(model: onnx.ModelProto, low: int, high: int, attempt: Attempt, folder: Path) -> bool:
    path = _extract(model, low, high, folder / f"try_{low}_{high}.onnx")
    try:
        check_set_up(open_session(path, attempt.soc.number, options=attempt.provider_options()))
    except VendorError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


def _extract(model: onnx.ModelProto, low: int, high: int, path: Path) -> Path:
    """Nodes low to high of the file as a model of their own."""
    import onnx

    nodes = list(model.graph.node)
    chosen = nodes[low:high]
    made = {o for n in chosen for o in n.output if o}
    constants = {t.name for t in model.graph.initializer}
    used = {i for n in chosen for i in n.input if i}
    later = {i for n in nodes[high:] for i in n.input} | {o.name for o in model.graph.output}
    inputs = [i for i in dict.fromkeys(i for n in chosen for i in n.input if i) if i not in made and i not in constants]
    outputs = [o for n in chosen for o in n.output if o and o in later]
    known = {v.name: v for v in (*model.graph.input, *model.graph.output, *model.graph.value_info)}
    missing = [name for name in (*inputs, *outputs) if name not in known]
    if missing:
        raise NpuliftError(_("qnn: the graph cannot be cut at {name}, whose shape is not known.").format(name=missing[0]), exit_code=1)
    graph = onnx.helper.make_graph(
        chosen, f"nodes {low} to {high}", [known[i] for i in inputs], [known[o] for o in outputs],
        [t for t in model.graph.initializer if t.name in used], value_info=[v for v in model.graph.value_info if v.name in made],
    )
    part = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.save(part, path)
    return path


__all__ = ["RECORD", "Attempt", "Build", "Prepared", "build", "prepare", "replace"]
