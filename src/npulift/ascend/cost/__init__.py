"""Predicted time of what torch_npu asks of a chip: kernels, copies, collectives. Kind: predicted; each figure has its error bar.

Calibrated on a public capture from an Ascend 910B (calibration.json says which); see docs/ascend_cost.md for the errors by kernel type.
"""

from __future__ import annotations

from npulift.ascend.cost.launches import Predictor, predict_launch
from npulift.ascend.cost.operators import weight
from npulift.ascend.cost.prediction import Prediction
from npulift.ascend.cost.roofline import predict

__all__ = ["Prediction", "Predictor", "predict", "predict_launch", "weight"]
