"""Read what the trace wrote: operators, launches, copies, synchronisations, collectives, fallbacks, each with the user's line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from npulift.errors import NpuliftError
from npulift.findings import Location
from npulift.messages import _

LAUNCH, COPY, EVENT_RECORD, EVENT_WAIT, SYNC, COLLECTIVE, MALLOC, FREE, MEMSET, FALLBACK, REFUSED, READ, ALLOCATED, RELEASED, OUT_OF_MEMORY = range(1, 16)
PHASES = ("forward", "backward", "optimizer")
COPIES = {0: "host-to-host", 1: "host-to-device", 2: "device-to-host", 3: "device-to-device", 6: "device-to-device", 7: "device-to-device"}
SYNCS = {1: "stream", 2: "device", 3: "event"}

_RECORD = np.dtype([
    ("time_ns", "<u8"), ("kind", "<u4"), ("signature", "<u4"), ("op", "<u4"), ("thread", "<u4"), ("stream", "<i4"), ("device", "<i4"),
    ("bytes", "<u8"), ("detail", "<u8"), ("duration_ns", "<u8"), ("reserved", "<u8"),
])
_OPERATOR = np.dtype([
    ("start_ns", "<u8"), ("end_ns", "<u8"), ("sequence", "<i8"), ("name", "<u4"), ("location", "<u4"), ("module", "<u4"), ("parent", "<u4"),
    ("phase", "<u4"), ("thread", "<u4"), ("node", "<u4"), ("step", "<u4"),
])

# aclDataType and aclFormat numbers (acl/acl_base.h in the torch_npu wheel) as torch's and CANN's names.
DTYPES = {
    0: "float32", 1: "float16", 2: "int8", 3: "int32", 4: "uint8", 6: "int16", 7: "uint16", 8: "uint32", 9: "int64", 10: "uint64", 11: "float64",
    12: "bool", 16: "complex64", 17: "complex128", 27: "bfloat16", 29: "int4", 33: "complex32", 34: "hifloat8", 35: "float8_e5m2", 36: "float8_e4m3fn",
}
FORMATS = {-1: "", 0: "NCHW", 1: "NHWC", 2: "ND", 3: "NC1HWC0", 4: "FRACTAL_Z", 12: "NHWC", 27: "NDHWC", 29: "FRACTAL_NZ", 30: "NCDHW", 32: "NDC1HWC0", 33: "FRACTAL_Z_3D", 47: "NCL"}
HCCL_DTYPES = {0: "int8", 1: "int16", 2: "int32", 3: "float16", 4: "float32", 5: "int64", 6: "uint64", 7: "uint8", 8: "uint16", 9: "uint32", 10: "float64", 11: "bfloat16"}
SIZES = {"float32": 4, "float16": 2, "int8": 1, "int32": 4, "uint8": 1, "int16": 2, "uint16": 2, "uint32": 4, "int64": 8, "uint64": 8, "float64": 8,
         "bool": 1, "complex64": 8, "complex128": 16, "bfloat16": 2, "complex32": 4, "float8_e5m2": 1, "float8_e4m3fn": 1, "hifloat8": 1}


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a kernel is given it. strides: in elements; () where the call gives none (graph operators)."""

    shape: tuple[int, ...]
    dtype: str
    format: str
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements."""
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def bytes(self) -> int:
        """Bytes of the elements, an expanded one counted once."""
        n = SIZES.get(self.dtype, 4)
        for i, size in enumerate(self.shape):
            n *= 1 if i < len(self.strides) and self.strides[i] == 0 and size > 1 else size
        return n

    @property
    def contiguous(self) -> bool:
        """True when the elements lie one after another in order."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=False):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


@dataclass(frozen=True, slots=True)
class Signature:
    """A kernel with its operands: what makes it the same kernel as another launch.

    function: 'aclnnAddmm', or 'aclop:MatMul' for a graph operator.   arguments: the text of every argument, in order, as the trace has it.
    """

    function: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """'Addmm' of aclnnAddmm, 'MatMul' of aclop:MatMul."""
        return self.function.removeprefix("aclnn").removeprefix("aclop:")


@dataclass(frozen=True, slots=True)
class Event:
    """One record with its cause.

    kind: LAUNCH, COPY, ...   location: the user's line.   call: the innermost line outside torch.   operator: outermost torch operator.
    module: dotted path.   phase: forward, backward, optimizer.   node: autograd node.   other fields: see hollow/trace.h.
    """

    kind: int
    time_ns: int
    signature: Signature | None
    name: str
    bytes: int
    detail: int
    duration_ns: int
    stream: int
    device: int
    thread: int
    operator: str
    location: Location | None
    call: Location | None
    module: str
    phase: str
    node: str
    step: int


@lru_cache
def output_counts() -> dict[str, int]:
    """Function -> how many of its last tensors are outputs (kernels.csv)."""
    with Path(__file__).with_name("kernels.csv").open(encoding="utf-8", newline="") as file:
        return {r["function"]: int(r["outputs"]) for r in csv.DictReader(line for line in file if not line.startswith("#"))}


