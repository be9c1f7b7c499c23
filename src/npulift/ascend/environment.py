"""The environment variables under which torch_npu runs: on hollow CANN, or on the real one where it is installed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from npulift.ascend import hollow, wheel
from npulift.ascend.chips import Chip
from npulift.errors import NpuliftError
from npulift.messages import _

_PREFIX = "NPULIFT_HOLLOW_"


@dataclass(frozen=True)
class Ground:
    """What torch_npu stands on.

    torch_npu: folder that holds the package.   libraries: folder with hollow CANN.   cann: folder of the real CANN, which is then used, or None.
    """

    torch_npu: Path
    libraries: Path
    cann: Path | None


def real_cann(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of an installed CANN (its set_env.sh was sourced), or None. NPULIFT_CANN=hollow hides it."""
    if environment.get("NPULIFT_CANN") == "hollow":
        return None
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        home = environment.get(variable)
        if home and environment.get(_PREFIX + "LIBRARIES") != home:
            for library in ("lib64/libascendcl.so", "runtime/lib64/libascendcl.so", "lib/libascendcl.so"):
                if (Path(home) / library).exists():
                    return Path(home)
    return None


def prepare(say: Callable[[str], None] = lambda _text: None) -> Ground:
    """torch_npu and hollow CANN, fetched and built when missing. Raises NpuliftError with the next step."""
    if os.name != "posix" or not Path("/proc/self/maps").exists():
        raise NpuliftError(_("The virtual Ascend needs Linux: torch_npu has wheels for Linux on x86_64 and aarch64 only."))
    folder = wheel.ensure(say)
    return Ground(folder, hollow.build(folder, say), real_cann())


def variables(ground: Ground, chip: Chip, mode: str = "fake", cards: int = 1, devices: int | None = None) -> dict[str, str]:
    """Variables to set for a process that is to run torch_npu. Paths are put before those that are set already.

    mode: 'fake' (nothing is written to device memory) or 'real' (it holds what is copied there).   cards: world size that is simulated.
    """
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    libraries = [ground.torch_npu / "torch_npu" / "lib", Path(torch.origin).parent / "lib"]
    made = {
        "PYTHONPATH": _before("PYTHONPATH", [ground.torch_npu]),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        _PREFIX + "LIBRARIES": str(ground.libraries),
    }
    if ground.cann is None:
        libraries.insert(0, ground.libraries)
        made |= {
            "ASCEND_HOME_PATH": str(ground.libraries),
            "ASCEND_OPP_PATH": str(ground.libraries / "opp"),
            _PREFIX + "SOC": chip.soc,
            _PREFIX + "DEVICES": str(devices or max(8, cards)),
            _PREFIX + "HBM": str(chip.hbm_bytes),
            _PREFIX + "RESERVED": str(chip.reserved_bytes),
            _PREFIX + "CUBE_CORES": str(chip.cube_cores),
            _PREFIX + "VECTOR_CORES": str(chip.vector_cores),
            _PREFIX + "MODE": mode,
        }
    made["LD_LIBRARY_PATH"] = _before("LD_LIBRARY_PATH", libraries)
    return made


def _before(variable: str, folders: list[Path]) -> str:
    rest = [p for p in os.environ.get(variable, "").split(os.pathsep) if p and Path(p) not in folders]
    return os.pathsep.join([*map(str, folders), *rest])
