"""Calls of flash-attn and xformers as torch's scaled_dot_product_attention, which torch_npu sends to its fused kernel."""

from __future__ import annotations

import libcst as cst

from npulift.messages import _

_SIGNATURES = {
    "flash_attn_func": ("q", "k", "v", "dropout_p", "softmax_scale", "causal"),
    "memory_efficient_attention": ("query", "key", "value", "attn_bias", "p", "scale"),
}


def attention_call(name: str, call: cst.Call) -> cst.BaseExpression | str:
    """The new call, or the reason why there is none. Both libraries take (batch, sequence, heads, width); torch wants heads before sequence."""
    function = name.rpartition(".")[2]
    signature = _SIGNATURES.get(function)
    if signature is None:
        return _("{name} has no counterpart that could be put in by itself; on Ascend torch_npu.npu_fusion_attention (TND layout for packed sequences)").format(name=function)
    given: dict[str, cst.BaseExpression] = {}
    for position, argument in enumerate(call.args):
        if argument.star:
            return _("{name} is called with * arguments").format(name=function)
        key = argument.keyword.value if argument.keyword is not None else signature[position] if position < len(signature) else ""
        given[key] = argument.value
    unknown = [k for k in given if k not in signature]
    if unknown:
        return _("{name} is called with {options}, which scaled_dot_product_attention does not have").format(name=function, options=", ".join(unknown))
    module = cst.Module([])

    def source(key: str) -> str:
        return module.code_for_node(given[key])

    parts = [f"{_grouped(source(key))}.transpose(1, 2)" for key in signature[:3] if key in given]
    if len(parts) != 3:
        return _("{name} is called without its three tensors").format(name=function)
    for key, new, default in (("dropout_p", "dropout_p", "0.0"), ("p", "dropout_p", "0.0"), ("softmax_scale", "scale", "None"), ("scale", "scale", "None"), ("causal", "is_causal", "False")):
        if key in given and source(key) not in (default, "0"):
            parts.append(f"{new}={source(key)}")
    bias = given.get("attn_bias")
    if bias is not None and source("attn_bias") != "None":
        if "LowerTriangularMask()" in source("attn_bias"):
            parts.append("is_causal=True")
        elif isinstance(bias, (cst.Name, cst.Attribute)):
            parts.append(f"attn_mask={source('attn_bias')}")
        else:
            return _("the bias {bias} of memory_efficient_attention has no counterpart").format(bias=source("attn_bias")[:60])
    return cst.parse_expression(f"torch.nn.functional.scaled_dot_product_attention({', '.join(parts)}).transpose(1, 2)")


def _grouped(text: str) -> str:
    """In parentheses when a method call on it would bind otherwise."""
    try:
        node = cst.parse_expression(text)
    except cst.ParserSyntaxError:
        return f"({text})"
    return text if isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)) else f"({text})"