def parse_signature(text: str) -> Signature:
    """The signature of an 'S' line. Arguments that are no tensors stay text."""
    function, *arguments = text.split("\t")
    tensors: list[list[Operand]] = []
    border = -1
    for argument in arguments:
        if argument == ">":
            border = len(tensors)
        elif argument.startswith("t"):
            tensors.append([_operand(argument)])
        elif argument.startswith("[t"):
            tensors.append([_operand(part) for part in argument[1:-1].split(" ") if part.startswith("t")])
        elif argument.startswith("h"):
            tensors.append([Operand((), HCCL_DTYPES.get(int(argument[1:]), "?"), "ND", ())])
    if border < 0 and ("Inplace" in function or "Apply" in function):
        inputs, outputs = tensors, tensors[:1]
    else:
        split = border if border >= 0 else max(0, len(tensors) - output_counts().get(function, 1))
        inputs, outputs = tensors[:split], tensors[split:]
    return Signature(function, tuple(o for group in inputs for o in group), tuple(o for group in outputs for o in group), tuple(arguments))


def _operand(text: str) -> Operand:
    dtype, layout, *rest = text[1:].split(":")
    dims = tuple(int(d) for d in rest[0].split(",") if d) if rest else ()
    strides = tuple(int(d) for d in rest[1].split(",") if d) if len(rest) > 1 else ()
    return Operand(dims, DTYPES.get(int(dtype), f"acl{dtype}"), FORMATS.get(int(layout), layout), strides)


class Trace:
    """A trace on disk, read. The tables stay as numbers; `events` gives records with their texts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = _table(folder / "records.bin", _RECORD, "kind")
        self.operators = _table(folder / "operators.bin", _OPERATOR, "name")
        self._texts: dict[int, tuple[str, str]] = {}
        try:
            with (folder / "definitions.txt").open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    tag, _tab, rest = line.rstrip("\n").partition("\t")
                    number, _tab, text = rest.partition("\t")
                    if number.isdigit():
                        self._texts[int(number)] = (tag, text)
        except OSError as error:
            raise NpuliftError(_("The trace in {folder} cannot be read ({error}).").format(folder=folder, error=error)) from error
        self._signatures: dict[int, Signature] = {}
        self._places: dict[int, tuple[Location | None, Location | None]] = {}

    def text(self, number: int) -> str:
        """The text of a definition, '' for 0."""
        return self._texts.get(number, ("", ""))[1]

    def signature(self, number: int) -> Signature:
        """The signature with this number."""
        if number not in self._signatures:
            self._signatures[number] = parse_signature(self.text(number))
        return self._signatures[number]

    def place(self, number: int) -> tuple[Location | None, Location | None]:
        """(the user's line, the innermost line outside torch) of an 'L' line."""
        if number not in self._places:
            user, _tab, call = self.text(number).partition("\t")
            self._places[number] = (self._line(user), self._line(call))
        return self._places[number]

    def _line(self, number: str) -> Location | None:
        file, line, function = (self.text(int(number or 0)).split("\t") + ["", "", ""])[:3]
        return Location(file, int(line), function) if line.isdigit() else None

    def select(self, *kinds: int) -> np.ndarray[Any, Any]:
        """Rows of the records of these kinds, in order."""
        return np.nonzero(np.isin(self.records["kind"], kinds))[0] if len(self.records) else np.zeros(0, dtype=np.int64)

    def event(self, row: int) -> Event:
        """One record with its texts."""
        r = self.records[row]
        operator = name = module = node = ""
        location = call = None
        phase, step = "forward", 0
        index = int(r["op"])
        if 0 < index <= len(self.operators):
            o = self.operators[index - 1]
            operator, module, node = self.text(int(o["name"])), self.text(int(o["module"])), self.text(int(o["node"]))
            location, call = self.place(int(o["location"]))
            phase, step = PHASES[min(int(o["phase"]), 2)], int(o["step"])
        kind, detail = int(r["kind"]), int(r["detail"])
        signature = self.signature(int(r["signature"])) if kind in (LAUNCH, COLLECTIVE) and r["signature"] else None
        if kind == COPY:
            name = COPIES.get(detail & 255, "copy")
        elif kind == SYNC:
            name = SYNCS.get(detail, "stream")
        else:
            name = signature.function if signature else self.text(int(r["signature"]))
        return Event(
            kind, int(r["time_ns"]), signature, name, int(r["bytes"]), detail, int(r["duration_ns"]), int(r["stream"]), int(r["device"]), int(r["thread"]),
            operator, location, call, module, phase, node, step,
        )

    def events(self, *kinds: int) -> Iterator[Event]:
        """The records of these kinds (all when none is named), in order."""
        for row in self.select(*kinds) if kinds else range(len(self.records)):
            yield self.event(int(row))

    @cached_property
    def launches(self) -> int:
        """How many kernels were launched."""
        return len(self.select(LAUNCH))


def _table(path: Path, dtype: np.dtype[Any], last: str) -> np.ndarray[Any, Any]:
    """The written rows of a table; a process that was killed leaves a longer, sparse file, whose end is zeros."""
    try:
        size = path.stat().st_size
        if size < dtype.itemsize:
            return np.zeros(0, dtype)
        table = np.memmap(path, dtype, "r", shape=(size // dtype.itemsize,))
    except (OSError, ValueError) as error:
        raise NpuliftError(_("The trace in {folder} cannot be read ({error}).").format(folder=path.parent, error=error)) from error
    low, high = 0, len(table)
    if high and table[high - 1][last] != 0:
        return np.array(table)
    while low < high:  # rows are written from the front, so this finds the first that is empty
        middle = (low + high) // 2
        if table[middle]["time_ns" if last == "kind" else "start_ns"] != 0:
            low = middle + 1
        else:
            high = middle
    return np.array(table[:low])
