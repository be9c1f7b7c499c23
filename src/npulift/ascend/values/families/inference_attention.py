"""Attention for inference: npu_prompt_flash_attention, npu_incre_flash_attention, npu_fused_infer_attention_score; float inputs.

Sources: documentation of torch_npu. Lengths beyond actual_seq_lengths are not looked at; rows beyond it give 0. Quantised inputs have no reference.
"""

from __future__ import annotations

from typing import Any

import torch

from npulift.ascend.values.families.attention import _ends, core, from_bnsd, hidden, to_bnsd
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor
_BIG = 2147483647


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _unquantised(name: str, given: dict[str, Any]) -> None:
    used = sorted(k for k, v in given.items() if isinstance(v, Tensor))
    if used:
        raise NotImplementedError(f"{name} with {', '.join(used)}")


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, rows: Any, columns: Any, heads: int, kv_heads: int, scale: float,
    before: int, after: int, layout: str, mode: int,
) -> tuple[Tensor, Tensor]:
    """(attention in the query's layout, log of the sum of exponents (batch, heads, rows, 1))."""
    out_layout = layout
    if "_" in layout:  # e.g. BNSD_BSND: the query's layout, and that of the result
        layout, out_layout = layout.split("_")
    kv_heads = kv_heads or heads
    q, k, v = to_bnsd(_wide(query), layout, heads), to_bnsd(_wide(key), layout, kv_heads), to_bnsd(_wide(value), layout, kv_heads)
    lengths_q, lengths_k = _ends(rows), _ends(columns)
    outs, sums = [], []
    if mode == 0 and mask is None:
        before, after = _BIG, _BIG
    for b in range(q.shape[0]):
        used_q = min(q.shape[2], (lengths_q * q.shape[0])[b] if lengths_q else q.shape[2])
        used_k = min(k.shape[2], (lengths_k * q.shape[0])[b] if lengths_k else k.shape[2])
        this = None if mask is None else (mask.reshape(-1, *mask.shape[-2:])[b if mask.dim() > 2 and mask.shape[0] > 1 else 0])
        hide = hidden(used_q, used_k, this, mode, before, after)
        extra = None if bias is None else _wide(bias)[b if bias.shape[0] > 1 else 0][None, :, :used_q, :used_k]
        out, top, total = core(q[b:b + 1, :, :used_q], k[b:b + 1, :, :used_k], v[b:b + 1, :, :used_k], scale, extra, hide, None, narrow=query.dtype)
        pad = q.shape[2] - used_q
        outs.append(torch.nn.functional.pad(out, (0, 0, 0, pad)))
        sums.append(torch.nn.functional.pad((top + total.log()).unsqueeze(-1), (0, 0, 0, pad)))
    return from_bnsd(torch.cat(outs), out_layout).to(query.dtype).contiguous(), torch.cat(sums).float()


@gives("npu::npu_prompt_flash_attention")
def npu_prompt_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, padding_mask: Tensor | None = None, atten_mask: Tensor | None = None, pse_shift: Tensor | None = None,
    actual_seq_lengths: Any = None, num_heads: int = 1, scale_value: float = 1.0, pre_tokens: int = _BIG, next_tokens: int = 0, input_layout: str = "BSH",
    num_key_value_heads: int = 0, actual_seq_lengths_kv: Any = None, sparse_mode: int = 0, **quantised: Any,
) -> Tensor:
    """Full attention over the prompt."""
    _unquantised("npu_prompt_flash_attention", quantised)
    return _attend(query, key, value, atten_mask, pse_shift, actual_seq_lengths, actual_seq_lengths_kv or actual_seq_lengths, num_heads, num_key_value_heads,
                   scale_value, pre_tokens, next_tokens, input_layout, sparse_mode)[0]


@gives("npu::npu_incre_flash_attention")
def npu_incre_flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, padding_mask: Tensor | None = None, atten_mask: Tensor | None = None, pse_shift: Tensor | None = None,
    actual_seq_lengths: Any = None, num_heads: int = 1, scale_value: float = 1.0, input_layout: str = "BSH", num_key_value_heads: int = 0,
    block_size: int = 0, inner_precise: int = 1, **quantised: Any,
) -> Tensor:
    """One new token against the keys so far; actual_seq_lengths are those of the keys."""
    _unquantised("npu_incre_flash_attention", quantised)
    mask = atten_mask if atten_mask is None else atten_mask.reshape(atten_mask.shape[0], 1, atten_mask.shape[-1])
    return _attend(query, key, value, mask, pse_shift, None, actual_seq_lengths, num_heads, num_key_value_heads, scale_value, _BIG, _BIG, input_layout, 1)[0]


@gives("npu::npu_fused_infer_attention_score")
def npu_fused_infer_attention_score(
    query: Tensor, key: Tensor, value: Tensor, *, pse_shift: Tensor | None = None, atten_mask: Tensor | None = None, actual_seq_lengths: Any = None,
    actual_seq_lengths_kv: Any = None, num_heads: int = 1, scale: float = 1.0, pre_tokens: int = _BIG, next_tokens: int = _BIG,
    input_layout: str = "BSH", num_key_value_heads: int = 0, sparse_mode: int = 0, softmax_lse_flag: bool = False, inner_precise: int = 0,
    block_size: int = 0, antiquant_mode: int = 0, key_antiquant_mode: int = 0, value_antiquant_mode: int = 0, actual_shared_prefix_len: Any = None,
    **quantised: Any,
) -> tuple[Tensor, Tensor]:
    """(attention, log of the sum of exponents where asked for)."""
    _unquantised("npu_fused_infer_attention_score", quantised)
    out, lse = _attend(query, key, value, atten_mask, pse_shift, actual_seq_lengths, actual_seq_lengths_kv, num_heads, num_key_value_heads, scale, pre_tokens,
                       next_tokens, input_layout, sparse_mode)
    return out, lse if softmax_lse_flag else torch.zeros(1)
