"""Run a MODEL string on the virtual device: build it, move it, one forward pass, or training steps."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


def run(request: dict[str, Any], result: dict[str, Any]) -> None:
    """Load request['model'], move it to the device and call it once; with request['train'], two steps of AdamW."""
    import torch

    from npulift.loading import load_model

    with built_where() as lines:
        spec = load_model(request["model"])
    result["built"] = {name: lines[id(m)] for name, m in spec.module.named_modules() if id(m) in lines}
    module, inputs = place(spec.module), tuple(on_device(i) for i in spec.inputs)
    result["parameters"] = sum(p.numel() for p in module.parameters())
    torch.accelerator.synchronize()
    result["loaded"] = True
    if request.get("fastpath") is False:
        torch.backends.mha.set_fastpath_enabled(False)
    if not request.get("train"):
        with torch.no_grad():
            try:
                module(*inputs)
            except RuntimeError as error:
                if "same device" not in str(error):
                    raise
                from npulift.ascend.run import describe

                result["cpu_tensor"] = describe(error)  # a tensor made on the CPU inside forward: told, and then what it would be with its device given
                with torch.device("npu"):
                    module(*inputs)
        return
    module.train()
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad])
    for _step in range(int(request.get("steps") or 2)):
        loss = total(module(*inputs))
        if loss is not None:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@contextlib.contextmanager
def built_where() -> Iterator[dict[int, tuple[str, int]]]:
    """{id of a module: (file, line)}: the user's line on which each module was constructed while the context lasted."""
    import torch

    from npulift.graphs import is_library

    lines: dict[int, tuple[str, int]] = {}
    original = torch.nn.Module.__init__

    def __init__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        frame: Any = sys._getframe(1)
        while frame is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            lines[id(self)] = (frame.f_code.co_filename, frame.f_lineno)
        original(self, *args, **kwargs)

    torch.nn.Module.__init__ = __init__  # type: ignore[method-assign]
    try:
        yield lines
    finally:
        torch.nn.Module.__init__ = original  # type: ignore[method-assign]


def place(module: Any) -> Any:
    """The module on the device; parameters on the meta device get room there, without values."""
    tensors = [*module.parameters(), *module.buffers()]
    if any(t.device.type == "meta" for t in tensors):
        return module.to_empty(device="npu")
    return module.to("npu")


def on_device(value: Any) -> Any:
    """A tensor on the device, anything else as it is."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type == "meta":
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="npu")
    return value.to("npu")


def total(outputs: Any) -> Any:
    """A scalar that every floating-point output has a share in; None when no output has a gradient."""
    import torch
    from torch.utils._pytree import tree_leaves

    loss = getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    leaves = tree_leaves(dict(outputs) if hasattr(outputs, "keys") else outputs)
    terms = [v.float().mean() for v in leaves if isinstance(v, torch.Tensor) and v.is_floating_point() and v.requires_grad]
    return sum(terms[1:], terms[0]) if terms else None
