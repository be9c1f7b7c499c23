"""Fused attention for training: npu_fusion_attention v1 to v3 and its gradient.

y = dropout(softmax(scale * q k^T + pse, hidden where the mask is True)) v. Layouts BSH, SBH, BSND, BNSD and TND (sequences packed together, their ends in
actual_seq_qlen and actual_seq_kvlen). Key and value may have fewer heads than the query. softmax_max and softmax_sum come back eight times each.
Sources: documentation of torch_npu.npu_fusion_attention (layouts, masks, sparse modes, pse) and of aclnnFlashAttentionScore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor
_FAR = 1 << 30


def to_bnsd(x: Tensor, layout: str, heads: int) -> Tensor:
    """(batch, heads, sequence, width) of a tensor in one of the layouts. For BSH and SBH `heads` splits the last dim."""
    match layout:
        case "BNSD":
            return x
        case "BSND":
            return x.transpose(1, 2)
        case "BSH":
            return x.unflatten(-1, (heads, -1)).transpose(1, 2)
        case "SBH":
            return x.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3)
        case "TND":
            return x.transpose(0, 1).unsqueeze(0)
    raise NotImplementedError(f"attention layout {layout}")


def from_bnsd(x: Tensor, layout: str) -> Tensor:
    """The way back."""
    match layout:
        case "BNSD":
            return x
        case "BSND":
            return x.transpose(1, 2)
        case "BSH":
            return x.transpose(1, 2).flatten(-2)
        case "SBH":
            return x.permute(2, 0, 1, 3).flatten(-2)
        case "TND":
            return x.squeeze(0).transpose(0, 1)
    raise NotImplementedError(f"attention layout {layout}")


def hidden(
    rows: int, columns: int, mask: Tensor | None, mode: int, before: int, after: int, prefix: int | None = None,
) -> Tensor | None:
    """Where attention must not look, (..., rows, columns), True = hidden; None where all is seen.

    mode 0: the mask as given, and the band of `before` and `after` tokens; without a mask nothing is hidden.  1: the mask as given.
    2: causal from the upper left corner.  3: causal from the lower right corner.  4: a band measured from the lower right corner.
    5, 6: causal from the lower right corner, and the first `prefix` columns are seen by all.
    """
    i, j = torch.arange(rows)[:, None], torch.arange(columns)[None, :]
    corner = columns - rows
    match mode:
        case 0:
            if mask is None:
                return None
            full = mask.bool()[..., :rows, :columns]
            return full | (j - i > after) | (i - j > before) if min(before, after) < _FAR and max(rows, columns) > min(before, after) else full
        case 1:
            return None if mask is None else mask.bool()[..., :rows, :columns]
        case 2:
            return j > i
        case 3:
            return j > i + corner
        case 4:
            return (j - i - corner > after) | (i + corner - j > before)
        case 5 | 6:
            return (j > i + corner) & (j >= (prefix or 0))
    raise NotImplementedError(f"sparse_mode {mode}")


def core(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None, hide: Tensor | None, keep: Tensor | None, *, sink: Tensor | None = None,
    bias_first: bool = False, narrow: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention on (batch, heads, sequence, width): (output, maximum and sum of the softmax, each (batch, heads, rows)).

    keep: factor of each probability, 0 or 1 / keep_prob.   sink: a score a head that takes part in the sum only.   A row that sees nothing gives 0.
    narrow: the dtype that the probabilities are rounded to before the second product, as the cube takes them.
    """
    heads = query.shape[1]
    if key.shape[1] != heads:
        key = key.repeat_interleave(heads // key.shape[1], 1)
        value = value.repeat_interleave(heads // value.shape[1], 1)
    scores = query @ key.transpose(-1, -2)
    if bias is not None and bias_first:
        scores = scores + bias
    scores = scores * scale
    if bias is not None and not bias_first:
        scores = scores + bias
    if hide is not None:
        scores = scores.masked_fill(hide, -math.inf)
    top = scores.amax(-1, keepdim=True) if scores.shape[-1] else torch.full((*scores.shape[:-1], 1), -math.inf)
    if sink is not None:
        top = torch.maximum(top, sink.view(1, -1, 1, 1).to(top.dtype))
    top = top.detach()
    safe = top.masked_fill(top == -math.inf, 0.0)
    weights = (scores - safe).exp()
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink.view(1, -1, 1, 1) - safe).exp()
    chances = weights / total.masked_fill(total == 0, 1.0)
    if keep is not None:
        chances = chances * keep
    if narrow is not None and narrow != chances.dtype:
        chances = chances + (chances.to(narrow).to(chances.dtype) - chances).detach()  # rounded, and differentiable
    return chances @ value, safe.squeeze(-1), total.squeeze(-1)


def kept(shape: Sequence[int], keep_prob: float, seed: int, offset: int) -> Tensor | None:
    """The dropout factors of attention, the same each time for the same seed and offset. (The bits are not those of the card's generator.)"""
    if keep_prob >= 1.0:
        return None
    generator = torch.Generator().manual_seed((seed * 1_000_003 + offset) & 0x7FFF_FFFF_FFFF_FFFF)
    return (torch.rand(tuple(shape), generator=generator) < keep_prob).float() / keep_prob


def _ends(lengths: Any) -> list[int] | None:
    if lengths is None:
        return None
    return [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]


def _alibi(slopes: Tensor, rows: int, columns: int, kind: int, start_q: int, start_k: int) -> Tensor:
    distance = (torch.arange(rows)[:, None] + start_q - torch.arange(columns)[None, :] - start_k).abs().float()
    return -slopes.float().view(1, -1, 1, 1) * (distance.sqrt() if kind == 3 else distance)


def attend(
    query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str, options: dict[str, Any], bias: Tensor | None, sink: Tensor | None,
    narrow: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """All of it in the given layout; differentiable in query, key, value, bias and sink. options: the arguments of the operator by name."""
    ends_q, ends_k = _ends(options.get("actual_seq_qlen")), _ends(options.get("actual_seq_kvlen"))
    if options.get("query_rope") is not None:
        query, key = torch.cat((query, options["query_rope"].to(query.dtype)), -1), torch.cat((key, options["key_rope"].to(key.dtype)), -1)
    kv_heads = key.shape[{"BNSD": 1, "BSND": 2, "TND": 1}[layout]] if layout in ("BNSD", "BSND", "TND") else key.shape[-1] // (query.shape[-1] // heads)
    q, k, v = to_bnsd(query, layout, heads), to_bnsd(key, layout, kv_heads), to_bnsd(value, layout, kv_heads)
    mask = options.get("atten_mask")
    kind = int(options.get("pse_type", 1))
    prefix = options.get("prefix")
    seed, offset, keep_prob = int(options.get("seed") or 0), int(options.get("offset") or 0), float(options["keep_prob"])

    def one(q: Tensor, k: Tensor, v: Tensor, batch: int | None, piece: int) -> tuple[Tensor, Tensor, Tensor]:
        rows, columns = q.shape[-2], k.shape[-2]
        before, after, mode = int(options["before"]), int(options["after"]), int(options["sparse_mode"])
        if mode in (5, 6):
            each = [hidden(rows, columns, mask, mode, before, after, int(p)) for p in prefix or [0] * q.shape[0]]
            hide: Tensor | None = torch.stack([h for h in each if h is not None])[:, None]
        else:
            hide = hidden(rows, columns, mask, mode, before, after)
        extra = None
        if bias is not None and kind in (2, 3):
            starts = [int((options.get(n) or [0])[0]) for n in ("q_start_idx", "kv_start_idx")]
            extra = _alibi(bias, rows, columns, kind, *starts)
        elif bias is not None:
            extra = bias[..., -rows:, :columns] if bias.shape[-2] >= rows else bias
        keep = kept((q.shape[0], q.shape[1], rows, columns), keep_prob, seed, offset + piece)
        return core(q, k, v, float(options["scale"]), extra, hide, keep, sink=sink, bias_first=kind == 0, narrow=narrow)

    if layout != "TND" or ends_q is None or ends_k is None:
        out, top, total = one(q, k, v, None, 0)
        return from_bnsd(out, layout), top, total
    outs, tops, totals = [], [], []
    for number, (first_q, last_q, first_k, last_k) in enumerate(zip([0, *ends_q], ends_q, [0, *ends_k], ends_k, strict=False)):
        out, top, total = one(q[..., first_q:last_q, :], k[..., first_k:last_k, :], v[..., first_k:last_k, :], number, number)
        outs.append(out)
        tops.append(top)
        totals.append(total)
    return from_bnsd(torch.cat(outs, -2), layout), torch.cat(tops, -1), torch.cat(totals, -1)


def _statistics(top: Tensor, layout: str) -> Tensor:
    """As the kernel gives them: float32, each value eight times; (batch, heads, rows, 8), or (tokens, heads, 8) for TND."""
    found = top.float()
    if layout == "TND":
        found = found.squeeze(0).transpose(0, 1)
    return found.unsqueeze(-1).expand(*found.shape, 8).contiguous()


def _forward(query: Tensor, key: Tensor, value: Tensor, heads: int, layout: str, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in (query, key, value))
    pse, sink = options.get("pse"), options.get("sink")
    bias = pse.to(q.dtype) if pse is not None else None
    out, top, total = attend(q, k, v, heads, layout, options, bias, sink.to(q.dtype) if sink is not None else None, query.dtype)
    return out.to(query.dtype).contiguous(), _statistics(top, layout), _statistics(total, layout), torch.empty(0, dtype=query.dtype)


def _draw() -> int:
    return int(torch.randint(0, 1 << 31, ()).item())


@gives("npu::npu_fusion_attention")
def npu_fusion_attention(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, pse: Tensor | None = None, padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None, scale: float = 1.0, keep_prob: float = 1.0, pre_tockens: int = 2147483647, next_tockens: int = 2147483647,
    inner_precise: int = 0, prefix: Any = None, actual_seq_qlen: Any = None, actual_seq_kvlen: Any = None, sparse_mode: int = 0,
    gen_mask_parallel: bool = True, sync: bool = False, softmax_layout: str = "", sink: Tensor | None = None, dropout_mask: Tensor | None = None,
    seed: int = 0, offset: int = 0,
) -> tuple[Any, ...]:
    """(attention, softmax_max, softmax_sum, softmax_in, seed, offset, numels)."""
    seed = seed or (_draw() if keep_prob < 1.0 else 0)
    options = {"pse": pse, "atten_mask": atten_mask, "scale": scale, "keep_prob": keep_prob, "before": pre_tockens, "after": next_tockens, "prefix": prefix,
               "actual_seq_qlen": actual_seq_qlen, "actual_seq_kvlen": actual_seq_kvlen, "sparse_mode": sparse_mode, "sink": sink, "seed": seed, "offset": offset}
    return (*_forward(query, key, value, head_num, input_layout, options), seed, offset, 0 if keep_prob >= 1.0 else query.numel())


@gives("npu::npu_fusion_attention_v2")
def npu_fusion_attention_v2(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, *, pse: Tensor | None = None, padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None, query_rope: Tensor | None = None, key_rope: Tensor | None = None, scale: float = 1.0, keep_prob: float = 1.0,
    pre_tokens: int = 2147483647, next_tokens: int = 2147483647, inner_precise: int = 0, prefix: Any = None, actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None, sparse_mode: int = 0, gen_mask_parallel: bool = True, sync: bool = False, pse_type: int = 1, q_start_idx: Any = None,
    kv_start_idx: Any = None, softmax_layout: str = "", sink: Tensor | None = None, dropout_mask: Tensor | None = None, seed: int = 0, offset: int = 0,
) -> tuple[Any, ...]:
    """The same with pse_type, rotary parts of query and key, and start positions."""
    seed = seed or (_draw() if keep_prob < 1.0 else 0)
    options = {"pse": pse, "atten_mask": atten_mask, "query_rope": query_rope, "key_rope": key_rope, "scale": scale, "keep_prob": keep_prob,
               "before": pre_tokens, "after": next_tokens, "prefix": prefix, "actual_seq_qlen": actual_seq_qlen, "actual_seq_kvlen": actual_seq_kvlen,
               "sparse_mode": sparse_mode, "pse_type": pse_type, "q_start_idx": q_start_idx, "kv_start_idx": kv_start_idx, "sink": sink, "seed": seed,
               "offset": offset}
    return (*_forward(query, key, value, head_num, input_layout, options), seed, offset, 0 if keep_prob >= 1.0 else query.numel())


@gives("npu::npu_fusion_attention_v3")
def npu_fusion_attention_v3(
    query: Tensor, key: Tensor, value: Tensor, head_num: int, input_layout: str, pse: Tensor | None = None, padding_mask: Tensor | None = None,
    atten_mask: Tensor | None = None, scale: float = 1.0, keep_prob: float = 1.0, pre_tockens: int = 2147483647, next_tockens: int = 2147483647,
    inner_precise: int = 0, prefix: Any = None, actual_seq_qlen: Any = None, actual_seq_kvlen: Any = None, sparse_mode: int = 0,
    gen_mask_parallel: bool = True, sync: bool = False, softmax_layout: str = "", sink: Tensor | None = None,
) -> tuple[Any, ...]:
    """(attention, softmax_max, softmax_sum, softmax_in, seed, offset), the last two as tensors. F.scaled_dot_product_attention comes here."""
    seed = _draw() if keep_prob < 1.0 else 0
    options = {"pse": pse, "atten_mask": atten_mask, "scale": scale, "keep_prob": keep_prob, "before": pre_tockens, "after": next_tockens, "prefix": prefix,
               "actual_seq_qlen": actual_seq_qlen, "actual_seq_kvlen": actual_seq_kvlen, "sparse_mode": sparse_mode, "sink": sink, "seed": seed}
    return (*_forward(query, key, value, head_num, input_layout, options), torch.tensor(seed), torch.tensor(0))


def _backward(query: Tensor, key: Tensor, value: Tensor, dy: Tensor, heads: int, layout: str, options: dict[str, Any]) -> list[Tensor | None]:
    names = ("pse", "sink", "query_rope", "key_rope")

    def forward(q: Tensor, k: Tensor, v: Tensor, pse: Tensor | None, sink: Tensor | None, rope_q: Tensor | None, rope_k: Tensor | None) -> Tensor:
        return attend(q, k, v, heads, layout, options | {"query_rope": rope_q, "key_rope": rope_k}, pse, sink, query.dtype)[0]

    found = gradients(forward, (query, key, value, *(options.get(n) for n in names)), (dy,))
    return [torch.empty(0, dtype=query.dtype) if g is None else g for g in found]


@gives("npu::npu_fusion_attention_grad", "npu::npu_fusion_attention_grad_v3")
def npu_fusion_attention_grad(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, *, pse: Tensor | None = None,
    padding_mask: Tensor | None = None, atten_mask: Tensor | None = None, softmax_max: Tensor | None = None, softmax_sum: Tensor | None = None,
    softmax_in: Tensor | None = None, attention_in: Tensor | None = None, scale_value: float = 1.0, keep_prob: float = 1.0,
    pre_tockens: int = 2147483647, next_tockens: int = 2147483647, inner_precise: int = 0, seed: Any = 0, offset: Any = 0, numels: int = 0,
    prefix: Any = None, actual_seq_qlen: Any = None, actual_seq_kvlen: Any = None, sparse_mode: int = 0, gen_mask_parallel: bool = True,
    sync: bool = False, softmax_layout: str = "", sink: Tensor | None = None,
) -> tuple[Any, ...]:
    """Gradients of query, key, value, pse and sink, by torch's autograd through the forward reference."""
    options = {"pse": pse, "atten_mask": atten_mask, "scale": scale_value, "keep_prob": keep_prob, "before": pre_tockens, "after": next_tockens,
               "prefix": prefix, "actual_seq_qlen": actual_seq_qlen, "actual_seq_kvlen": actual_seq_kvlen, "sparse_mode": sparse_mode, "sink": sink,
               "seed": seed, "offset": offset}
    dq, dk, dv, dpse, dsink, _rq, _rk = _backward(query, key, value, dy, head_num, input_layout, options)
    return dq, dk, dv, dpse, dsink


@gives("npu::npu_fusion_attention_grad_v2")
def npu_fusion_attention_grad_v2(
    query: Tensor, key: Tensor, value: Tensor, dy: Tensor, head_num: int, input_layout: str, *, pse: Tensor | None = None,
    padding_mask: Tensor | None = None, atten_mask: Tensor | None = None, softmax_max: Tensor | None = None, softmax_sum: Tensor | None = None,
    softmax_in: Tensor | None = None, attention_in: Tensor | None = None, query_rope: Tensor | None = None, key_rope: Tensor | None = None,
    scale_value: float = 1.0, keep_prob: float = 1.0, pre_tokens: int = 2147483647, next_tokens: int = 2147483647, inner_precise: int = 0,
    seed: int = 0, offset: int = 0, numels: int = 0, prefix: Any = None, actual_seq_qlen: Any = None, actual_seq_kvlen: Any = None, sparse_mode: int = 0,
    gen_mask_parallel: bool = True, sync: bool = False, pse_type: int = 1, q_start_idx: Any = None, kv_start_idx: Any = None, softmax_layout: str = "",
    sink: Tensor | None = None,
) -> tuple[Any, ...]:
    """Gradients of query, key, value, pse, query_rope, key_rope and sink."""
    options = {"pse": pse, "atten_mask": atten_mask, "query_rope": query_rope, "key_rope": key_rope, "scale": scale_value, "keep_prob": keep_prob,
               "before": pre_tokens, "after": next_tokens, "prefix": prefix, "actual_seq_qlen": actual_seq_qlen, "actual_seq_kvlen": actual_seq_kvlen,
               "sparse_mode": sparse_mode, "pse_type": pse_type, "q_start_idx": q_start_idx, "kv_start_idx": kv_start_idx, "sink": sink, "seed": seed,
               "offset": offset}
    dq, dk, dv, dpse, dsink, rope_q, rope_k = _backward(query, key, value, dy, head_num, input_layout, options)
    return dq, dk, dv, dpse, rope_q, rope_k, dsink
