"""Copies over PCIe, collectives over the links between cards, and compilation just in time. None of these is calibrated; the bars say so."""

from __future__ import annotations

import math

from npulift.ascend.chips import Chip
from npulift.ascend.cost.prediction import Prediction
from npulift.ascend.cost.roofline import predict
from npulift.ascend.cost.tables import KernelType, calibration, links
from npulift.ascend.records import Operand
from npulift.messages import _

_PCIE_SHARE = 0.75  # of the raw rate, that large pinned copies reach after encoding and packet headers
_LINK_SHARE = 0.8
_COPY_NS = 10_000.0  # a copy of a few bytes: driver and doorbell
_STEP_NS = 2_000.0  # one more step of a collective: notify and wait


def copy(size: int, direction: str, chip: Chip) -> Prediction:
    """A copy of `size` bytes; direction: as the trace names it ('host-to-device', 'device-to-device', ...)."""
    if direction == "device-to-device":
        words = Operand((max(1, size // 4),), "float32", "ND", ())
        return predict("TensorMove", (words,), (words,), chip)
    rate = (links()[chip.name].host_bandwidth if chip.name in links() else 16e9) * _PCIE_SHARE
    ns = _COPY_NS + size / rate * 1e9
    return Prediction(ns, ns / 2, ns * 3, "Memcpy", "copy", "link" if ns > 2 * _COPY_NS else "launch", False,
                      _("published bandwidth of PCIe; not calibrated; pageable memory is slower"))


def collective(name: str, size: int, ranks: int, chip: Chip) -> Prediction:
    """A collective (HcclAllReduce, ...) over `ranks` cards: mesh or ring in a server, then a ring of servers. Waiting for slow ranks is not in it.

    size: bytes of the whole: what is reduced, what all have after a gather, what all had before a scatter (as the trace counts them).
    """
    rate = 25e9
    inside, servers, mesh, network = max(1, ranks), 1, False, 25e9
    if chip.name in links():
        row = links()[chip.name]
        rate, mesh, network = row.card_bandwidth, row.topology == "mesh", row.network_bandwidth
        inside = min(inside, row.cards)
        servers = math.ceil(max(1, ranks) / row.cards)
    bare = name.removeprefix("Hccl").removesuffix("_").lower()
    rounds = 2 if "allreduce" in bare else 1
    total = size
    seconds = 0.0
    if inside > 1:
        seconds += rounds * (total / inside if mesh else total * (inside - 1) / inside) / (rate * _LINK_SHARE)
    if servers > 1:
        seconds += rounds * (total / inside) * (servers - 1) / servers / (network * _LINK_SHARE)
    steps = rounds * ((1 if mesh else inside - 1) + (servers - 1))
    ns = calibration()["collective_ns"] + _STEP_NS * steps + seconds * 1e9
    return Prediction(ns, ns / 2, ns * 3, f"hcom_{bare}_", "HCCL", "link", False,
                      _("published bandwidth of the links ({topology}); not calibrated; waiting for other ranks is not in it").format(
                          topology=_("mesh") if mesh else _("ring")))


def compilation(kind: KernelType, chip: Chip) -> Prediction:
    """Compiling one kernel for a new shape on the host."""
    ns = {"cube": 4e9, "attention": 6e9}.get(kind.group, 1e9)
    return Prediction(ns, ns / 10, ns * 5, kind.name, "host", "host", False,
                      _("compilation just in time takes {chip} from a tenth of a second to tens of seconds a new shape; not calibrated").format(chip=chip.name))
