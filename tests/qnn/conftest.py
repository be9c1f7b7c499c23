"""What the tests of the Qualcomm target share: a model is saved as .pt2 and compiled with the real compiler, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

def ready(module: torch.nn.Module) -> torch.nn.Module:
    """In eval mode; a graph that was exported is already."""
    return module if isinstance(module, torch.fx.GraphModule) else module.eval()


Compiled = tuple[Path, Path, dict[str, Any]]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """saved(module, inputs, dynamic_shapes=None) -> the .pt2."""

    def save(module: torch.nn.Module, inputs: tuple[Any, ...], **more: Any) -> Path:
        path = tmp_path / "model.pt2"
        with torch.no_grad():
            torch.export.save(torch.export.export(ready(module), inputs, strict=False, **more), path)
        return path

    return save


@pytest.fixture
def compiled(saved: Callable[..., Path], tmp_path: Path) -> Callable[..., Compiled]:
    """compiled(module, inputs, target='qnn', **options) -> (source, folder, facts)."""
    from npulift.targets.base import find_target

    def compile(module: torch.nn.Module, inputs: tuple[Any, ...], target: str = "qnn", **options: Any) -> Compiled:
        source = saved(module, inputs)
        folder = tmp_path / f"program_{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return source, folder, find_target(target).compile(source, options, folder)

    return compile
