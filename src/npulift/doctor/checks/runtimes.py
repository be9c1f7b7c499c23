"""OpenVINO, ONNX Runtime, Qualcomm, Arm, Rockchip: devices and providers really there, and one small operation on each."""

from __future__ import annotations

import os
from collections.abc import Iterator

from npulift.doctor.checks.packages import installed
from npulift.doctor.environment import Check, Machine
from npulift.findings import Severity
from npulift.messages import _

PROBES = {
    "openvino:devices": (
        "import json, openvino as ov\nc = ov.Core()\nout = []\n"
        "for d in c.available_devices:\n"
        "    out.append([d, str(c.get_property(d, 'FULL_DEVICE_NAME'))])\n"
        "v = ''\n"
        "if 'NPU' in c.available_devices:\n"
        "    v = str(c.get_property('NPU', 'NPU_DRIVER_VERSION'))\n"
        "print(json.dumps({'devices': out, 'npu_driver': v}))"
    ),
    "onnxruntime:providers": "import json, onnxruntime as o\nprint(json.dumps({'providers': o.get_available_providers(), 'version': o.__version__}))",
    "onnxruntime-qnn:device": (
        "import json, onnxruntime as o, onnxruntime_qnn as q\no.register_execution_provider_library(q.get_ep_name(), q.get_library_path())\n"
        "print(json.dumps({'devices': [str(d.device.type) for d in o.get_ep_devices() if d.ep_name == q.get_ep_name()]}))"
    ),
}
_OPENVINO = (
    "import json, numpy as np, openvino as ov\nfrom openvino import opset13 as op\n"
    "x = op.parameter([1, 4], np.float32)\nm = ov.Model([op.add(op.multiply(x, np.float32(3)), np.float32(1))], [x])\n"
    "c = ov.Core()\nv = np.arange(4, dtype=np.float32)[None]\nout = []\n"
    "for d in c.available_devices:\n"
    "    try:\n        y = c.compile_model(m, d)([v])[0]\n        out.append([d, float(np.abs(y - (v * 3 + 1)).max()), ''])\n"
    "    except Exception as e:\n        out.append([d, None, str(e)[-600:]])\n"
    "print(json.dumps({'devices': out}))"
)
_ONNX = (
    "import json, numpy as np, onnx, onnxruntime as o\nfrom onnx import TensorProto as T, helper as h\n"
    "g = h.make_graph([h.make_node('Add', ['x', 'x'], ['y'])], 'g', [h.make_tensor_value_info('x', T.FLOAT, [1, 4])], [h.make_tensor_value_info('y', T.FLOAT, [1, 4])])\n"
    "b = h.make_model(g, opset_imports=[h.make_opsetid('', 17)], ir_version=8).SerializeToString()\nv = np.ones((1, 4), np.float32)\nout = []\n"
    "for p in o.get_available_providers():\n"
    "    try:\n        s = o.InferenceSession(b, providers=[p]); y = s.run(None, {'x': v})[0]\n        out.append([p, s.get_providers()[0], float(np.abs(y - 2).max()), ''])\n"
    "    except Exception as e:\n        out.append([p, None, None, str(e)[-300:]])\n"
    "print(json.dumps({'providers': out}))"
)
SMOKE = {"openvino:smoke": _OPENVINO, "onnxruntime:smoke": _ONNX}


def check(machine: Machine) -> Iterator[Check]:
    """Each runtime that is installed."""
    yield from _openvino(machine)
    yield from _onnxruntime(machine)
    yield from _others(machine)


