"""torch_npu in a folder of its own: in site-packages it would break a plain `import torch` on a machine without CANN.

Only the process that simulates has the folder on its path. It comes from the package index at first use, or by `npulift ascend install`.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import PathDistribution
from pathlib import Path

from npulift.ascend import versions
from npulift.errors import NpuliftError
from npulift.files import atomic_folder, cache_folder
from npulift.messages import _

_MOST_BYTES = 4 << 30  # unpacked; the wheel of 2.13.0 has 126 MB


def torch_version() -> str:
    """Version of the torch in this environment, without importing it."""
    from importlib.metadata import version

    return version("torch")


def find() -> Path | None:
    """The folder that holds the torch_npu package for this torch and Python, or None when it has not been installed yet.

    Looks at $NPULIFT_TORCH_NPU, at this environment and at npulift's cache.
    Raises NpuliftError when a torch_npu stands there that belongs to another torch; says which pair fits.
    """
    given = os.environ.get("NPULIFT_TORCH_NPU")
    if given:
        folder = Path(given)
        folder = folder.parent if folder.name == "torch_npu" else folder
        if not (folder / "torch_npu").is_dir():
            raise NpuliftError(_("NPULIFT_TORCH_NPU={path} holds no torch_npu package.").format(path=given))
        return _checked(folder)
    spec = importlib.util.find_spec("torch_npu")
    if spec is not None and spec.origin:
        return _checked(Path(spec.origin).parent.parent)
    folder = _folder()
    return folder if (folder / "torch_npu").is_dir() else None


def install(say: Callable[[str], None] = lambda _text: None, wheel: Path | None = None) -> Path:
    """Fetch the torch_npu that fits this torch with pip (or take `wheel`), unpack it into the cache, and return its folder.

    Raises NpuliftError when there is none for this platform, nothing can be fetched, or the archive is not to be trusted.
    """
    version = versions.for_torch(torch_version())
    folder = _folder()
    if wheel is not None:
        _unpack(wheel, folder)
        return _checked(folder)
    with tempfile.TemporaryDirectory() as temporary:
        say(_("fetching torch-npu {version} (once)").format(version=version))
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", temporary, f"torch-npu=={version}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1800, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NpuliftError(_no_wheel(version, str(error)), exit_code=1) from error
        wheels = sorted(Path(temporary).glob("*.whl"))
        if done.returncode or not wheels:
            errors = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("ERROR")] or ["pip"]
            raise NpuliftError(_no_wheel(version, errors[-1]), exit_code=1)
        say(_("unpacking {wheel}").format(wheel=wheels[0].name))
        _unpack(wheels[0], folder)
    return _checked(folder)


def ensure(say: Callable[[str], None] = lambda _text: None) -> Path:
    """The folder with torch_npu, fetched when it is not there yet."""
    return find() or install(say)


def version_of(folder: Path) -> str:
    """Version of the torch_npu in the folder, '' when its metadata is missing."""
    for info in sorted(folder.glob("torch_npu-*.dist-info")):
        return PathDistribution(info).version
    return ""


def _folder() -> Path:
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}-{platform.machine()}"
    return cache_folder(f"torch_npu-{versions.for_torch(torch_version())}") / tag


def _checked(folder: Path) -> Path:
    found, torch = version_of(folder), versions.base(torch_version())
    if found and versions.torch_for(found) != torch:
        raise NpuliftError(
            _("torch_npu {found} in {folder} belongs to torch {its_torch}, but torch {torch} is installed. "
              "Install torch=={its_torch} for it, or torch-npu=={fit} for this torch.").format(
                  found=found, folder=folder, its_torch=versions.torch_for(found), torch=torch, fit=versions.for_torch(torch))
        )
    return folder


def _no_wheel(version: str, reason: str) -> str:
    return _("torch-npu {version}, which goes with the torch {torch} here, could not be fetched ({reason}). There are wheels for Linux on x86_64 and "
             "aarch64; with one at hand, use `npulift ascend install --wheel FILE`.").format(version=version, torch=torch_version(), reason=reason)


def _unpack(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, atomic_folder(folder) as target:
            members = archive.infolist()
            if sum(m.file_size for m in members) > _MOST_BYTES:
                raise NpuliftError(_("{wheel} would unpack to more than {limit} GiB; it is not the wheel it claims to be.").format(wheel=wheel, limit=_MOST_BYTES >> 30))
            root = target.resolve()
            for member in members:
                path = (root / member.filename).resolve()
                if not path.is_relative_to(root) or member.external_attr >> 28 == 0xA:  # outside, or a symbolic link
                    raise NpuliftError(_("{wheel} holds {name}, which would land outside its folder; it is not unpacked.").format(wheel=wheel, name=member.filename))
                if member.is_dir():
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, path.open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
            if not (root / "torch_npu" / "__init__.py").is_file():
                raise NpuliftError(_("{wheel} is not a wheel of torch_npu.").format(wheel=wheel))
    except (zipfile.BadZipFile, EOFError, FileNotFoundError) as error:
        raise NpuliftError(_("{wheel} is not a whole wheel ({error}).").format(wheel=wheel, error=error)) from error
