"""NPU150 missing-fake-kernel: a custom operator that torch.export cannot follow.

Why it hurts: without a fake (meta) kernel nothing that traces knows the shape of the result, so torch.export, torch.compile and every compiler behind them stop there.
Bad:   lib.define('scale_rows(Tensor x, Tensor s) -> Tensor'); lib.impl('scale_rows', kernel, 'CPU')
Good:  also @torch.library.register_fake('mylib::scale_rows') def _(x, s): return torch.empty_like(x), checked by torch.library.opcheck
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from npulift.capture import Capture, Op
from npulift.findings import Finding, Severity
from npulift.messages import _
from npulift.targets.base import Target

CODE = "NPU150"
NAME = "missing-fake-kernel"
_BUILT_IN = {"aten", "prims", "prim", "quantized", "quantized_decomposed", "torchvision", "npu", "inductor", "_c10d_functional", "mkldnn", "mkl", "onednn", "profiler", "higher_order"}


def find(capture: Capture, target: Target) -> Iterator[Finding]:
    """One finding for each custom operator without a fake kernel."""
    seen = set()
    for op in (*capture.eager_ops, *capture.exported_ops):
        namespace = op.base.partition("::")[0]
        if op.base in seen or "::" not in op.base or namespace in _BUILT_IN or has_fake(op.name):
            continue
        seen.add(op.base)
        shapes = ", ".join(str(list(t.shape)) for t in op.inputs)
        results = ", ".join(str(list(t.shape)) for t in op.outputs)
        code = stub(op)
        yield Finding(
            CODE, NAME, Severity.ERROR,
            _("The custom operator {name} has no fake kernel, so torch.export and every compiler stop at it (seen here: {shapes} → {results}).").format(
                name=op.base, shapes=shapes, results=results),
            op.location, op.module,
            _("Register one, then check it with torch.library.opcheck:\n{stub}").format(stub=code),
            details={"operator": op.base, "stub": code, "inputs": [list(t.shape) for t in op.inputs], "outputs": [list(t.shape) for t in op.outputs]},
        )


def has_fake(name: str) -> bool:
    """True when the operator can run on fake tensors: it has a registered fake, a Meta kernel, or is composite."""
    qualified = name.removesuffix(".default")
    defined = torch._library.custom_ops.OPDEFS.get(qualified)
    if defined is not None:  # torch.library.custom_op registers a fake of its own that only raises
        return defined._abstract_fn is not None
    entry = torch._library.simple_registry.singleton.find(qualified.partition(".")[0])
    if entry.fake_impl.kernel is not None:
        return True
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return has(qualified, "Meta") or has(qualified, "CompositeImplicitAutograd") or has(qualified, "CompositeExplicitAutograd")
    except RuntimeError:  # the operator is not known in this process any more
        return True


def stub(op: Op) -> str:
    """A register_fake function that gives the shapes and dtypes seen, each size taken from the argument that it equals."""
    schema = torch._C._get_schema(op.base, op.name.partition(".")[2].removesuffix("default"))
    names = [a.name for a in schema.arguments]
    tensors = [a.name for a in schema.arguments if "Tensor" in str(a.type) and "List" not in str(a.type)]
    results = [_allocation(op, i, tensors) for i in range(len(op.outputs))]
    body = results[0] if len(results) == 1 else f"({', '.join(results)})"
    if not results:
        body = "None"
    return f'@torch.library.register_fake("{op.base}")\ndef _({", ".join(names)}):\n    return {body}'


def _allocation(op: Op, index: int, names: list[str]) -> str:
    result = op.outputs[index]
    inputs = list(zip(names, op.inputs, strict=False))
    for name, given in inputs:
        if given.shape == result.shape and given.dtype == result.dtype:
            return f"torch.empty_like({name})"
    sizes = []
    for axis, size in enumerate(result.shape):
        # The same axis of an argument is the likeliest source of a size, then any axis; a size of no argument stays a number.
        same = [f"{n}.shape[{axis}]" for n, t in inputs if axis < len(t.shape) and t.shape[axis] == size]
        other = [f"{n}.shape[{i}]" for n, t in inputs for i, s in enumerate(t.shape) if s == size and s != 1]
        sizes.append((same or other or [str(size)])[0])
    like = next((n for n, t in inputs if t.dtype == result.dtype), "")
    base = like or (inputs[0][0] if inputs else "")
    dtype = "" if like else f", dtype=torch.{result.dtype}"
    shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    return f"{base}.new_empty({shape}{dtype})" if base else f"torch.empty({shape}, dtype=torch.{result.dtype})"
