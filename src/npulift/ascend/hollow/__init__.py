"""Hollow CANN: stub libraries on which the real torch_npu runs without CANN and without an NPU.

About 2,100 functions return success; the few that must do something stand in the C sources beside this file. Which functions there are is read from the
torch_npu wheel that is installed, so that its next release works, too. Built with gcc into the cache, once for each wheel and each
state of the sources. The observer (g++) joins launches with operators, modules and source lines.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from npulift.ascend import wheel
from npulift.errors import NpuliftError
from npulift.files import atomic_folder, cache_folder
from npulift.messages import _

SOURCES = Path(__file__).parent
# Names under which torch_npu looks for CANN. All their functions are in libascendcl.so; the others only lead there.
LIBRARIES = (
    "hccl", "acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel", "atb", "opapi", "cust_opapi", "nnopbase", "runtime", "ascend_hal", "msprofiler", "profapi",
    "aclnn_math", "aclnn_fft", "aclnn_rand", "aclnn_sparse", "aclnn_ops_infer", "aclnn_ops_train",
)
TRACE, OBSERVER, ALLOCATIONS = "libnpulift_trace.so", "libnpulift_observer.so", "libnpulift_allocations.so"
_NAME = re.compile(rb"(?<![A-Za-z0-9_])((?:acl(?:rt|op|mdl|prof|sys|nn)?[A-Z]|Hccl[A-Z]|rt[A-Z]|Msprof[A-Z])[A-Za-z0-9_]+)\0")
_PLAIN = re.compile(r"(?:acl|Hccl|rt[A-Z]|Msprof)\w+\Z")


def build(torch_npu: Path, say: Callable[[str], None] = lambda _text: None) -> Path:
    """The folder with the libraries for the torch_npu package whose parent folder is `torch_npu`; built when it is not there yet.

    Raises NpuliftError when there is no compiler or it fails.
    """
    folder = cache_folder("hollow") / _key(torch_npu)
    if (folder / OBSERVER).exists():
        return folder
    for compiler, package in (("gcc", "gcc"), ("g++", "g++"), ("nm", "binutils")):
        if shutil.which(compiler) is None:
            raise NpuliftError(
                _("{compiler} is not installed; the virtual Ascend needs it once, to build its stub libraries. Install it, say with "
                  "`apt-get install {package}` or `dnf install {package}`.").format(compiler=compiler, package=package), exit_code=1)
    say(_("building hollow CANN for torch_npu {version} (once)").format(version=wheel.version_of(torch_npu)))
    with atomic_folder(folder) as target:
        _compile(torch_npu / "torch_npu", target)
    return folder


def symbols(package: Path) -> tuple[str, ...]:
    """Every C function of CANN that the wheel links against or looks up by name."""
    objects = sorted([*package.glob("lib/*.so"), *package.glob("_C*.so")])
    wanted = set(_nm("--undefined-only", objects))
    for path in objects:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            wanted |= {m.group(1).decode() for m in _NAME.finditer(data)}
    return tuple(sorted(s for s in wanted - set(_nm("--defined-only", objects)) if _PLAIN.match(s)))


def _nm(which: str, objects: Iterable[Path]) -> list[str]:
    out = _run(["nm", "-D", which, *map(str, objects)])
    return [line.split()[-1].split("@")[0] for line in out.splitlines() if line.strip() and not line.endswith(":")]


def _key(torch_npu: Path) -> str:
    digest = hashlib.sha256()
    for source in sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h"), *SOURCES.glob("*.cpp"), SOURCES / "__init__.py"]):
        digest.update(source.read_bytes())
    library = torch_npu / "torch_npu" / "lib" / "libtorch_npu.so"
    try:
        size = library.stat().st_size
    except OSError as error:
        raise NpuliftError(_("{path} is missing; the torch_npu package is not whole. Remove its folder and try again.").format(path=library)) from error
    digest.update(f"{wheel.version_of(torch_npu)} {size} {wheel.torch_version()} {_torch()}".encode())
    return digest.hexdigest()[:16]


def _torch() -> Path:
    import importlib.util

    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NpuliftError(_("torch is not installed."))
    return Path(spec.origin).parent


def _compile(package: Path, out: Path) -> None:
    written = "\n".join(p.read_text(encoding="utf-8") for p in SOURCES.glob("*.c"))
    ours = set(re.findall(r"^[a-z][\w *]*?\b((?:acl|Hccl)\w+)\(", written, re.M))
    names = [s for s in symbols(package) if s not in ours]
    launches = [s for s in names if f"{s}GetWorkspaceSize" in names]
    halves = {f"{s}GetWorkspaceSize" for s in launches}
    lines = ["#include <stdarg.h>", "#include <stdint.h>", "static char handle[64];", "long hollow_prepare(uint32_t, void *, va_list);",
             "long hollow_launch(uint32_t, void *, void *);", "const char *const hollow_functions[] = {", *(f'  "{s}",' for s in launches), '  ""};']
    for number, name in enumerate(launches):
        lines.append(f"long {name}GetWorkspaceSize(void *a, ...) {{ va_list p; va_start(p, a); long r = hollow_prepare({number}, a, p); va_end(p); return r; }}")
        lines.append(f"long {name}(void *w, uint64_t n, void *e, void *s) {{ return hollow_launch({number}, e, s); }}")
    for name in names:
        if name not in launches and name not in halves:
            handle = "(long)handle" if name.startswith(("aclCreate", "aclprofCreate", "aclopCreate")) else "0"
            lines.append(f"long {name}(void) {{ return {handle}; }}")
    stubs = out / "stubs.c"
    stubs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    c = ["gcc", "-O2", "-w", "-shared", "-fPIC", "-pthread", f"-I{SOURCES}"]
    _run([*c, "-o", str(out / TRACE), str(SOURCES / "trace.c"), f"-Wl,-soname,{TRACE}"])
    here = ["-L", str(out), "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"]
    real = [str(SOURCES / name) for name in ("launches.c", "runtime.c", "collectives.c")]
    _run([*c, "-o", str(out / "libascendcl.so"), *real, *here, "-lnpulift_trace", "-Wl,-soname,libascendcl.so", "-O1", str(stubs)])
    for library in LIBRARIES:
        _run([*c, "-o", str(out / f"lib{library}.so"), "-x", "c", "/dev/null", *here, "-lascendcl", f"-Wl,-soname,lib{library}.so"])
    torch = _torch()
    includes = [f"-I{torch / 'include'}", f"-I{torch / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"]
    cxx = ["g++", "-O2", "-w", "-std=c++20", "-fPIC", "-shared", f"-I{SOURCES}", *includes]
    _run([*cxx, str(SOURCES / "observer.cpp"), "-o", str(out / OBSERVER), *here, "-lnpulift_trace", f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu",
          f"-Wl,-soname,{OBSERVER}"])
    headers = [f"-I{package / 'include'}", f"-I{package / 'include' / 'third_party' / 'acl' / 'inc'}"]
    try:  # against torch_npu's own headers, which another release may change: without it the report lacks the memory over time, no more
        _run([*cxx, *headers, str(SOURCES / "allocations.cpp"), "-o", str(out / ALLOCATIONS), *here, "-lnpulift_trace", f"-L{package / 'lib'}", "-ltorch_npu",
              "-Wl,--allow-shlib-undefined", f"-Wl,-soname,{ALLOCATIONS}"])
    except NpuliftError as error:
        (out / "allocations.log").write_text(str(error), encoding="utf-8")
    stubs.unlink()
    for folder in ("runtime", "compiler", "opp"):  # torch_npu looks whether they exist
        (out / folder).mkdir()


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600, check=False, errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NpuliftError(_("{command} could not be run: {error}.").format(command=command[0], error=error), exit_code=1) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines() or [str(done.returncode)]
        raise NpuliftError(_("{command} failed while hollow CANN was built: {error}").format(command=command[0], error=lines[0][:400]), exit_code=1)
    return done.stdout
