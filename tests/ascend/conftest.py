"""Shared by the tests of the virtual Ascend: scripts in a temporary folder, and runs that several tests look at."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import ascend_scripts

from npulift.ascend.simulation import Simulation, simulate


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """run(source, target='ascend-910b2', **options) -> Simulation of a script with that source."""
    if sys.platform != "linux":
        pytest.skip("the virtual Ascend needs Linux")
    folder = tmp_path_factory.mktemp("scripts")
    count = iter(range(1000))

    def go(source: str, target: str = "ascend-910b2", **options: object) -> Simulation:
        path = folder / f"script{next(count)}.py"
        path.write_text(source)
        return simulate(str(path), target, **options)

    return go


@pytest.fixture(scope="session")
def vit(run):
    return run(ascend_scripts.VIT)


@pytest.fixture(scope="session")
def vit_fused(run):
    return run(ascend_scripts.VIT, arguments=("--fused",))
