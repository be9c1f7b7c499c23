"""A predicted duration with its error bar."""

from __future__ import annotations

from dataclasses import dataclass

from npulift.measured import Kind


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long something is predicted to take on the device.

    ns: duration; nine in ten kernels of its sort fell between low_ns and high_ns (where `calibrated` is False the bar is a guess, and wide).
    type: kernel type as the vendor's profiler calls it, e.g. 'MatMul'.   device: AI_CORE, AI_VECTOR_CORE, MIX_AIC, AI_CPU, HCCL, ...
    bound: what limits it: 'cube', 'vector', 'memory', 'launch', 'link', 'host'.
    calibrated: the constants come from measurements of this chip and this kernel type.   basis: where they come from, in words.
    """

    ns: float
    low_ns: float
    high_ns: float
    type: str
    device: str
    bound: str
    calibrated: bool
    basis: str
    kind: Kind = Kind.PREDICTED
