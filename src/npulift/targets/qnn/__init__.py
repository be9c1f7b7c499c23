"""Target qnn: Qualcomm's Hexagon NPU (see target.py)."""

from npulift.targets.qnn.target import Qnn

__all__ = ["Qnn"]
