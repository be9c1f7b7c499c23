"""Calibration samples on disk: an .npz with array 'i_j' for input j of sample i."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from npulift.model import ModelSpec


def samples_of(spec: ModelSpec, limit: int = 64) -> list[tuple[np.ndarray[Any, Any], ...]]:
    """The spec's calibration samples as arrays, at most `limit`; its evaluation inputs, or else its example inputs, when it has none."""
    import torch

    chosen = spec.calibration or spec.evaluation or (spec.inputs,)
    return [tuple(v.detach().cpu().numpy() for v in sample if isinstance(v, torch.Tensor)) for sample in chosen[:limit]]


def write_calibration(path: Path, samples: list[tuple[np.ndarray[Any, Any], ...]]) -> None:
    """Write samples."""
    arrays: dict[str, Any] = {f"{i}_{j}": value for i, sample in enumerate(samples) for j, value in enumerate(sample)}
    np.savez(path, **arrays)


def read_calibration(path: Path) -> list[list[np.ndarray[Any, Any]]]:
    """Read samples, in order."""
    with np.load(path, allow_pickle=False) as archive:
        samples: dict[int, dict[int, np.ndarray[Any, Any]]] = {}
        for key in archive.files:
            i, j = map(int, key.split("_"))
            samples.setdefault(i, {})[j] = archive[key]
    return [[samples[i][j] for j in sorted(samples[i])] for i in sorted(samples)]
