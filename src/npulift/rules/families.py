"""What families of hardware have in common, as far as rules ask. Sources stand with each fact; anything a compiler can be asked is asked there."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from npulift.targets.base import Target

_FAMILIES = ("ascend", "ethos-u", "qnn", "rknn", "openvino", "onnxruntime", "cpu")


def family(target: Target) -> str:
    """'ascend', 'ethos-u', 'qnn', 'rknn', 'openvino', 'onnxruntime' or 'cpu', by the target's name."""
    return next((f for f in _FAMILIES if target.name.startswith(f)), target.name.partition(":")[0])


def is_npu(target: Target) -> bool:
    """True for anything but the runtimes that compute on this machine's CPU or GPU."""
    return family(target) in ("ascend", "ethos-u", "qnn", "rknn") or target.name.upper() == "OPENVINO:NPU"


def compiles_static_shapes(target: Target) -> bool:
    """True where one compiled program serves one set of sizes: Ethos-U, Qualcomm HTP, Rockchip, Intel NPU."""
    return is_npu(target) and family(target) != "ascend"


def lacks_bfloat16(target: Target) -> bool:
    """True for Ascend chips whose AI Core has no bfloat16: 910A and 310P (torch_npu raises on them; source: Ascend/pytorch documentation)."""
    return any(target.name.startswith(f"ascend-{chip}") for chip in ("910a", "910pro", "310p"))


def saturates_by_default(target: Target) -> bool:
    """True for Ascend chips that start in saturation mode, where overflow gives 65504 and not inf: 910A (which knows nothing else) and 310P.

    A2 and later (910B, 910_93) start in INF/NAN mode. Source: torch_npu's INF_NAN_MODE_ENABLE documentation.
    """
    return lacks_bfloat16(target)


def computes_in_float16(target: Target) -> bool:
    """True where a float32 model is computed in float16 by default: Qualcomm HTP, Rockchip, Intel NPU, and the Ascend cube of chips without bfloat16."""
    return family(target) in ("qnn", "rknn") or target.name.upper() == "OPENVINO:NPU" or lacks_bfloat16(target)


def installed(package: str) -> tuple[int, ...] | None:
    """Version of an installed package as numbers, None when it is not installed."""
    try:
        text = version(package)
    except PackageNotFoundError:
        return None
    numbers = []
    for part in text.split("+")[0].split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
