"""Ascend: CANN, driver and firmware, npu-smi, device nodes, container mounts, visible devices, one operation on the NPU."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from npulift.doctor.checks.packages import installed, pairs
from npulift.doctor.environment import Check, Machine
from npulift.findings import Severity
from npulift.messages import _

_HOMES = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann", "/usr/local/Ascend/latest", "/usr/local/Ascend/nnae/latest")
_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
SMOKE = {
    "torch-npu:smoke": (
        "import json, torch, torch_npu\nout = []\n"
        "for i in range(torch.npu.device_count()):\n"
        "    a = torch.arange(64, dtype=torch.float32).reshape(8, 8) / 64\n"
        "    d = torch.device('npu', i)\n"
        "    free, total = torch.npu.mem_get_info(i)\n"
        "    out.append({'device': f'npu:{i}', 'name': torch.npu.get_device_name(i), 'error': float(((a.to(d) @ a.to(d)).cpu() - a @ a).abs().max()), 'free': free, 'total': total})\n"
        "print(json.dumps({'devices': out}))"
    )
}


def check(machine: Machine) -> Iterator[Check]:
    """Nothing is said on a machine without any trace of Ascend but that there is none."""
    driver, toolkit = machine.path("/usr/local/Ascend/driver"), _toolkit(machine)
    nodes = sorted(p.name for p in machine.path("/dev").glob("davinci[0-9]*")) if machine.path("/dev").is_dir() else []
    wanted = "torch-npu" in installed() or any(k.startswith("ASCEND_") for k in machine.environ)
    if not (driver.exists() or toolkit or nodes):
        if wanted:
            yield Check("ascend", _("none"), Severity.WARNING, _("torch_npu or ASCEND variables are here, but neither driver, toolkit nor device: this is not an Ascend machine, or nothing is mounted into this container."), _("Set TORCH_DEVICE_BACKEND_AUTOLOAD=0 so that `import torch` works, or install the driver and CANN; `npulift simulate` needs neither."))
        else:
            yield Check("ascend", _("no Ascend driver, toolkit or device here"))
        return
    yield from _cann(machine, toolkit)
    yield from _driver(machine)
    yield from _nodes(machine, nodes)
    yield from _smi(machine)
    yield from _operation(machine)


def _toolkit(machine: Machine) -> str:
    for name in (machine.environ.get("ASCEND_HOME_PATH"), machine.environ.get("ASCEND_TOOLKIT_HOME"), *_HOMES):
        if name and machine.path(name).exists():
            return name
    return ""


def _cann(machine: Machine, toolkit: str) -> Iterator[Check]:
    if not toolkit:
        yield Check("cann", _("none"), Severity.ERROR, _("There is a driver or device, and no CANN toolkit."), _("Install the CANN toolkit and the kernels of this chip, then source its set_env.sh."))
        return
    version = _version(machine, toolkit)
    sourced = bool(machine.environ.get("ASCEND_HOME_PATH") or machine.environ.get("ASCEND_OPP_PATH"))
    if not sourced:
        script = next((s for s in (f"{toolkit}/set_env.sh", "/usr/local/Ascend/ascend-toolkit/set_env.sh", f"{toolkit}/bin/setenv.bash") if machine.path(s).exists()), "/usr/local/Ascend/ascend-toolkit/set_env.sh")
        yield Check("cann", f"{toolkit} {version}", Severity.ERROR, _("CANN is installed in {folder} and not sourced in this shell, so its libraries are not found.").format(folder=toolkit), f"source {script}", {"version": version})
    else:
        yield Check("cann", f"{toolkit} {version}", details={"version": version})
    npu = installed().get("torch-npu")
    pair = next((p for p in pairs() if p["torch_npu"] == npu), None)
    if pair and version and not version.upper().startswith(pair["cann"].upper()):
        yield Check("cann-pair", f"torch_npu {npu}, CANN {version}", Severity.WARNING, _("torch_npu {npu} was published for CANN {wanted}, and {version} is installed.").format(npu=npu, wanted=pair["cann"], version=version), _("Install CANN {wanted}, or the torch_npu that belongs to {version}.").format(wanted=pair["cann"], version=version))


def _version(machine: Machine, toolkit: str) -> str:
    for pattern in ("version.cfg", "*/ascend_toolkit_install.info", "ascend_toolkit_install.info", "share/info/*/version.info", "compiler/version.info", "opp/version.info"):
        for file in sorted(machine.path(toolkit).glob(pattern))[:3]:
            found = re.search(r"(?im)^\s*(?:toolkit_.{0,40}version|version)\s*=\s*\[?([\w.:]{1,60})", file.read_text(encoding="utf-8", errors="replace")[:4000])
            if found:
                return found.group(1).rpartition(":")[2]
    return ""


def _driver(machine: Machine) -> Iterator[Check]:
    file = machine.path("/usr/local/Ascend/driver/version.info")
    firmware = machine.path("/usr/local/Ascend/firmware/version.info")
    if not file.exists():
        yield Check("ascend-driver", _("none"), Severity.WARNING, _("/usr/local/Ascend/driver/version.info is not here: no driver, or its folder is not mounted into this container."), "-v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro")
        return
    def read(path):  # type: ignore[no-untyped-def]
        found = re.search(r"(?im)^version\s*=\s*(\S{1,60})", path.read_text(encoding="utf-8", errors="replace")[:4000]) if path.exists() else None
        return found.group(1) if found else "?"
    yield Check("ascend-driver", _("driver {driver}, firmware {firmware}").format(driver=read(file), firmware=read(firmware)))


def _nodes(machine: Machine, nodes: list[str]) -> Iterator[Check]:
    container = machine.path("/.dockerenv").exists() or machine.path("/run/.containerenv").exists()
    if not nodes:
        yield Check("ascend-devices", _("no /dev/davinciN"), Severity.ERROR, _("There is no device node /dev/davinciN") + (_(" in this container.") if container else "."), _("docker run --device /dev/davinci0 --device /dev/davinci_manager --device /dev/devmm_svm --device /dev/hisi_hdc ... (or the Ascend docker runtime)") if container else _("Install the driver; lspci | grep -i -E 'd801|d802|d500' shows whether the card is seen."))
        return
    closed = [n for n in [*nodes, *_NODES] if machine.path(f"/dev/{n}").exists() and not os.access(machine.path(f"/dev/{n}"), os.R_OK | os.W_OK)]
    missing = [n for n in _NODES if not machine.path(f"/dev/{n}").exists()]
    if closed:
        yield Check("ascend-permission", ", ".join(closed), Severity.ERROR, _("This user may not open {names}.").format(names=", ".join("/dev/" + n for n in closed)), "sudo usermod -aG HwHiAiUser $USER")
    if missing:
        yield Check("ascend-mounts", ", ".join(missing), Severity.ERROR, _("{names} missing beside the devices: the container was started without them.").format(names=", ".join("/dev/" + n for n in missing)), " ".join(f"--device /dev/{n}" for n in missing))
    visible = machine.environ.get("ASCEND_RT_VISIBLE_DEVICES") or machine.environ.get("ASCEND_VISIBLE_DEVICES")
    if visible and not closed:
        numbers = [p for p in re.split(r"[,\s]+", visible) if p]
        bad = [p for p in numbers if not re.fullmatch(r"\d+(?:-\d+)?", p) or (p.isdigit() and int(p) >= max(len(nodes), max(int(re.sub(r"\D", "", n)) for n in nodes) + 1))]
        if bad:
            yield Check("ascend-visible-devices", visible, Severity.ERROR, _("ASCEND_RT_VISIBLE_DEVICES names devices that are not here: {names}. A wrong number hides all that follow it.").format(names=", ".join(bad)), "export ASCEND_RT_VISIBLE_DEVICES=" + ",".join(str(i) for i in range(len(nodes))))
            return
    yield Check("ascend-devices", ", ".join(nodes) + (f" (ASCEND_RT_VISIBLE_DEVICES={visible})" if visible else ""))


def _smi(machine: Machine) -> Iterator[Check]:
    code, text = machine.run("npu-smi", "info")
    if code == -1:
        yield Check("npu-smi", _("not found"), Severity.WARNING, _("npu-smi is not on the path, so health and memory cannot be read."), "-v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi -v /usr/local/dcmi:/usr/local/dcmi")
        return
    if code != 0:
        from npulift.doctor.diagnose import diagnose_text

        found = diagnose_text(text, "npu-smi info").causes
        yield Check("npu-smi", text.strip()[:120], Severity.ERROR, found[0].cause if found else _("npu-smi info fails: {text}").format(text=text.strip()[:200]), found[0].fix[0] if found else "")
        return
    sick = re.findall(r"\|\s*(\d+)\s+(\S+)\s*\|\s*(Alarm|Critical|Warning|UNKNOWN)\b", text)
    memory = re.findall(r"\|\s*\d+\s*(?:\d+)?\s*\|\s*\S+\s*\|.*?(\d+)\s*/\s*(\d+)\s*\|\s*$", text, re.MULTILINE)
    holders = re.findall(r"\|\s*(\d+)\s+\d+\s*\|\s*(\d+)\s*\|\s*(\S+)\s*\|\s*(\d+)\s*\|", text)
    used = ", ".join(f"{u}/{t} MB" for u, t in memory[:8] if int(t) > 0)
    if sick:
        yield Check("npu-health", used, Severity.ERROR, _("Not healthy: {cards}.").format(cards=", ".join(f"card {c} {n}: {s}" for c, n, s in sick)), _("npu-smi info -t health -i <card>; leave the card out with ASCEND_RT_VISIBLE_DEVICES until it is reset or replaced."))
    else:
        yield Check("npu-health", _("ok; HBM {used}").format(used=used or "?"))
    if holders:
        yield Check("npu-processes", ", ".join(f"card {c}: {n} (pid {p}) {m} MB" for c, p, n, m in holders[:8]), Severity.INFO, _("Other processes hold memory of the NPUs."), _("Stop what is left over, or choose free cards with ASCEND_RT_VISIBLE_DEVICES."))


def _operation(machine: Machine) -> Iterator[Check]:
    result = machine.probes.get("torch-npu:smoke")
    if result is None:
        return
    if not result["ok"]:
        from npulift.doctor.diagnose import diagnose_text

        found = diagnose_text(result["error"], "smoke").causes
        yield Check("smoke-npu", _("fails"), Severity.ERROR, _("A matrix product on the NPU fails: {reason}").format(reason=found[0].cause if found else result["error"].strip()[-300:]), " ".join(found[0].fix) if found else "")
        return
    for device in result["devices"]:
        good = device["error"] < 1e-2
        yield Check(f"smoke-{device['device']}", f"{device['name']}: {device['error']:.1e}, {device['free'] / 2**30:.1f}/{device['total'] / 2**30:.1f} GiB", None if good else Severity.ERROR,
                    "" if good else _("{device} computes a matrix product that differs from the CPU's by {error:g}.").format(device=device["device"], error=device["error"]), "" if good else _("Leave this card out and have it examined."))
