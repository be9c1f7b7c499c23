"""The host: disk, shared memory, limits, processor governor, NUMA."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from npulift.doctor.environment import Check, Machine
from npulift.findings import Severity
from npulift.messages import _

_GB = 1e9


def check(machine: Machine) -> Iterator[Check]:
    """Room and limits."""
    for name in dict.fromkeys((os.path.expanduser("~"), machine.environ.get("TMPDIR") or "/tmp", ".")):
        try:
            free = shutil.disk_usage(name).free
        except OSError:
            continue
        shown = name if name != os.path.expanduser("~") else "~"
        short = free < 5 * _GB
        yield Check("disk", _("{free:.1f} GB free at {place}").format(free=free / _GB, place=shown), Severity.WARNING if short else None,
                    _("Only {free:.1f} GB are free at {place}; logs, kernel caches and checkpoints need more.").format(free=free / _GB, place=shown) if short else "", _("Make room, or point TMPDIR, ASCEND_PROCESS_LOG_PATH and ASCEND_CACHE_PATH elsewhere.") if short else "")
        if short:
            break
    shm = machine.path("/dev/shm")
    if shm.is_dir():
        total = shutil.disk_usage(shm).total
        small = total < 1 * _GB
        yield Check("shared-memory", f"/dev/shm {total / _GB:.1f} GB", Severity.WARNING if small else None,
                    _("/dev/shm has {size:.2f} GB: data loaders with workers and HCCL need more.").format(size=total / _GB) if small else "", "docker run --shm-size=64g" if small else "")
    yield from _limits()
    yield from _processor(machine)


def _limits() -> Iterator[Check]:
    try:
        import resource
    except ImportError:
        return
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    low = 0 <= files < 4096
    yield Check("open-files", str(files) if files >= 0 else "unlimited", Severity.INFO if low else None, _("The limit of open files is {n}; many data workers and ranks reach it.").format(n=files) if low else "", "ulimit -n 65536" if low else "")


def _processor(machine: Machine) -> Iterator[Check]:
    count = os.cpu_count() or 0
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    nodes = sorted(p.name for p in machine.path("/sys/devices/system/node").glob("node[0-9]*")) if machine.path("/sys/devices/system/node").is_dir() else []
    yield Check("processor", _("{allowed} of {count} CPUs, {nodes} NUMA node(s)").format(allowed=allowed, count=count, nodes=max(1, len(nodes))))
    governor = machine.path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.exists():
        name = governor.read_text(encoding="utf-8", errors="replace").strip()[:40]
        slow = name in ("powersave", "conservative", "ondemand")
        yield Check("cpu-governor", name, Severity.INFO if slow else None, _("The CPU governor is {name}: launching many small operators gets slower and timings get noisy.").format(name=name) if slow else "", "sudo cpupower frequency-set -g performance" if slow else "")
    if len(nodes) > 1 and allowed == count and not machine.environ.get("CPU_AFFINITY_CONF"):
        yield Check("numa-binding", _("not bound"), Severity.INFO, _("Processes are not bound to the NUMA node of their NPU; host-bound steps can lose time."), _("export CPU_AFFINITY_CONF=1 (torch_npu), or numactl --cpunodebind=N --membind=N"))
