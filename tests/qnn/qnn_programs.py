"""Running compiled programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch


def run(folder: Path, *inputs: torch.Tensor, target: str = "qnn") -> tuple[np.ndarray, ...]:
    """Outputs of a compiled program in the vendor's simulator."""
    from npulift.targets.base import find_target

    return find_target(target).load(folder, {})(*(i.numpy() for i in inputs))
