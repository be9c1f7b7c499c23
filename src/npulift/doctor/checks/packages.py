"""Python and its packages: versions that belong together, imports that work, wheels for this processor."""

from __future__ import annotations

import csv
import functools
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from npulift.doctor.environment import Check, Machine
from npulift.findings import Severity
from npulift.messages import _

VERSIONS = Path(__file__).parent.parent / "data" / "versions.csv"
SHOWN = (
    "torch", "torch-npu", "numpy", "onnx", "onnxruntime", "onnxruntime-qnn", "onnxruntime-openvino", "openvino", "nncf", "executorch", "ethos-u-vela", "rknn-toolkit2",
    "rknn-toolkit-lite2", "transformers", "vllm", "vllm-ascend", "triton-ascend", "torchair",
)
_OLD_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-cann")
_IMPORT = "import json, time\nt = time.time()\nimport {module}\nprint(json.dumps({{'version': str(getattr({module}, '__version__', '')), 'seconds': round(time.time() - t, 2)}}))"
PROBES = {f"{package}:import": _IMPORT.format(module=module) for package, module in (
    ("torch-npu", "torch_npu"), ("torch", "torch"), ("onnxruntime", "onnxruntime"), ("openvino", "openvino"), ("executorch", "executorch.exir"))}


@functools.cache
def installed() -> dict[str, str]:
    """Distribution name (lower case, dashes) to version."""
    found = {}
    for dist in metadata.distributions():
        name = dist.metadata["Name"] if dist.metadata else None
        if name:
            found[re.sub(r"[-_.]+", "-", name).lower()] = dist.version
    return found


@functools.cache
def pairs() -> tuple[dict[str, str], ...]:
    """The published combinations of torch_npu, torch and CANN, newest first."""
    with VERSIONS.open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def check(machine: Machine) -> Iterator[Check]:
    """Python, packages, pairs, imports."""
    have = installed()
    version = platform.python_version()
    yield Check("python", f"{version} {platform.machine()} {sys.executable}", *((Severity.ERROR, _("Python {version} is older than 3.10.").format(version=version), _("Use Python 3.10 or newer.")) if sys.version_info < (3, 10) else ()))
    listed = ", ".join(f"{name} {have[name]}" for name in SHOWN if name in have)
    yield Check("packages", listed or _("none of torch, onnxruntime, openvino, executorch"), details={n: have[n] for n in SHOWN if n in have})
    yield from _torch_npu(have)
    yield from _runtimes(have)
    yield from _wheels()
    yield from _imports(machine, have)


def _torch_npu(have: dict[str, str]) -> Iterator[Check]:
    npu, torch = have.get("torch-npu"), have.get("torch")
    if not npu:
        return
    base, torch_base = re.sub(r"(?:\.?post|\.?rc|\.?dev|\+).*$", "", npu), re.sub(r"\+.*$", "", torch or "")
    known = next((p for p in pairs() if p["torch_npu"] == npu), None)
    wanted = known["torch"] if known else base
    if torch_base != wanted:
        fix = f"python -m pip install torch=={wanted}"
        match = next((p["torch_npu"] for p in pairs() if p["torch"] == torch_base), None)
        other = _(" or keep torch and take the other: python -m pip install torch-npu=={version}").format(version=match) if match else ""
        yield Check("torch-pair", f"torch {torch}, torch_npu {npu}", Severity.ERROR, _("torch_npu {npu} belongs to torch {wanted}, and torch {torch} is installed: importing it fails or crashes.").format(npu=npu, wanted=wanted, torch=torch or _("(none)")), fix + other)
    else:
        yield Check("torch-pair", f"torch {torch}, torch_npu {npu}")


def _runtimes(have: dict[str, str]) -> Iterator[Check]:
    several = [n for n in _OLD_RUNTIMES if n in have]
    if len(several) > 1:
        yield Check("onnxruntime-twice", ", ".join(several), Severity.ERROR, _("Several ONNX Runtime packages write into the same folder ({names}); the last one installed wins and providers vanish.").format(names=", ".join(several)),
                    f"python -m pip uninstall -y {' '.join(several)} && python -m pip install {several[-1]}")


def _wheels() -> Iterator[Check]:
    machine = platform.machine().lower()
    others = {"x86_64": ("aarch64", "arm64"), "aarch64": ("x86_64", "amd64"), "arm64": ("x86_64", "amd64")}.get(machine, ())
    wrong = []
    for dist in metadata.distributions():
        try:
            tags = re.findall(r"^Tag: (\S+)", dist.read_text("WHEEL") or "", re.MULTILINE)
        except (OSError, UnicodeDecodeError):
            continue
        if tags and all(any(o in t for o in others) for t in tags):
            wrong.append(f"{dist.metadata['Name']} ({tags[0]})")
    if wrong:
        yield Check("wheel-architecture", ", ".join(wrong[:6]), Severity.ERROR, _("These packages were built for another processor than {machine}: {names}.").format(machine=machine, names=", ".join(wrong[:6])), _("Install them again on this machine, without --platform and without copying the environment."))


def _imports(machine: Machine, have: dict[str, str]) -> Iterator[Check]:
    for name in PROBES:
        package = name.partition(":")[0]
        if package not in have or name not in machine.probes:
            continue
        result = machine.probes[name]
        if result["ok"]:
            yield Check(f"import-{package}", _("works, {seconds} s").format(seconds=result.get("seconds", "?")))
            continue
        from npulift.doctor.diagnose import diagnose_text

        found = diagnose_text(result["error"], f"import {package}").causes
        said = found[0].cause if found else (result["error"].strip().splitlines() or ["?"])[-1][:300]
        fix = " ".join(f"{i}. {s}" for i, s in enumerate(found[0].fix, 1)) if found else _("Install it again: python -m pip install --force-reinstall --no-deps {package}=={version}").format(package=package, version=have[package])
        yield Check(f"import-{package}", _("fails"), Severity.ERROR, _("`import {module}` fails: {reason}").format(module=package.replace("-", "_"), reason=said), fix, {"error": result["error"][-1000:], "causes": [c.id for c in found]})
