"""Bundle: a folder with a compiled program, which `npulift.load` runs without the user's code.

manifest.json holds the format version, target, options, versions of the packages that made it, the signature (names, shapes, dtypes of
inputs and outputs, and how outputs are put together), and the SHA-256 and size of every file. Nothing in a bundle is a pickle of ours;
a bundle is checked against its manifest before anything in it is opened.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift import __version__
from npulift.errors import NpuliftError
from npulift.files import atomic_folder
from npulift.messages import _
from npulift.targets.base import Program, find_target

if TYPE_CHECKING:
    import torch

    from npulift.buckets import BucketBundle
    from npulift.model import ModelSpec

FORMAT = 1
_PACKAGES = ("torch", "numpy", "openvino", "nncf", "onnx", "onnxruntime", "onnxruntime-qnn", "executorch", "ethos-u-vela")


class Bundle:
    """A loaded bundle. Call it with tensors or arrays by position; it returns what the model returned: a tensor, a tuple, or a dictionary."""

    def __init__(self, path: Path, manifest: dict[str, Any], program: Program) -> None:
        self.path, self.manifest, self._program = path, manifest, program

    @property
    def target(self) -> str:
        """Target that it was compiled for."""
        return str(self.manifest["target"])

    def __call__(self, *inputs: torch.Tensor | np.ndarray[Any, Any]) -> Any:
        """Run once. Raises NpuliftError when the inputs do not match the signature."""
        return assemble(self.run(self._arrays(inputs)), self.manifest["signature"]["structure"])

    def run(self, inputs: tuple[np.ndarray[Any, Any], ...]) -> tuple[np.ndarray[Any, Any], ...]:
        """The flat outputs for flat arrays, unchecked."""
        return self._program(*inputs)

    def profile(self, *inputs: torch.Tensor | np.ndarray[Any, Any], runs: int = 10) -> Any:
        """The program's Profile over `runs` runs, or None."""
        return self._program.profile(self._arrays(inputs), runs)

    def _arrays(self, inputs: Sequence[Any]) -> tuple[np.ndarray[Any, Any], ...]:
        wanted = self.manifest["signature"]["inputs"]
        arrays = tuple(as_array(i) for i in inputs if not isinstance(i, bool | int | float | str | type(None)))
        if len(arrays) != len(wanted):
            raise NpuliftError(_("This bundle takes {n} inputs, not {m}.").format(n=len(wanted), m=len(arrays)))
        for array, entry in zip(arrays, wanted, strict=True):
            if str(array.dtype) != entry["dtype"]:
                raise NpuliftError(
                    _("Input {name} is {got}; the bundle was compiled for {wanted}.").format(name=entry["name"], got=array.dtype, wanted=entry["dtype"])
                )
            if not fits(array.shape, entry["shape"]):
                raise NpuliftError(
                    _("Input {name} has the shape {got}; the bundle was compiled for {wanted}.").format(
                        name=entry["name"], got=list(array.shape), wanted=show_shape(entry["shape"])
                    )
                )
        return arrays


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A NumPy array of a tensor or an array; memory is shared where it can be."""
    if isinstance(value, np.ndarray):
        return value
    return np.asarray(value.detach().cpu().numpy())


def fits(shape: Sequence[int], wanted: Sequence[int | list[int | None]]) -> bool:
    """True when a shape fits a signature, in which a size that varies is [low, high], high None without a bound."""
    if len(shape) != len(wanted):
        return False
    for size, want in zip(shape, wanted, strict=True):
        if isinstance(want, list):
            low, high = want
            if size < (low or 0) or (high is not None and size > high):
                return False
        elif size != want:
            return False
    return True


def show_shape(wanted: Sequence[int | list[int | None]]) -> str:
    """A signature's shape for people: [1, 3, 224..416, 224..]."""
    return "[" + ", ".join(f"{w[0]}..{'' if w[1] is None else w[1]}" if isinstance(w, list) else str(w) for w in wanted) + "]"


def assemble(outputs: tuple[np.ndarray[Any, Any], ...], structure: dict[str, Any]) -> Any:
    """Put flat outputs together as the model did: {'kind': 'tensor'|'tuple'|'dict', 'keys': [...]}; nested ones come flat, as a tuple."""
    import torch

    tensors = tuple(torch.from_numpy(np.ascontiguousarray(o)) if o.ndim else torch.tensor(o) for o in outputs)
    if structure["kind"] == "tensor":
        return tensors[0]
    if structure["kind"] == "dict":
        return dict(zip(structure["keys"], tensors, strict=True))
    return tensors


