"""What runs inside a worker process: compile, load, run, time and profile programs of any target, by name."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from npulift import messages
from npulift.targets.base import Placement, Program, Score, find_target

messages.set_language(os.environ.get("NPULIFT_WORKER_LANGUAGE", messages.current_language()))  # the caller's, since what targets say is shown to its user
_programs: dict[int, Program] = {}
_numbers = itertools.count(1)


def compile(target: str, source: Path, options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compile the .pt2 into the folder; returns the target's facts, with 'compile_s' added."""
    start = time.perf_counter()
    facts = find_target(target).compile(source, options, folder)
    return {**facts, "compile_s": round(time.perf_counter() - start, 3)}


def load(target: str, folder: Path, options: dict[str, Any]) -> int:
    """Load a program; returns its number."""
    number = next(_numbers)
    _programs[number] = find_target(target).load(folder, options)
    return number


def unload(number: int) -> None:
    """Forget a program."""
    _programs.pop(number, None)


def run(number: int, inputs: tuple[np.ndarray[Any, Any], ...]) -> tuple[np.ndarray[Any, Any], ...]:
    """Run a program once."""
    return tuple(np.array(o) for o in _programs[number](*inputs))


def timing(number: int, inputs: tuple[np.ndarray[Any, Any], ...], calls: int) -> float:
    """Seconds an inference, averaged over `calls` of them in a row."""
    program = _programs[number]
    start = time.perf_counter()
    for _call in range(calls):
        program(*inputs)
    return (time.perf_counter() - start) / calls


def throughput(number: int, inputs: tuple[np.ndarray[Any, Any], ...], seconds: float) -> float:
    """Seconds an inference at full load (the inverse of inferences a second), over about `seconds`."""
    return 1.0 / _programs[number].throughput(inputs, seconds)


def profile(number: int, inputs: tuple[np.ndarray[Any, Any], ...], runs: int, path: Path) -> bool:
    """Write the program's profile to `path`; False when the target cannot tell."""
    found = _programs[number].profile(inputs, runs)
    if found is not None:
        found.write(path)
    return found is not None


def placement(target: str, source: Path, options: dict[str, Any]) -> Placement | None:
    """Where the target would put each operator."""
    return find_target(target).placement(source, options)


def score(target: str, folder: Path) -> Score | None:
    """The vendor's estimate of a compiled program."""
    return find_target(target).score(folder)
