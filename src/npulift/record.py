"""record: run a user's script and write down the shapes that a module of it is called with."""

from __future__ import annotations

import csv
import runpy
import sys
from collections import Counter
from pathlib import Path

import torch

from npulift.errors import NpuliftError
from npulift.files import atomic_file
from npulift.messages import _
from npulift.report.document import Report, Table


def record(script: Path, arguments: list[str], module: str, out: Path) -> Report:
    """Run the script as __main__ and write a CSV of input sizes of every call of modules of this class name ('' for outermost calls of any module).

    Columns are input_<i>_<axis> for the axes that vary, and count; an axis that never changes is left out. The script's exit code is in the data.
    Raises NpuliftError when the script is missing or no module was called.
    """
    if not script.is_file():
        raise NpuliftError(_("There is no file {path}.").format(path=script))
    seen: Counter[tuple[int, ...]] = Counter()
    names: list[str] = []
    depth = 0

    def before(called: torch.nn.Module, args: tuple[object, ...]) -> None:
        nonlocal depth
        depth += 1
        if (type(called).__name__ != module) if module else depth > 1:
            return
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if not names:
            names.extend(f"input_{i}_{axis}" for i, t in enumerate(tensors) for axis in range(t.ndim))
        sizes = tuple(int(s) for t in tensors for s in t.shape)
        if sizes and len(sizes) == len(names):
            seen[sizes] += 1

    def after(_called: torch.nn.Module, _args: object, _out: object) -> None:
        nonlocal depth
        depth -= 1

    hooks = [torch.nn.modules.module.register_module_forward_pre_hook(before), torch.nn.modules.module.register_module_forward_hook(after, always_call=True)]
    code: int | str | None = 0
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path = [str(script), *arguments], [str(script.parent.resolve()), *sys.path]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as exit_:
        code = exit_.code
    finally:
        sys.argv, sys.path[:] = argv, path
        for hook in hooks:
            hook.remove()
    if not seen:
        raise NpuliftError(_("No call with tensors was seen{of}.").format(of=f" ({module})" if module else ""), exit_code=1)
    varying = [i for i in range(len(names)) if len({s[i] for s in seen}) > 1] or [len(names) - 1]
    counted: Counter[tuple[int, ...]] = Counter()
    for sizes, count in seen.items():
        counted[tuple(sizes[i] for i in varying)] += count
    with atomic_file(out) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(names[i] for i in varying), "count"])
        writer.writerows([*sizes, count] for sizes, count in sorted(counted.items()))
    rows = tuple((*sizes, count) for sizes, count in counted.most_common(20))
    table = Table(_("Sizes"), (*(names[i] for i in varying), _("calls")), rows)
    return Report("record", _("{n} calls, {m} sizes, written to {out}").format(n=sum(seen.values()), m=len(counted), out=out), {"input": str(script)},
                  ok=code in (0, None), data={"calls": sum(seen.values()), "sizes": len(counted), "out": str(out), "exit_code": code}, sections=(table,))
