"""Which function gives the values of which operator. One file a family beside this one; importing it registers its operators."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

Reference = Callable[..., Any]
F = TypeVar("F", bound=Callable[..., Any])

_references: dict[str, Reference] = {}


def gives(*names: str) -> Callable[[F], F]:
    """Decorator: the function takes and returns CPU tensors as the operators named ('npu::npu_swiglu', 'aten::matmul_backward') do by their schema.

    An operator that writes to its arguments is given copies of them and writes to those.
    """
    def register(function: F) -> F:
        for name in names:
            _references[name] = function
        return function

    return register


@lru_cache(maxsize=1)
def _load() -> None:
    from npulift.ascend.values import families

    for module in pkgutil.iter_modules(families.__path__):
        importlib.import_module(f"{families.__name__}.{module.name}")


def reference(name: str) -> Reference | None:
    """The function of an operator ('npu::npu_swiglu', with or without overload), or None. torch_npu registers its operators under aten:: as well."""
    _load()
    base = name.partition(".")[0]
    bare = base.partition("::")[2]
    for candidate in (name, base, f"npu::{bare}", f"aten::{bare}"):
        if candidate in _references:
            return _references[candidate]
    return None


def operators() -> dict[str, Reference]:
    """Every operator that has a reference."""
    _load()
    return dict(sorted(_references.items()))
