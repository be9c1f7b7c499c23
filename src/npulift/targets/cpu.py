"""Target cpu: PyTorch itself on this machine. Options: compile (True for torch.compile), threads, precision 'f32' | 'bf16'."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift.measured import Kind
from npulift.targets.base import Program, Target

if TYPE_CHECKING:
    from npulift.profile import Profile


class Cpu(Target):
    """The exported program run by PyTorch, eagerly or through torch.compile."""

    families = ("cpu",)
    load_only = frozenset({"threads", "compile", "sizes"})
    reshapes = True

    @property
    def device(self) -> str:
        """The host CPU."""
        return "CPU"

    def compile(self, source: Path, options: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Keep the .pt2; torch.compile happens when it is loaded."""
        import torch

        shutil.copyfile(source, folder / "model.pt2")
        return {"torch": torch.__version__}

    def load(self, folder: Path, options: dict[str, Any]) -> Program:
        """Load the .pt2, and compile it where asked."""
        import torch

        if "threads" in options:
            torch.set_num_threads(int(options["threads"]))
        return CpuProgram(torch.export.load(folder / "model.pt2").module(check_guards=False), bool(options.get("compile")))


class CpuProgram(Program):
    """A module, called with arrays."""

    device = "CPU"

    def __init__(self, module: Any, compiled: bool) -> None:
        import torch

        self._module = torch.compile(module) if compiled else module

    def __call__(self, *inputs: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Run once."""
        import torch
        from torch.utils._pytree import tree_leaves

        with torch.inference_mode():
            out = self._module(*[torch.from_numpy(np.ascontiguousarray(i)) for i in inputs])
        return tuple(v.numpy() for v in tree_leaves(out) if isinstance(v, torch.Tensor))

    def profile(self, inputs: tuple[np.ndarray[Any, Any], ...], runs: int) -> Profile | None:
        """torch.profiler's CPU operators, self time."""
        import torch
        from torch.profiler import ProfilerActivity

        from npulift.profile import Profile

        self(*inputs)
        with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as recorder:
            for _run in range(runs):
                self(*inputs)
        rows = [
            {"name": e.name, "type": e.name, "category": "operator", "device": "CPU", "start_ns": int(e.time_range.start * 1000),
             "duration_ns": int(e.self_cpu_time_total * 1000)}
            for e in recorder.events() or [] if e.self_cpu_time_total > 0
        ]
        return Profile.from_rows(rows, Kind.MEASURED, "torch.profiler", meta={"device": "CPU", "runs": runs})
