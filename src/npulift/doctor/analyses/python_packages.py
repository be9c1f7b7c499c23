"""CANN's operator compiler starts Python and needs packages: which of them are absent."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

NEEDED = ("attrs", "cython", "numpy", "decorator", "sympy", "cffi", "pyyaml", "pathlib2", "psutil", "protobuf", "scipy", "requests", "absl-py")


class PythonPackages:
    """Works on signatures and facts."""

    literals: tuple[str, ...] = ()
    limit = 1

    def line(self, line: Line) -> None:
        """Nothing of its own."""

    def causes(self, found: Found) -> Iterator[Cause]:
        """The list, without what the log shows to be there."""
        ids = [i for i in ("init-env-failed", "op-compiler-module", "set-compile-option-500001") if found.has(i)]
        if not ids:
            return
        lines = found.take(*ids)
        module = found.matches["op-compiler-module"].groups.get("module", "") if found.has("op-compiler-module") else ""
        listed, line = found.facts.packages or ("", None)
        have = {name.lower().replace("_", "-") for name in re.findall(r"[A-Za-z][\w.-]{1,40}", listed)}
        absent = [p for p in NEEDED if p not in have]
        old_numpy = bool(re.search(r"\bnumpy[ =]{1,3}2\.", listed))
        named = module.split(".")[0] if module else ""
        if named in ("tbe", "te", "acl", "auto_tune", "opc_tool", "asc_op_compile_base"):
            yield Cause(
                "op-compiler-not-on-path", Severity.ERROR, "high",
                _("Python cannot import {module}, which is part of CANN: the environment is not sourced, so its python/site-packages folder is not on PYTHONPATH.").format(module=module),
                (
                    "source /usr/local/Ascend/ascend-toolkit/set_env.sh",
                    _("Or: export PYTHONPATH=$ASCEND_HOME_PATH/python/site-packages:$ASCEND_HOME_PATH/opp/built-in/op_impl/ai_core/tbe:$PYTHONPATH"),
                    _("Install the Python packages that it needs: pip install {packages}").format(packages=" ".join(absent)),
                ),
                tuple(lines), source="Ascend/pytorch#29; Ascend/pytorch#7", details={"module": module, "packages": absent})
            return
        yield Cause(
            "op-compiler-packages", Severity.ERROR, "high" if found.has("init-env-failed") or module else "medium",
            _("The operator compiler cannot start because Python packages that it needs are missing{module}. It first runs when a kernel has to be compiled, so even printing a tensor stops.").format(
                module=f" ({module})" if module else "")
            + (_(" NumPy 2 is installed, which compilers up to CANN 8.2 do not take.") if old_numpy else ""),
            (
                _("pip install {packages}").format(packages=" ".join(absent)) + _(" (into the same Python that runs the program; compilers up to CANN 8.2 want 'numpy<2')"),
                _("Then source set_env.sh so that tbe can be imported: python -c \"import tbe\" shows what is still missing."),
            ),
            tuple(dict.fromkeys([*lines, *([line] if line else [])])), more=_("plog (~/ascend/log/debug/plog): the Python traceback of the compiler stands there."),
            source="Ascend/pytorch#7; Ascend/pytorch#29; vllm-project/vllm-ascend#2210", details={"packages": absent, "module": module})


def new() -> PythonPackages:
    """A fresh one."""
    return PythonPackages()
