"""`import npulift.ascend.virtual` makes torch_npu work in this process, without CANN and without a card.

Import it before torch_npu (torch may have been imported). NPULIFT_TARGET names the chip (ascend-910b2), NPULIFT_MODE is 'real' (device memory
holds what is copied there; the default) or 'fake' (it is only reserved). Kernels compute nothing in either mode.
"""

from __future__ import annotations

import ctypes
import os
import sys

from npulift.ascend import environment, hollow
from npulift.ascend.chips import chip
from npulift.errors import NpuliftError
from npulift.messages import _


def enter() -> None:
    """Preload hollow CANN into the global scope and put torch_npu on the path. Raises NpuliftError when torch_npu was imported before."""
    if "torch_npu" in sys.modules:
        raise NpuliftError(_("Import npulift.ascend.virtual before torch_npu."))
    ground = environment.prepare(lambda text: print(f"npulift: {text}", file=sys.stderr))
    made = environment.variables(ground, chip(os.environ.get("NPULIFT_TARGET", "ascend-910b2")), os.environ.get("NPULIFT_MODE", "real"))
    os.environ.update(made)
    sys.path.insert(0, str(ground.torch_npu))
    if ground.cann is not None:
        print("npulift: " + _("CANN is installed in {path} and is used.").format(path=ground.cann), file=sys.stderr)
        return
    for name in (hollow.TRACE, "libascendcl.so", *(f"lib{n}.so" for n in hollow.LIBRARIES)):
        library = ctypes.CDLL(str(ground.libraries / name), mode=ctypes.RTLD_GLOBAL)
        for variable, value in made.items():  # the C side reads the environment of the process, which os.environ has set as well
            if variable.startswith("NPULIFT_HOLLOW_"):
                assert os.environ[variable] == value
        del library


enter()
