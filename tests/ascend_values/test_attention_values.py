"""References of fused attention against torch's own attention and gradients, in every layout, mask and sparse mode."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from npulift.ascend.values import reference
from npulift.ascend.values.families.attention import from_bnsd, to_bnsd

B, N, S, D = 2, 4, 6, 8
LAYOUTS = ("BNSD", "BSND", "BSH", "SBH")


def call(name: str, *args, **kwargs):
    function = reference(name)
    assert function is not None
    return function(*args, **kwargs)


def qkv(rows: int = S, columns: int = S, kv_heads: int = N):
    torch.manual_seed(7)
    return torch.randn(B, N, rows, D), torch.randn(B, kv_heads, columns, D), torch.randn(B, kv_heads, columns, D)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["npu::npu_fusion_attention", "npu::npu_fusion_attention_v2", "npu::npu_fusion_attention_v3"])
def test_plain_attention_in_every_layout(name, layout):
    q, k, v = qkv()
    out = call(name, *(from_bnsd(x, layout) for x in (q, k, v)), N, layout, scale=0.3)[0]
    torch.testing.assert_close(to_bnsd(out, layout, N), functional.scaled_dot_product_attention(q, k, v, scale=0.3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fewer_heads_for_key_and_value(layout):
    q, k, v = qkv(kv_heads=2)
    out = call("npu::npu_fusion_attention", *(from_bnsd(x, layout) for x in (q, k, v)), N, layout, scale=0.3)[0]
    torch.testing.assert_close(to_bnsd(out, layout, N), functional.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True))


def seen(mode: int, rows: int, columns: int, mask: torch.Tensor, before: int, after: int) -> torch.Tensor:
    """Which pairs are seen, by the words of the documentation, one by one."""
    table = torch.zeros(rows, columns, dtype=torch.bool)
    for i in range(rows):
        for j in range(columns):
            from_corner = j - (i + columns - rows)
            table[i, j] = {
                0: not mask[i, j] and -before <= j - i <= after, 1: not mask[i, j], 2: j <= i, 3: from_corner <= 0, 4: -before <= from_corner <= after,
            }[mode]
    return table


@pytest.mark.parametrize("mode", range(5))
@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (4, 7)])
def test_sparse_modes_hide_what_the_documentation_says(mode, rows, columns):
    q, k, v = qkv(rows, columns)
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    mask[:, 3] = True
    out = call("npu::npu_fusion_attention", q, k, v, N, "BNSD", atten_mask=mask, scale=0.3, sparse_mode=mode, pre_tockens=2, next_tockens=1)[0]
    visible = seen(mode, rows, columns, mask, 2, 1)
    expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=0.3)
    whole = visible.any(-1)
    torch.testing.assert_close(out[:, :, whole], expected[:, :, whole])


def test_default_mode_without_a_mask_ignores_the_tokens():
    q, k, v = qkv()
    out = call("npu::npu_fusion_attention", q, k, v, N, "BNSD", scale=0.3, pre_tockens=1, next_tockens=0)[0]
    torch.testing.assert_close(out, functional.scaled_dot_product_attention(q, k, v, scale=0.3))


def test_prefix_columns_are_seen_by_all_rows():
    q, k, v = qkv()
    out = call("npu::npu_fusion_attention", q, k, v, N, "BNSD", scale=0.3, sparse_mode=5, prefix=[2, 4])[0]
    causal = torch.ones(S, S, dtype=torch.bool).tril()
    for b, columns in enumerate((2, 4)):
        visible = causal.clone()
        visible[:, :columns] = True
        torch.testing.assert_close(out[b], functional.scaled_dot_product_attention(q[b], k[b], v[b], attn_mask=visible, scale=0.3))


def test_row_that_sees_nothing_gives_zero():
    q, k, v = qkv()
    mask = torch.zeros(S, S, dtype=torch.bool)
    mask[2] = True
    out = call("npu::npu_fusion_attention", q, k, v, N, "BNSD", atten_mask=mask, sparse_mode=1)[0]
    assert out[:, :, 2].abs().max() == 0


def test_packed_sequences_attend_within_themselves():
    torch.manual_seed(3)
    q, k, v = (torch.randn(7, N, D) for _ in range(3))
    out = call("npu::npu_fusion_attention", q, k, v, N, "TND", scale=0.3, actual_seq_qlen=[3, 7], actual_seq_kvlen=[3, 7], sparse_mode=3)[0]
    for first, last in ((0, 3), (3, 7)):
        part = [x[first:last].transpose(0, 1) for x in (q, k, v)]
        torch.testing.assert_close(out[first:last].transpose(0, 1), functional.scaled_dot_product_attention(*part, is_causal=True, scale=0.3))


def test_position_bias_is_added_after_scaling():
    q, k, v = qkv()
    pse = torch.randn(B, N, S, S)
    out = call("npu::npu_fusion_attention", q, k, v, N, "BNSD", pse=pse, scale=0.3)[0]
    torch.testing.assert_close(out, functional.scaled_dot_product_attention(q, k, v, attn_mask=pse, scale=0.3))


def test_position_bias_of_type_0_is_scaled_too():
    q, k, v = qkv()
    pse = torch.randn(B, N, S, S)
    out = call("npu::npu_fusion_attention_v2", q, k, v, N, "BNSD", pse=pse, scale=0.3, pse_type=0)[0]
    torch.testing.assert_close(out, functional.scaled_dot_product_attention(q, k, v, attn_mask=pse * 0.3, scale=0.3))


def test_sink_takes_its_share_of_the_sum():
    q, k, v = qkv()
    sink = torch.randn(N)
    out = call("npu::npu_fusion_attention_v3", q, k, v, N, "BNSD", scale=0.3, sink=sink)[0]
    scores = torch.cat((q @ k.transpose(-1, -2) * 0.3, sink.view(1, N, 1, 1).expand(B, N, S, 1)), -1)
    torch.testing.assert_close(out, torch.softmax(scores, -1)[..., :-1] @ v)


def test_statistics_are_those_of_the_softmax_eight_times():
    q, k, v = qkv()
    _out, top, total, *_rest = call("npu::npu_fusion_attention", q, k, v, N, "BNSD", scale=0.3)
    scores = q @ k.transpose(-1, -2) * 0.3
    expected = torch.logsumexp(scores, -1, keepdim=True).expand(B, N, S, 8)
    torch.testing.assert_close(top + total.log(), expected)


def test_rope_parts_join_query_and_key():
    q, k, v = qkv()
    rope_q, rope_k = torch.randn(B, N, S, 4), torch.randn(B, N, S, 4)
    out = call("npu::npu_fusion_attention_v2", q, k, v, N, "BNSD", query_rope=rope_q, key_rope=rope_k, scale=0.3)[0]
    torch.testing.assert_close(out, functional.scaled_dot_product_attention(torch.cat((q, rope_q), -1), torch.cat((k, rope_k), -1), v, scale=0.3))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["npu::npu_fusion_attention_grad", "npu::npu_fusion_attention_grad_v2", "npu::npu_fusion_attention_grad_v3"])
def test_gradients_equal_those_of_composite_attention(name, layout):
    q, k, v = (x.requires_grad_() for x in qkv(kv_heads=2))
    pse = torch.randn(B, N, S, S, requires_grad=True)
    heads = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    visible = torch.ones(S, S, dtype=torch.bool).tril()
    scores = (q @ heads[0].transpose(-1, -2) * 0.3 + pse).masked_fill(~visible, -math.inf)
    dy = torch.randn(B, N, S, D)
    expected = torch.autograd.grad(torch.softmax(scores, -1) @ heads[1], (q, k, v, pse), dy)
    given = [from_bnsd(x.detach(), layout) for x in (q, k, v, dy)]
    found = call(name, *given, N, layout, pse=pse.detach(), scale_value=0.3, sparse_mode=2)
    for x, y, count in zip(found[:3], expected[:3], (N, 2, 2), strict=True):
        torch.testing.assert_close(to_bnsd(x, layout, count), y)
    torch.testing.assert_close(found[3], expected[3])


def test_dropout_keeps_the_mean_and_returns_in_the_gradient():
    torch.manual_seed(0)
    q, k, v = qkv()
    ones = torch.ones_like(v)
    out, *_s, seed, offset, _numels = call("npu::npu_fusion_attention", q, k, ones, N, "BNSD", scale=0.3, keep_prob=0.5)
    _dq, _dk, dv, *_rest = call("npu::npu_fusion_attention_grad", q, k, v, ones, N, "BNSD", scale_value=0.3, keep_prob=0.5, seed=seed, offset=offset)
    assert (out.mean().item() == pytest.approx(1.0, abs=0.3), out.std() > 0.1) == (True, True)
    torch.testing.assert_close(dv.sum((2, 3)), out.sum((2, 3)))  # both are the sum of the kept probabilities


def test_half_precision_rounds_to_its_own_dtype():
    q, k, v = (x.half() for x in qkv())
    out = call("npu::npu_fusion_attention", q, k, v, N, "BNSD", scale=0.3)[0]
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), scale=0.3), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH"])
def test_prompt_attention_is_causal_by_mode_2(layout):
    q, k, v = qkv(kv_heads=2)
    heads = {"num_heads": N, "num_key_value_heads": 2, "input_layout": layout, "scale_value": 0.3}
    out = call("npu::npu_prompt_flash_attention", *(from_bnsd(x, layout) for x in (q, k, v)), sparse_mode=2, **heads)
    torch.testing.assert_close(to_bnsd(out, layout, N), functional.scaled_dot_product_attention(q, k, v, scale=0.3, is_causal=True, enable_gqa=True))


def test_prompt_attention_stops_at_the_actual_lengths():
    q, k, v = qkv()
    out = call("npu::npu_prompt_flash_attention", q, k, v, num_heads=N, input_layout="BNSD", scale_value=0.3, actual_seq_lengths=[4, 6])
    expected = functional.scaled_dot_product_attention(q[:1, :, :4], k[:1, :, :4], v[:1, :, :4], scale=0.3)
    torch.testing.assert_close(out[:1, :, :4], expected)
    assert out[0, :, 4:].abs().max() == 0


def test_incremental_attention_looks_at_the_keys_so_far():
    q, k, v = qkv(rows=1)
    out = call("npu::npu_incre_flash_attention", q, k, v, num_heads=N, input_layout="BNSD", scale_value=0.3, actual_seq_lengths=[2, 5])
    for b, length in enumerate((2, 5)):
        torch.testing.assert_close(out[b], functional.scaled_dot_product_attention(q[b], k[b, :, :length], v[b, :, :length], scale=0.3))


def test_fused_inference_attention_gives_the_log_of_the_sum():
    q, k, v = qkv()
    out, lse = call("npu::npu_fused_infer_attention_score", q, k, v, num_heads=N, input_layout="BNSD", scale=0.3, softmax_lse_flag=True)
    torch.testing.assert_close(out, functional.scaled_dot_product_attention(q, k, v, scale=0.3))
    torch.testing.assert_close(lse, torch.logsumexp(q @ k.transpose(-1, -2) * 0.3, -1, keepdim=True))


def test_quantised_inference_attention_is_refused_by_name():
    q, k, v = qkv()
    with pytest.raises(NotImplementedError, match="quant_scale1"):
        call("npu::npu_prompt_flash_attention", q, k, v, num_heads=N, quant_scale1=torch.ones(1))