def _openvino(machine: Machine) -> Iterator[Check]:
    devices = machine.probes.get("openvino:devices")
    node = machine.path("/dev/accel/accel0")
    if devices is None:
        if node.exists():
            yield Check("intel-npu", "/dev/accel/accel0", Severity.INFO, _("There is an accelerator node, and OpenVINO is not installed."), "python -m pip install openvino")
        return
    if not devices["ok"]:
        yield Check("openvino-devices", _("fails"), Severity.ERROR, _("OpenVINO cannot list its devices: {error}").format(error=devices["error"].strip()[-300:]), "python -m pip install --force-reinstall openvino")
        return
    names = [d for d, _name in devices["devices"]]
    yield Check("openvino-devices", ", ".join(f"{d} ({n})" for d, n in devices["devices"]) + (f", NPU driver {devices['npu_driver']}" if devices["npu_driver"] else ""), details={"devices": names})
    if node.exists() and "NPU" not in names:
        allowed = os.access(node, os.R_OK | os.W_OK)
        yield Check("intel-npu", "/dev/accel/accel0", Severity.ERROR, _("The Intel NPU's node is there, and OpenVINO does not see the NPU: {why}.").format(why=_("its user-space driver (intel-level-zero-npu, intel-driver-compiler-npu, level-zero) is missing or of another release") if allowed else _("this user may not open it")),
                    _("Install the packages of intel/linux-npu-driver.") if allowed else "sudo usermod -aG render $USER")
    smoke = machine.probes.get("openvino:smoke")
    if smoke and smoke["ok"]:
        for device, error, text in smoke["devices"]:
            if error is not None and error < 1e-2:
                yield Check(f"smoke-openvino-{device}", _("right, difference {error:.1e}").format(error=error))
            else:
                yield Check(f"smoke-openvino-{device}", text[:120] or str(error), Severity.ERROR, _("A small operation on OpenVINO's {device} fails or is wrong: {text}").format(device=device, text=text[-300:] or error), _("Upgrade OpenVINO and the device's driver together."))
    elif smoke:
        yield Check("smoke-openvino", _("fails"), Severity.ERROR, _("A small operation with OpenVINO fails: {error}").format(error=smoke["error"].strip()[-300:]), "python -m pip install --force-reinstall openvino")


def _onnxruntime(machine: Machine) -> Iterator[Check]:
    providers = machine.probes.get("onnxruntime:providers")
    if providers and providers["ok"]:
        yield Check("onnxruntime-providers", ", ".join(providers["providers"]), details={"providers": providers["providers"]})
    smoke = machine.probes.get("onnxruntime:smoke")
    if smoke and smoke["ok"]:
        for asked, used, error, text in smoke["providers"]:
            if used is None:
                yield Check(f"smoke-{asked}", text[:120], Severity.WARNING, _("{provider} is listed and cannot run: {text}").format(provider=asked, text=text), _("Leave it out of providers=[...], or install its driver."))
            elif used != asked:
                yield Check(f"smoke-{asked}", used, Severity.WARNING, _("{provider} is listed, and a session that asks for it runs on {used} without an error: a silent fallback.").format(provider=asked, used=used),
                            _("Register the provider's library and add its device (onnxruntime-qnn: register_execution_provider_library, add_provider_for_devices); set session.disable_cpu_ep_fallback=1."))
            else:
                yield Check(f"smoke-{asked}", _("right, difference {error:.1e}").format(error=error), None if error < 1e-3 else Severity.ERROR, "" if error < 1e-3 else _("wrong result"), "")


def _others(machine: Machine) -> Iterator[Check]:
    have = installed()
    qnn = machine.probes.get("onnxruntime-qnn:device")
    if qnn is not None:
        if qnn["ok"]:
            yield Check("qualcomm", _("onnxruntime-qnn {version}, devices {devices}").format(version=have.get("onnxruntime-qnn", "?"), devices=", ".join(qnn["devices"]) or "-") + _(" (on x86_64 this is the vendor's simulator)"))
        else:
            yield Check("qualcomm", _("fails"), Severity.ERROR, _("onnxruntime-qnn cannot be registered: {error}").format(error=qnn["error"].strip()[-300:]), "python -m pip install --force-reinstall onnxruntime-qnn")
    if "ethos-u-vela" in have or "executorch" in have:
        yield Check("arm-ethos-u", ", ".join(f"{n} {have[n]}" for n in ("executorch", "ethos-u-vela", "tosa-tools") if n in have))
    if machine.path("/proc/device-tree/compatible").exists() and b"rockchip" in machine.path("/proc/device-tree/compatible").read_bytes()[:4096]:
        node = next((n for n in ("/dev/rknpu", "/dev/dri/renderD129", "/dev/dri/renderD128") if machine.path(n).exists()), "")
        yield Check("rockchip", node or _("no node"), None if node else Severity.WARNING, "" if node else _("A Rockchip board without the node of the NPU driver."), "" if node else "dmesg | grep -i rknpu")
