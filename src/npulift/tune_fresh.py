"""A bundle opened in a fresh process, for the last check of a tuning run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npulift.buckets import BucketBundle
from npulift.bundle import Bundle, load

_open: list[Bundle | BucketBundle] = []


def open_bundle(path: Path) -> None:
    """Open the bundle; later runs use it."""
    _open[:] = [load(path)]


def run_bundle(inputs: tuple[np.ndarray[Any, Any], ...]) -> tuple[np.ndarray[Any, Any], ...]:
    """Run it on flat arrays."""
    return _open[0].run(inputs)