def structure_of(result: Any) -> dict[str, Any]:
    """How a model's result is put together (see assemble)."""
    import torch

    if isinstance(result, torch.Tensor):
        return {"kind": "tensor", "keys": []}
    if hasattr(result, "items"):
        flat = {k: v for k, v in result.items() if v is not None}
        if all(isinstance(v, torch.Tensor) for v in flat.values()):
            return {"kind": "dict", "keys": list(flat)}
    return {"kind": "tuple", "keys": []}


def signature_of(spec: ModelSpec, result: Any) -> dict[str, Any]:
    """The signature of a spec, with the outputs that its example inputs gave."""
    import torch
    from torch.utils._pytree import tree_leaves

    inputs = []
    for position, (name, value) in enumerate(zip(spec.names(), spec.inputs, strict=True)):
        if isinstance(value, torch.Tensor):
            dims = spec.dynamic_dims.get(position, {})
            sizes: list[Any] = [[dims[axis].low, dims[axis].high] if axis in dims else size for axis, size in enumerate(value.shape)]
            inputs.append({"name": name, "dtype": str(value.dtype).removeprefix("torch."), "shape": sizes})
    leaves = [v for v in tree_leaves(result) if isinstance(v, torch.Tensor)]
    outputs = [{"dtype": str(v.dtype).removeprefix("torch."), "shape": list(v.shape)} for v in leaves]
    return {"inputs": inputs, "outputs": outputs, "structure": structure_of(result)}


def save(path: Path, program: Path, *, target: str, options: dict[str, Any], signature: dict[str, Any], more: dict[str, Any] | None = None) -> None:
    """Write a bundle atomically from a compiled program's folder. options: those that `Target.load` needs (no paths)."""
    with atomic_folder(path) as folder:
        shutil.copytree(program, folder / "program")
        files = {
            f.relative_to(folder).as_posix(): {"sha256": digest(f), "bytes": f.stat().st_size}
            for f in sorted((folder / "program").rglob("*")) if f.is_file()
        }
        manifest = {
            "format": FORMAT, "npulift_version": __version__, "target": target,
            "options": {k: v for k, v in options.items() if k != "calibration"}, "signature": signature, "files": files,
            "versions": {"python": platform.python_version(), **_versions()}, "machine": platform.machine(), **(more or {}),
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def load(path: Path | str, *, policy: str = "by-latency", max_loaded: int | None = None) -> Bundle | BucketBundle:
    """Open a bundle. policy, max_loaded: for one with several sizes (see buckets.BucketBundle).

    Raises NpuliftError when it is not one, is damaged, or its target is missing here.
    """
    path = Path(path)
    manifest = read_manifest(path)
    for name, entry in manifest["files"].items():
        file = path / name
        if not file.resolve().is_relative_to(path.resolve()) or not file.is_file():
            raise NpuliftError(_("The bundle {path} lacks its file {name}.").format(path=path, name=name))
        if file.stat().st_size != entry["bytes"] or digest(file) != entry["sha256"]:
            raise NpuliftError(_("The bundle {path} is damaged: {name} is not what its manifest says.").format(path=path, name=name))
    target = find_target(manifest["target"])
    missing = target.missing()
    if missing:
        raise NpuliftError(missing)
    if "buckets" in manifest:
        from npulift.buckets import BucketBundle

        return BucketBundle(path, manifest, target, policy=policy, max_loaded=max_loaded)
    return Bundle(path, manifest, target.load(path / "program", manifest["options"]))


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a bundle, checked for what `load` relies on."""
    file = path / "manifest.json"
    try:
        if file.stat().st_size > 64 * 2**20:
            raise ValueError("too large")
        manifest = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(manifest, dict) or manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest.get('format') if isinstance(manifest, dict) else '?'}")
        for key, kind in (("target", str), ("options", dict), ("signature", dict), ("files", dict)):
            if not isinstance(manifest[key], kind):
                raise TypeError(key)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NpuliftError(_("{path} is not a bundle of npulift ({error}).").format(path=path, error=error)) from error
    return manifest


def digest(file: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    state = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(2**20):
            state.update(block)
    return state.hexdigest()


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
