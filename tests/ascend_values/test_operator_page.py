"""The generated page of operators is what the sources give, and every operator has a test."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def tool():
    path = Path(__file__).resolve().parents[2] / "tools" / "ascend_operators.py"
    spec = importlib.util.spec_from_file_location("ascend_operators", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_current(tool):
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run python tools/ascend_operators.py"


def test_every_operator_has_a_test_that_names_it(tool):
    from npulift.ascend.values import operators

    tests = tool.tests_of()
    assert [name for name in operators() if not tests[name]] == []
