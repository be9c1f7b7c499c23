"""Mixture of experts: gating, routing, permutation of tokens and back, with gradients.

Sources: formulas in the documentation of torch_npu (npu_moe_gating_top_k_softmax, npu_moe_gating_top_k, npu_moe_init_routing, npu_moe_finalize_routing,
npu_moe_token_permute, npu_moe_token_unpermute, npu_moe_compute_expert_tokens).
"""

from __future__ import annotations

from typing import Any

import torch

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _rows(rows: int, k: int) -> Tensor:
    """Source rows as the kernels number them: column after column."""
    return torch.arange(rows * k, dtype=torch.int32).view(k, rows).t().contiguous()


@gives("npu::npu_moe_gating_top_k_softmax")
def npu_moe_gating_top_k_softmax(x: Tensor, finished: Tensor | None = None, k: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """(the k largest of softmax(x), their experts, row numbers); a finished row gets expert number 'how many there are'."""
    soft = torch.softmax(x.float(), -1)
    values, experts = torch.topk(soft, k, -1)
    if finished is not None:
        experts = torch.where(finished.bool().unsqueeze(-1), x.shape[-1], experts)
    rows = x.numel() // x.shape[-1]
    return values.to(x.dtype), experts.int(), _rows(rows, k).view(experts.shape)


@gives("npu::npu_moe_gating_top_k_softmax_v2")
def npu_moe_gating_top_k_softmax_v2(
    x: Tensor, *, k: int = 1, finished: Tensor | None = None, renorm: int | None = 0, output_softmax: bool | None = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(values, experts, softmax of all in float32 where asked for); renorm 1 takes the softmax of the k largest."""
    if renorm:
        values, experts = torch.topk(x.float(), k, -1)
        values = torch.softmax(values, -1)
    else:
        values, experts = torch.topk(torch.softmax(x.float(), -1), k, -1)
    if finished is not None:
        experts = torch.where(finished.bool().unsqueeze(-1), x.shape[-1], experts)
    soft = torch.softmax(x.float(), -1) if output_softmax and not renorm else torch.empty(0)
    return values.to(x.dtype), experts.int(), soft


def _gate(x: Tensor, norm_type: int) -> Tensor:
    return torch.sigmoid(x) if norm_type == 1 else torch.softmax(x, -1)


@gives("npu::npu_moe_gating_top_k")
def npu_moe_gating_top_k(
    x: Tensor, k: int, *, bias: Tensor | None = None, input_ids: Tensor | None = None, tid2eid: Tensor | None = None, k_group: int = 1,
    group_count: int = 1, group_select_mode: int = 0, renorm: int = 0, norm_type: int = 0, out_flag: bool = False, routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[Tensor, Tensor, Tensor]:
    """(weights, experts, all normalised scores where out_flag asks for them).

    norm_type 0: softmax, 1: sigmoid. bias takes part in the choice only. Of group_count groups the k_group best are kept, by their largest score
    (group_select_mode 0) or the sum of their two largest (1). With sigmoid or renorm the weights are divided by their sum + eps; then scaled.
    """
    if input_ids is not None or tid2eid is not None:
        raise NotImplementedError("npu_moe_gating_top_k with a table of token ids")
    scores = _gate(x.float(), norm_type)
    choice = scores + bias.float() if bias is not None else scores
    if group_count > 1 and k_group < group_count:
        groups = choice.unflatten(-1, (group_count, -1))
        best = groups.amax(-1) if group_select_mode == 0 else groups.topk(min(2, groups.shape[-1]), -1)[0].sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, best.topk(k_group, -1)[1], True)
        choice = groups.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(-2)
    experts = choice.topk(k, -1)[1]
    weights = scores.gather(-1, experts)
    if norm_type == 1 or renorm:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    return (weights * routed_scaling_factor).to(x.dtype), experts.int(), scores if out_flag else torch.empty(0)


@gives("npu::npu_moe_init_routing")
def npu_moe_init_routing(x: Tensor, row_idx: Tensor, expert_idx: Tensor, active_num: int) -> tuple[Tensor, Tensor, Tensor]:
    """(rows of x in the order of their experts, where each row went, experts in order)."""
    experts, order = expert_idx.reshape(-1).sort(stable=True)
    rows = row_idx.reshape(-1)[order].long()
    went = torch.empty_like(rows)
    went[rows] = torch.arange(rows.numel())
    count = min(x.shape[0], active_num) * expert_idx.shape[1]
    return x[rows % x.shape[0]][:count].contiguous(), went.int(), experts.int()


@gives("npu::npu_moe_compute_expert_tokens")
def npu_moe_compute_expert_tokens(sorted_expert_for_source_row: Tensor, num_expert: int) -> Tensor:
    """How many rows belong to experts up to each one."""
    return torch.searchsorted(sorted_expert_for_source_row.contiguous(), torch.arange(num_expert, dtype=sorted_expert_for_source_row.dtype), right=True).to(
        sorted_expert_for_source_row.dtype)


@gives("npu::npu_moe_finalize_routing")
def npu_moe_finalize_routing(
    expanded_permuted_rows: Tensor, skip1: Tensor | None, skip2: Tensor | None, bias: Tensor | None, scales: Tensor | None,
    expanded_src_to_dst_row: Tensor, export_for_source_row: Tensor | None, drop_pad_mode: int | None = 0, k: int | None = 1,
) -> Tensor:
    """Per row: skip1 + skip2 + sum over its experts of scale * (the expert's row + the expert's bias)."""
    count = scales.shape[1] if scales is not None else int(k or 1)
    rows = expanded_src_to_dst_row.numel() // count
    if drop_pad_mode:
        raise NotImplementedError("npu_moe_finalize_routing with drop_pad_mode")
    flat = expanded_permuted_rows.float()
    out = torch.zeros(rows, flat.shape[-1])
    for step in range(count):
        part = flat[expanded_src_to_dst_row[step * rows:(step + 1) * rows].long()]
        if bias is not None and export_for_source_row is not None:
            part = part + bias.float()[export_for_source_row[:, step].long()]
        out = out + (part if scales is None else scales[:, step:step + 1].float() * part)
    for skip in (skip1, skip2):
        if skip is not None:
            out = out + skip.float()
    return out.to(expanded_permuted_rows.dtype)


@gives("npu::npu_moe_token_permute")
def npu_moe_token_permute(tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None, padded_mode: bool = False) -> tuple[Tensor, Tensor]:
    """(tokens in the order of their experts, for each token and choice where it went)."""
    if padded_mode:
        raise NotImplementedError("npu_moe_token_permute with padded_mode")
    choices = indices.shape[1] if indices.dim() > 1 else 1
    order = indices.reshape(-1).sort(stable=True)[1]
    count = order.numel() if not num_out_tokens else (num_out_tokens if num_out_tokens > 0 else order.numel() + num_out_tokens)
    went = torch.empty_like(order)
    went[order] = torch.arange(order.numel())
    return tokens[order[:count] // choices], went.int()


def _sum_back(permuted: Tensor, went: Tensor, rows: int, choices: int) -> Tensor:
    inside = went < permuted.shape[0]
    picked = permuted.float()[went.clamp(max=max(0, permuted.shape[0] - 1))] * inside.unsqueeze(-1)
    return picked.view(rows, choices, -1).sum(1)


@gives("npu::npu_moe_token_permute_grad")
def npu_moe_token_permute_grad(
    tokens: Tensor, grad_permuted_tokens: Tensor, indices: Tensor, sorted_indices: Tensor, padded_mode: bool = False,
) -> Tensor:
    """Gradient of the tokens: what their copies got, added up."""
    choices = indices.shape[1] if indices.dim() > 1 else 1
    return _sum_back(grad_permuted_tokens, sorted_indices.long(), tokens.shape[0], choices).to(tokens.dtype)


@gives("npu::npu_moe_token_permute_grad_v2")
def npu_moe_token_permute_grad_v2(
    grad_permuted_tokens: Tensor, sorted_indices: Tensor, tokens_size_0: int, tokens_dtype: torch.dtype, num_topK: int, padded_mode: bool = False,
) -> Tensor:
    """The same without the tokens."""
    return _sum_back(grad_permuted_tokens, sorted_indices.long(), tokens_size_0, num_topK).to(tokens_dtype)


def _unpermute(permuted: Tensor, probs: Tensor | None, went: Tensor) -> Tensor:
    choices = probs.shape[1] if probs is not None else 1
    inside = (went < permuted.shape[0]).unsqueeze(-1)
    picked = (permuted[went.clamp(max=max(0, permuted.shape[0] - 1))] * inside).view(-1, choices, permuted.shape[-1])
    return (picked if probs is None else picked * probs.unsqueeze(-1)).sum(1)


@gives("npu::npu_moe_token_unpermute")
def npu_moe_token_unpermute(
    permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False, restore_shape: list[int] | None = None,
) -> Tensor:
    """Tokens in their own order again, their copies added up with the weights probs."""
    if padded_mode:
        raise NotImplementedError("npu_moe_token_unpermute with padded_mode")
    return _unpermute(_wide(permuted_tokens), None if probs is None else _wide(probs), sorted_indices.long()).to(permuted_tokens.dtype)


@gives("npu::_npu_moe_token_unpermute")
def npu_moe_token_unpermute_saved(
    permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False, restore_shape: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """The same, with the permuted tokens for the gradient."""
    return npu_moe_token_unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape), permuted_tokens.clone()


@gives("npu::npu_moe_token_unpermute_grad")
def npu_moe_token_unpermute_grad(
    permuted_tokens: Tensor, grad_unpermuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> tuple[Any, ...]:
    """(gradient of the permuted tokens, of probs)."""
    went = sorted_indices.long()
    found = gradients(lambda x, p: _unpermute(x, p, went), (permuted_tokens, probs), (grad_unpermuted_tokens,))
    return found[0], found[1] if probs is not None else torch.empty(0)


@gives("npu::npu_moe_gating_top_k_backward")
def npu_moe_gating_top_k_backward(
    x_norm: Tensor, grad_y: Tensor, expertIdx: Tensor, *, renorm: int = 0, norm_type: int = 0, routed_scaling_factor: float = 1.0, eps: float = 1e-20,
) -> Tensor:
    """Gradient of the scores x from the normalised ones that the forward pass gave."""
    def weights(scores: Tensor) -> Tensor:
        picked = scores.gather(-1, expertIdx.long())
        return (picked / (picked.sum(-1, keepdim=True) + eps) if norm_type == 1 or renorm else picked) * routed_scaling_factor

    g = gradients(weights, (x_norm,), (grad_y,))[0]
    assert g is not None
    y = x_norm.float()
    if norm_type == 1:
        return (g * y * (1 - y)).to(grad_y.dtype)
    return (y * (g - (g * y).sum(-1, keepdim=True))).to(grad_y.dtype)
