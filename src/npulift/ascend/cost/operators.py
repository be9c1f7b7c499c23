"""The weight of an aten operator of a capture, for ordering and shares: the kernel that torch_npu would launch for it, by the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npulift.ascend.chips import Chip
from npulift.ascend.cost.roofline import predict
from npulift.ascend.cost.tables import kernel_types
from npulift.ascend.records import Operand

if TYPE_CHECKING:
    from npulift.capture import Op

# aten base name without underscores at its ends -> kernel type; what is not here is found by its own name, else taken as element-wise.
_KERNELS = {
    "mm": "MatMul", "addmm": "MatMul", "matmul": "MatMul", "linear": "MatMul", "bmm": "BatchMatMul", "baddbmm": "BatchMatMul", "mv": "MatMul",
    "conv1d": "Conv2D", "conv2d": "Conv2D", "conv3d": "Conv2D", "convolution": "Conv2D", "convolution_backward": "Conv2DBackprop",
    "conv_transpose2d": "Conv2D",
    "scaled_dot_product_attention": "FlashAttentionScore", "npu_fusion_attention": "FlashAttentionScore", "npu_fusion_attention_v3": "FlashAttentionScore",
    "npu_fusion_attention_grad": "FlashAttentionScoreGrad", "npu_fusion_attention_grad_v3": "FlashAttentionScoreGrad",
    "scaled_dot_product_flash_attention_for_cpu": "FlashAttentionScore", "scaled_dot_product_efficient_attention": "FlashAttentionScore",
    "add": "Add", "sub": "Sub", "rsub": "Sub", "mul": "Mul", "div": "RealDiv", "pow": "Pow", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "rsqrt": "Rsqrt",
    "neg": "Neg", "abs": "Abs", "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf", "sin": "Sin", "cos": "Cos", "gelu": "Gelu", "gelu_backward": "GeluGrad",
    "silu": "Swish", "silu_backward": "SwishGrad", "hardswish": "Swish", "mish": "Gelu", "relu": "Relu", "relu6": "ClipByValueV2", "clamp": "ClipByValueV2",
    "clone": "TensorMove", "copy": "TensorMove", "contiguous": "Transpose", "to_copy": "Cast", "to": "Cast",
    "layer_norm": "LayerNormV3", "native_layer_norm": "LayerNormV3", "native_layer_norm_backward": "LayerNormGradV3", "group_norm": "GroupNorm",
    "native_group_norm": "GroupNorm", "rms_norm": "RmsNorm", "batch_norm": "BNTraining", "native_batch_norm": "BNTraining",
    "native_batch_norm_legit": "BNTraining", "native_batch_norm_legit_no_training": "BNTraining",
    "softmax": "SoftmaxV2", "log_softmax": "LogSoftmaxV2", "softmax_backward_data": "SoftmaxGrad", "log_softmax_backward_data": "SoftmaxGrad",
    "cross_entropy_loss": "CrossEntropy", "sum": "ReduceSumD", "mean": "ReduceMean", "amax": "ReduceMax", "amin": "ReduceMin", "max": "ArgMaxWithValue",
    "min": "ArgMaxWithValue", "argmax": "ArgMaxWithValue", "argmin": "ArgMaxWithValue", "linalg_vector_norm": "LpNormReduceV2", "var": "ReduceMean",
    "var_mean": "ReduceMean", "any": "ReduceAny", "all": "ReduceAny", "cat": "ConcatD", "stack": "ConcatD", "embedding": "GatherV2", "gather": "GatherV2",
    "index_select": "GatherV2", "index": "Index", "scatter": "ScatterElements", "scatter_add": "ScatterElements", "index_put": "ScatterElements",
    "embedding_dense_backward": "EmbeddingDenseGrad", "nonzero": "NonZero", "sort": "Sort", "topk": "TopKV2", "cumsum": "Cumsum", "where": "SelectV2",
    "masked_fill": "MaskedFill", "zeros": "ZerosLike", "zeros_like": "ZerosLike", "ones": "OnesLike", "ones_like": "OnesLike", "full": "Fill",
    "full_like": "Fill", "fill": "Fill", "arange": "Range", "repeat": "BroadcastTo", "tril": "Tril", "triu": "Tril", "pad": "PadV3",
    "constant_pad_nd": "PadV3", "max_pool2d": "Pooling", "avg_pool2d": "Pooling", "adaptive_avg_pool2d": "Pooling", "max_pool2d_with_indices": "Pooling",
    "upsample_bilinear2d": "Resize", "upsample_nearest2d": "Resize", "upsample_bicubic2d": "Resize", "grid_sampler_2d": "Resize", "roll": "Slice",
    "native_dropout": "DropOutDoMask", "dropout": "DropOutDoMask", "eq": "Equal", "ne": "NotEqual", "lt": "Less", "le": "LessEqual", "gt": "Greater",
    "ge": "GreaterEqual", "maximum": "Maximum", "minimum": "Minimum", "fused_adamw": "ApplyAdamW", "fused_adam": "ApplyAdamW",
}


def kernel_of(base: str) -> str:
    """The kernel type of an operator ('aten::conv2d')."""
    name = base.rpartition("::")[2].strip("_")
    return _KERNELS.get(name) or next((t for t in kernel_types() if t.lower() == name.replace("_", "")), "Unknown")


def weight(op: Op, chip: Chip) -> float | None:
    """Predicted seconds of one operator on the chip; None when its sizes are unknown, 0.0 for a view."""
    if any(not isinstance(size, int) for tensor in (*op.inputs, *op.outputs) for size in tensor.shape):
        return None
    if op.is_view:
        return 0.0
    inputs, outputs = ([Operand(tuple(int(s) for s in t.shape), t.dtype, "ND", ()) for t in side] for side in (op.inputs, op.outputs))
    kernel = kernel_of(op.base)
    if op.base == "aten::linear" and len(inputs) == 3:
        inputs = [inputs[2], inputs[0], inputs[1]]  # the bias first, as the kernel's function takes it
    return predict(kernel, inputs, outputs, chip).ns / 1e9
