"""QDQ quantisation by ONNX Runtime's quantiser with the settings that it has for the Qualcomm provider."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
ACTIVATIONS = {"int8": "QUInt8", "int16": "QUInt16"}  # weights have 8 bits in both


def weighted(model: onnx.ModelProto) -> list[str]:
    """Names of the nodes with weights or two operands to multiply, in order: what the option `ignored` counts."""
    return [n.name for n in model.graph.node if n.op_type in WEIGHTED]


def quantise(path: Path, precision: str, samples: Sequence[Sequence[np.ndarray[Any, Any]]], ignored: Sequence[int] = ()) -> None:
    """Quantise an ONNX file in place: activations uint8 ('int8') or uint16 ('int16'), weights 8-bit, calibrated on the samples.

    ignored: positions among weighted() that stay in float.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    model = onnx.load(path, load_external_data=False)
    names = [i.name for i in model.graph.input]
    candidates = weighted(model)
    excluded = [candidates[i] for i in ignored if i < len(candidates)]

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rewind()

        def get_next(self) -> Any:
            return next(self._samples, None)

        def rewind(self) -> None:
            self._samples = iter(dict(zip(names, map(np.ascontiguousarray, s), strict=True)) for s in samples)

    with tempfile.TemporaryDirectory() as folder, _quiet():
        prepared, made = Path(folder) / "prepared.onnx", Path(folder) / "quantised.onnx"
        changed = qnn_preprocess_model(str(path), str(prepared))
        source = prepared if changed else path
        activation = getattr(QuantType, ACTIVATIONS[precision])
        # Weights by channel are more accurate, but signed ones, which that needs, have no LayerNormalization on the chip ("Failed to add node").
        by_channel = not any(n.op_type in ("LayerNormalization", "InstanceNormalization", "GroupNormalization") for n in model.graph.node)
        config = get_qnn_qdq_config(
            str(source), Reader(), activation_type=activation, weight_type=QuantType.QInt8 if by_channel else QuantType.QUInt8, per_channel=by_channel,
        )
        config.nodes_to_exclude = [*(config.nodes_to_exclude or ()), *excluded]
        quantize(str(source), str(made), config)
        path.write_bytes(made.read_bytes())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The quantiser warns through the root logger about its own preparation step, which has been done."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
