"""Writing so that a reader sees the whole file, or the one before it, and never a half."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from npulift.errors import NpuliftError
from npulift.messages import _

if TYPE_CHECKING:
    import torch


@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well and removed when it does not.

    Raises NpuliftError when the folder cannot be written to or is full.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise _unwritable(path, error) from error
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path | str) -> Iterator[Path]:
    """A temporary folder beside `path`, renamed to it when the block ends well; what stood there before is replaced then.

    Raises NpuliftError when the parent cannot be written to or is full, or when `path` is a file.
    """
    path = Path(path)
    if path.is_file():
        raise NpuliftError(_("{path} is a file; name a folder.").format(path=path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield temporary
        os.chmod(temporary, 0o777 & ~_umask())
        old = None
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            os.replace(path, old / path.name)
        try:
            os.replace(temporary, path)
        except OSError:
            if old is not None:
                os.replace(old / path.name, path)
            raise
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_program(program: torch.export.ExportedProgram, path: Path | str) -> None:
    """Write a .pt2 atomically. It is put together in memory: torch's own writer aborts the process when the disk is full."""
    import torch

    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with atomic_file(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def cache_folder(*parts: str) -> Path:
    """A folder under $NPULIFT_CACHE, else under $XDG_CACHE_HOME or ~/.cache, made when it is missing."""
    base = os.environ.get("NPULIFT_CACHE")
    root = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "npulift"
    folder = root.joinpath(*parts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(path: Path, error: OSError) -> NpuliftError:
    reason = error.strerror or str(error)
    return NpuliftError(_("{path} cannot be written: {reason}. Choose another place or make room; nothing was left half-written.").format(path=path, reason=reason), exit_code=1)
