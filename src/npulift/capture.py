"""Capture: what a model does, seen twice. As torch.export sees it, and as eager PyTorch dispatches it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npulift.findings import Location
from npulift.model import ModelSpec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as an operator sees it.

    shape: sizes; a str is a symbolic size (e.g. 's0', or 'u0' for one that depends on data).
    dtype: short name, e.g. 'float32'.   layout: 'contiguous' | 'channels_last' | 'strided' (memory format by its strides).
    """

    shape: tuple[int | str, ...]
    dtype: str
    layout: str = "contiguous"

    @property
    def numel(self) -> int | None:
        """Number of elements; None when a size is symbolic."""
        n = 1
        for size in self.shape:
            if not isinstance(size, int):
                return None
            n *= size
        return n


@dataclass(frozen=True, slots=True)
class Op:
    """One operator call.

    name: overload name, e.g. 'aten::conv2d.default'.   base: without the overload, e.g. 'aten::conv2d'.
    flops: floating-point operations, a multiply-add counted as two (source: torch.utils.flop_counter for contractions; one an
        output element for element-wise operators; 0 for views). None when a size is symbolic.
    bytes_read, bytes_written: of the operands once each, no reuse; 0 for views. None when a size is symbolic.
    location: the user's own line (not torch's or a library's, unless there is no other).
    call: the innermost line outside torch, which may be a library's.   module: dotted module path.
    origin: 'export' | 'eager'.   node: name of the node in the exported graph, '' for eager.
    scalars: the arguments that are not tensors, by name, as text.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    flops: int | None
    bytes_read: int | None
    bytes_written: int | None
    location: Location | None
    call: Location | None
    module: str
    origin: str
    node: str = ""
    scalars: dict[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """Operator name without its overload."""
        return self.name.partition(".")[0]

    @property
    def is_view(self) -> bool:
        """True when the operator moves no data."""
        return self.bytes_read == 0 and self.bytes_written == 0


@dataclass(frozen=True, slots=True)
class DataDependence:
    """A spot where Python or a shape depends on data.

    kind: 'branch' (an `if` or `while` on data), 'value' (.item() and kin: a read-back) or 'size' (nonzero, masked_select, ...).
    operator: the operator that reads or makes it, '' when unknown.   expression: as torch puts it.
    """

    kind: str
    location: Location | None
    operator: str
    expression: str
    module: str = ""


@dataclass(frozen=True)
class Capture:
    """A model, seen twice.

    exported: the ExportedProgram (training IR: composite operators whole), or None when it cannot be exported; then
        export_error says why, in torch's words.
    eager_ops: every dispatch below autograd in one eager pass, in order; eager_error when that pass stopped.
    data_dependent: every data-dependent spot found by either.   device: device of the eager pass ('cpu', 'meta').
    draft: the export came from draft_export, so its guards hold for the example inputs only.
    """

    spec: ModelSpec
    exported: torch.export.ExportedProgram | None
    export_error: str
    exported_ops: tuple[Op, ...]
    eager_ops: tuple[Op, ...]
    eager_error: str
    data_dependent: tuple[DataDependence, ...]
    device: str = "cpu"
    draft: bool = False

    def find(self, *bases: str, origin: str = "") -> Iterator[Op]:
        """Operators of the given base names ('aten::conv2d'), from the exported graph and the eager pass, or one of them."""
        for op in (*self.exported_ops, *self.eager_ops):
            if op.base in bases and (not origin or op.origin == origin):
                yield op
