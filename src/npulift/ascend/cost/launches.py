"""The time of an event of a launch trace: kernel, copy, collective. A Predictor remembers what is in the L2 cache; predict_launch does not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from npulift.ascend import records
from npulift.ascend.chips import Chip
from npulift.ascend.cost import transfers
from npulift.ascend.cost.prediction import Prediction
from npulift.ascend.cost.roofline import predict
from npulift.ascend.cost.tables import KernelType, kernel_type, links
from npulift.ascend.records import Event, Operand, Signature

_LAYOUT = re.compile(r"\b(BNSD|BSND|BSH|SBH|TND|NTD)\b")


def predict_launch(event: Event, chip: Chip) -> Prediction | None:
    """The time of one event on the device; None for events that take none (waits, allocations)."""
    return _event(event, chip, None)


class Cache:
    """What the L2 cache is likely to hold: buffers by their size, the least recently used first.

    A trace names no addresses, so a buffer is known by its number of bytes. Memory that the caching allocator gives out again is found by that as well.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: list[int] = []

    def access(self, read: Sequence[int], written: Sequence[int]) -> tuple[list[float], bool]:
        """A kernel reads and writes buffers of these bytes. Returns the share of each that is read from the cache, and whether what is written was there."""
        held = self._held
        shares = []
        for size in read:
            shares.append(1.0 if size in held else 0.0)
            if size in held:
                held.remove(size)
        there = bool(written) and max(written) in held
        for size in written:
            if size in held:
                held.remove(size)
        held.extend(size for size in (*read, *written) if size > 0)
        total = 0
        for first in range(len(held) - 1, -1, -1):
            total += held[first]
            if total > self.capacity:
                del held[: first + 1]
                break
        return shares, there


class Predictor:
    """Predicts the events of one device in their order."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self._caches: dict[int, Cache] = {}
        self._compiled: set[Signature] = set()

    def __call__(self, event: Event) -> Prediction | None:
        """The time of the next event."""
        size = links()[self.chip.name].l2_bytes if self.chip.name in links() else 32 << 20
        return _event(event, self.chip, self._caches.setdefault(event.device, Cache(size)))

    def compiles(self, event: Event) -> Prediction | None:
        """The time that the host spends on compiling the kernel before this launch: on chips that compile just in time, at the first of its shapes."""
        if not self.chip.jit_compile or event.kind != records.LAUNCH or event.signature is None or event.signature in self._compiled:
            return None
        self._compiled.add(event.signature)
        return transfers.compilation(kernel_type(event.signature.function), self.chip)


def _event(event: Event, chip: Chip, cache: Cache | None) -> Prediction | None:
    match event.kind:
        case records.LAUNCH:
            return kernel(event.signature, chip, cache) if event.signature else None
        case records.COPY:
            return transfers.copy(event.bytes, records.COPIES.get(event.detail & 255, "host-to-device"), chip)
        case records.MEMSET:
            words = Operand((max(1, event.bytes // 4),), "float32", "ND", ())
            return predict("MemSet", (), (words,), chip)
        case records.COLLECTIVE:
            return transfers.collective(event.name, event.bytes, int(event.detail) or 1, chip)
    return None


def kernel(signature: Signature, chip: Chip, cache: Cache | None = None) -> Prediction:
    """The time of one kernel; with a cache, from what is in it, which it then changes."""
    name = _copy_kind(signature) if signature.name in ("InplaceCopy", "Copy") else signature.function
    found = next((m[1] for a in signature.arguments if (m := _LAYOUT.search(a))), "")
    if cache is None:
        return predict(name, signature.inputs, signature.outputs, chip, layout=found)
    warm, warm_out = cached(kernel_type(name), signature.inputs, signature.outputs, cache)
    return predict(name, signature.inputs, signature.outputs, chip, layout=found, warm=warm, warm_out=warm_out)


def cached(kind: KernelType, inputs: Sequence[Operand], outputs: Sequence[Operand], cache: Cache) -> tuple[list[float], bool]:
    """(share of each input that is in the cache, whether the memory of the output is); the cache is changed as the kernel would change it.

    Optimizers stream through parameters and states, each once a step: nothing of them is found.
    """
    read = [o.bytes if kind.reads == "all" else 0 for o in inputs]
    if kind.reads == "output":
        read = [o.bytes for o in inputs]
    shares, there = cache.access(read, [o.bytes for o in outputs])
    if kind.group == "optimizer":
        return [0.0] * len(shares), False
    return shares, there


def _copy_kind(signature: Signature) -> str:
    """What a copy becomes on the device: a cast, a plain move, or a move of a tensor that is not contiguous."""
    tensors = [*signature.inputs, *signature.outputs]
    if len({t.dtype for t in tensors}) > 1:
        return "Cast"
    if all(t.contiguous or not t.strides for t in tensors):
        return "TensorMove"
    source = signature.inputs[-1] if signature.inputs else tensors[-1]
    return "BroadcastTo" if 0 in source.strides else "Transpose"
