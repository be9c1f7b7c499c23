"""References of the other operators, each against another way to the same values: torch's own modules, a closed form, or finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from npulift.ascend.values import operators, reference
from npulift.ascend.values.arithmetic import saturate, saturates
from npulift.ascend.values.families.dropout import pack, unpack


def call(name: str, *args, **kwargs):
    function = reference(name)
    assert function is not None
    return function(*args, **kwargs)


def rand(*shape: int, **options) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)), **options)


close = torch.testing.assert_close


def check_gradient(forward, backward, *inputs: torch.Tensor) -> None:
    """backward(grad, *inputs) against central differences of forward, in float64."""
    inputs = tuple(x.double() for x in inputs)
    grad = torch.randn_like(forward(*inputs))
    found = backward(grad, *inputs)
    for x, g in zip(inputs, found if isinstance(found, (tuple, list)) else [found], strict=False):
        if g is None:
            continue
        numeric = torch.zeros_like(x)
        for i in range(x.numel()):
            step = torch.zeros_like(x).view(-1)
            step[i] = 1e-6
            args = [tuple(y + s * step.view(x.shape) if y is x else y for y in inputs) for s in (1, -1)]
            numeric.view(-1)[i] = ((forward(*args[0]) - forward(*args[1])) * grad).sum() / 2e-6
        close(g.double(), numeric, atol=1e-5, rtol=1e-4)


# --- activations


def test_fast_gelu():
    x = rand(50)
    close(call("npu::npu_fast_gelu", x), x / (1 + torch.exp(-1.702 * x.abs())) * torch.exp(0.851 * (x - x.abs())))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate):
    x = rand(50)
    inner = 0.5 * (1 + torch.erf(x / math.sqrt(2))) if approximate == "none" else 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    close(call("npu::npu_gelu", x, approximate=approximate), x * inner)


def test_gelu_mul():
    x = rand(4, 10)
    close(call("npu::npu_gelu_mul", x), functional.gelu(x[:, :5]) * x[:, 5:])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("approximate", [0, 1])
def test_geglu(left, approximate):
    x = rand(4, 10)
    active, plain = (x[:, :5], x[:, 5:]) if left else (x[:, 5:], x[:, :5])
    gelu = functional.gelu(active, approximate="tanh" if approximate else "none")
    close(call("npu::npu_geglu", x, -1, approximate, left), (plain * gelu, gelu))


def test_swiglu():
    x = rand(4, 10)
    close(call("npu::npu_swiglu", x), x[:, :5] / (1 + torch.exp(-x[:, :5])) * x[:, 5:])


def test_silu_and_mish():
    x = rand(20)
    close(call("npu::npu_silu", x), x / (1 + torch.exp(-x)))
    close(call("npu::npu_mish", x), x * torch.tanh(torch.log1p(torch.exp(x))))


def test_silu_in_place():
    x = rand(20)
    y = x.clone()
    call("npu::npu_silu_", y)
    close(y, x * torch.sigmoid(x))


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        ("npu_fast_gelu", lambda g, x: call("npu::npu_fast_gelu_backward", g, x)),
        ("npu_gelu", lambda g, x: call("npu::npu_gelu_backward", g, x)),
        ("npu_swiglu", lambda g, x: call("npu::npu_swiglu_backward", g, x)),
        ("npu_silu", lambda g, x: call("npu::npu_silu_backward", g, x, functional.silu(x))),
        ("npu_mish", lambda g, x: call("npu::npu_mish_backward", g, x)),
    ],
)
def test_gradients_of_activations(forward, backward):
    check_gradient(lambda x: call(f"npu::{forward}", x), backward, rand(3, 4))


def test_gradient_of_geglu():
    check_gradient(lambda x: call("npu::npu_geglu", x)[0], lambda g, x: call("npu::npu_geglu_grad", g, x, x), rand(3, 4))


# --- normalisations


def test_rms_norm():
    x, gamma = rand(3, 8), rand(8)
    out, rstd = call("npu::npu_rms_norm", x, gamma, 1e-6)
    close(out, functional.rms_norm(x, (8,), gamma, 1e-6))
    close(rstd, 1 / torch.sqrt((x * x).sum(-1, keepdim=True) / 8 + 1e-6))


def test_gemma_rms_norm():
    x, gamma = rand(3, 8), rand(8)
    close(call("npu::npu_gemma_rms_norm", x, gamma)[0], functional.rms_norm(x, (8,), gamma + 1, 1e-6))


def test_rms_norm_after_an_addition():
    a, b, gamma = rand(3, 8), rand(3, 8) * 2, rand(8)
    out, _rstd, total = call("npu::npu_add_rms_norm", a, b, gamma)
    close((out, total), (functional.rms_norm(a + b, (8,), gamma, 1e-6), a + b))
    close(call("npu::npu_add_rms_norm_cast", a, b, gamma)[0], functional.rms_norm(a + b, (8,), gamma, 1e-6))


def test_rms_norm_after_an_addition_in_place():
    a, b, gamma = rand(3, 8), rand(3, 8) * 2, rand(8)
    x, y = a.clone(), b.clone()
    call("npu::npu_add_rms_norm_v2", x, y, gamma)
    close((x, y), (functional.rms_norm(a + b, (8,), gamma, 1e-6), a + b))


def test_gradient_of_rms_norm():
    def backward(g, x, gamma):
        return call("npu::npu_rms_norm_backward", g, x, gamma, 1 / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-6))

    check_gradient(lambda x, gamma: functional.rms_norm(x, (4,), gamma, 1e-6), backward, rand(3, 4), rand(4))


def test_layer_norm_after_an_addition():
    a, b, gamma, beta = rand(3, 8), rand(3, 8) * 2, rand(8), rand(8)
    out, mean, _rstd, total = call("npu::npu_add_layer_norm", a, b, gamma, beta, 1e-5, True)
    close((out, mean, total), (functional.layer_norm(a + b, (8,), gamma, beta), (a + b).mean(-1, keepdim=True), a + b))


def test_layer_norm_for_inference():
    x, gamma, beta = rand(3, 8), rand(8), rand(8) * 2
    close(call("npu::npu_layer_norm_eval", x, [8], gamma, beta, 1e-5), (x - x.mean(-1, keepdim=True)) * statistics(x)[1] * gamma + beta)


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.mean(-1, keepdim=True), 1 / torch.sqrt(x.var(-1, correction=0, keepdim=True) + 1e-5)


def test_gradient_of_layer_norm_after_an_addition():
    def backward(g, a, b, gamma):
        mean, rstd = statistics(a + b)
        return call("npu::npu_add_layer_norm_backward", g, a, b, rstd, mean, gamma, None)[:3]

    check_gradient(lambda a, b, gamma: functional.layer_norm(a + b, (4,), gamma), backward, rand(3, 4), rand(3, 4) * 2, rand(4))


def test_gradient_of_layer_norm():
    def backward(g, x, gamma):
        return call("npu::npu_layernorm_grad", g, x, [4], *statistics(x), gamma, None)[:2]

    check_gradient(lambda x, gamma: functional.layer_norm(x, (4,), gamma), backward, rand(3, 4), rand(4))


def test_deep_norm_and_its_gradient():
    x, gx, beta, gamma = rand(3, 8), rand(3, 8) * 2, rand(8), rand(8)
    close(call("npu::npu_deep_norm", x, gx, beta, gamma, 0.3, 1e-6)[2], functional.layer_norm(0.3 * x + gx, (8,), gamma, beta, 1e-6))

    def backward(g, x, gx):
        mean, rstd = statistics(0.3 * x + gx)
        return call("npu::npu_deep_norm_backward", g, x, gx, torch.ones(4).double(), mean, rstd, 0.3)[:2]

    check_gradient(lambda x, gx: functional.layer_norm(0.3 * x + gx, (4,)), backward, rand(3, 4), rand(3, 4) * 2)


def test_group_norm_with_an_activation():
    x, w, b = rand(2, 6, 3, 3), rand(6), rand(6) * 2
    y = functional.group_norm(x, 3, w, b)
    close(call("npu::npu_group_norm_silu", x, w, b, 3)[0], y * torch.sigmoid(y))
    close(call("npu::npu_group_norm_swish", x, 3, w, b, 1e-5, 1.5)[0], y * torch.sigmoid(1.5 * y))


def test_gradient_of_group_norm_with_swish():
    def forward(x, w, b):
        y = functional.group_norm(x, 2, w, b)
        return y * torch.sigmoid(y)

    def backward(g, x, w, b):
        folded = x.reshape(2, 2, -1)
        return call("npu::npu_group_norm_swish_grad", g, x, 2, w, b, folded.mean(-1), (folded.var(-1, correction=0) + 1e-5).rsqrt(), [True] * 3)

    check_gradient(forward, backward, rand(2, 4, 3), rand(4), rand(4) * 2)


def test_synchronised_batch_norm_in_pieces_equals_batch_norm():
    x, w, b = rand(4, 3, 5), rand(3), rand(3) * 2
    parts = [call("aten::batch_norm_stats", part, 1e-5) for part in x.split(2)]
    mean, invstd = torch.stack([p[0] for p in parts]), torch.stack([p[1] for p in parts])
    running = torch.zeros(3), torch.ones(3)
    joined = call("aten::batch_norm_gather_stats_with_counts", x, mean, invstd, *running, 0.1, 1e-5, torch.tensor([10.0, 10.0]))
    expected_running = torch.zeros(3), torch.ones(3)
    close(call("aten::batch_norm_elemt", x, w, b, *joined, 1e-5), functional.batch_norm(x, *expected_running, w, b, True))
    close(running, expected_running)


def test_batch_norm_from_sums():
    x = rand(4, 3, 5, 2)
    sums = call("npu::batch_norm_reduce", x, 1e-5)
    mean, invstd = call("npu::batch_norm_gather_stats_update", x, *sums, None, None, 0.1, 1e-5, torch.tensor([40.0]))
    close((mean, invstd), (x.mean((0, 2, 3)), 1 / torch.sqrt(x.var((0, 2, 3), correction=0) + 1e-5)))


def test_batch_norm_into_a_tensor():
    x, mean, invstd, out = rand(4, 3, 5), rand(3), rand(3).abs(), torch.empty(4, 3, 5)
    call("aten::batch_norm_elemt.out", x, None, None, mean, invstd, 1e-5, out=out)
    close(out, (x - mean.view(1, 3, 1)) * invstd.view(1, 3, 1))


def test_gradient_of_batch_norm_in_pieces():
    def backward(g, x, w):
        mean, invstd = x.mean((0, 2)), 1 / torch.sqrt(x.var((0, 2), correction=0) + 1e-5)
        sums, with_x, dw, _db = call("aten::batch_norm_backward_reduce", g, x, mean, invstd, w, True, True, True)
        return call("aten::batch_norm_backward_elemt", g, x, mean, invstd, w, sums, with_x, torch.tensor([x.shape[0] * x.shape[2]])), dw

    check_gradient(lambda x, w: functional.batch_norm(x, None, None, w, None, True), backward, rand(3, 2, 3), rand(2))


# --- products


@pytest.mark.parametrize(("a", "b"), [((3, 4), (4, 2)), ((4,), (4,)), ((2, 3, 4), (4, 2)), ((2, 3, 4), (2, 4, 5)), ((5, 1, 3, 4), (2, 4, 2)), ((3, 4), (4,))])
def test_gradient_of_matmul(a, b):
    check_gradient(torch.matmul, lambda g, x, y: call("aten::matmul_backward", g, x, y, [True, True]), rand(*a), rand(*b))


def test_gradient_of_matmul_only_where_asked():
    found = call("aten::matmul_backward", torch.ones(3, 2), rand(3, 4), rand(4, 2), [False, True])
    assert (found[0] is None, found[1] is None) == (True, False)


def test_products_with_a_wider_result_are_not_rounded_between():
    a, b, c = rand(8, 512).half(), rand(512, 8).half(), rand(8, 8).half()
    close(call("aten::mm.dtype", a, b, torch.float32), (a.double() @ b.double()).float(), atol=1e-4, rtol=1e-4)
    close(call("aten::addmm.dtype", c, a, b, torch.float32, beta=2, alpha=3), (2 * c.double() + 3 * a.double() @ b.double()).float(), atol=1e-3, rtol=1e-4)
    out = torch.empty(8, 8)
    call("aten::mm.dtype_out", a, b, torch.float32, out=out)
    close(out, (a.double() @ b.double()).float(), atol=1e-4, rtol=1e-4)


def test_batched_product_with_an_addition_into_a_tensor():
    a, b, c, out = rand(2, 3, 4).half(), rand(2, 4, 5).half(), rand(2, 3, 5).half(), torch.empty(2, 3, 5)
    call("aten::baddbmm.dtype_out", c, a, b, torch.float32, beta=2, out=out)
    close(out, 2 * c.float() + a.float() @ b.float(), atol=1e-4, rtol=1e-4)
    call("aten::bmm.dtype_out", a, b, torch.float32, out=out)
    close(out, a.float() @ b.float(), atol=1e-4, rtol=1e-4)


def test_linear_and_its_gradient():
    x, w, b = rand(2, 3, 4), rand(5, 4), rand(5)
    close(call("npu::npu_linear", x, w, b), x @ w.T + b)
    check_gradient(lambda x, w: x @ w.T, lambda g, x, w: call("npu::npu_linear_backward", g, x, w), rand(3, 4), rand(5, 4))


def test_bmm_v2_and_its_gradients():
    close(call("npu::npu_bmmV2", rand(2, 3, 4), rand(2, 4, 5), [2, 15]), (rand(2, 3, 4) @ rand(2, 4, 5)).reshape(2, 15))

    def backward(g, a, b):
        return call("npu::npu_bmm_v2_mat1_backward", g, a, b, list(a.shape)), call("npu::npu_bmm_v2_mat2_backward", g, a, b, list(b.shape))

    check_gradient(torch.matmul, backward, rand(2, 3, 4), rand(2, 4, 2))


@pytest.mark.parametrize("kind", [0, 1])
def test_grouped_matmul_takes_rows_by_group(kind):
    x, w = rand(7, 4), rand(3, 4, 5)
    groups = torch.tensor([2, 3, 7]) if kind == 0 else torch.tensor([2, 1, 4])
    (out,) = call("npu::npu_grouped_matmul", [x], [w], group_list=groups, split_item=2, group_type=0, group_list_type=kind)
    close(out, torch.cat((x[:2] @ w[0], x[2:3] @ w[1], x[3:] @ w[2])))


# --- layout and casts


@pytest.mark.parametrize("first", [True, False])
def test_confusion_transpose_and_its_gradient(first):
    x, perm = rand(2, 3, 4), [2, 0, 1]
    shape = [4, 6] if first else [4, 3, 2]
    expected = x.permute(perm).reshape(shape) if first else x.reshape(shape).permute(perm)
    close(call("npu::npu_confusion_transpose", x, perm, shape, first), expected)
    close(call("npu::npu_confusion_transpose_backward", expected, perm, [2, 3, 4], first), x)


def test_a_format_cast_changes_no_value():
    x = rand(3, 4)
    close(call("npu::npu_format_cast", x, 29), x)


@pytest.mark.parametrize(("code", "dtype"), [(5, torch.float16), (6, torch.float32), (15, torch.bfloat16), (3, torch.int32), (torch.float16, torch.float16)])
def test_dtype_cast_by_number(code, dtype):
    x = rand(3, 4) * 10
    close(call("npu::npu_dtype_cast", x, code), x.to(dtype))


def test_in_place_casts():
    x, y = torch.zeros(3), rand(3)
    call("npu::npu_dtype_cast_", x, y)
    close(x, y)
    z = torch.zeros(3)
    call("npu::npu_format_cast_", z, y)
    close(z, y)


def test_moves_of_values():
    x = rand(2, 3)
    close(call("npu::npu_transpose", x, [1, 0]), x.T)
    close(call("npu::npu_broadcast", x[:, :1], [2, 5]), x[:, :1].expand(2, 5))
    close(call("npu::npu_reshape", x, [3, 2]), x.reshape(3, 2))
    close(call("npu::npu_slice", x, [0, 1], [2, 2]), x[:, 1:3])
    close(call("npu::npu_pad", x, [1, 0, 0, 2]), functional.pad(x, (0, 2, 1, 0)))
    close(call("npu::npu_one_hot", torch.tensor([1, 0]), -1, 3, 2, 1), torch.tensor([[1.0, 2, 1], [2, 1, 1]]))
    close(call("npu::npu_stride_copy", x, [3, 2], [1, 3], 0), x.T)
    close(call("npu::npu_sort_v2", x), x.sort()[0])


def test_max_with_its_gradient():
    x = rand(3, 4)
    values, indices = call("npu::npu_max.dim", x, 1)
    close((values, indices.long()), tuple(x.max(1)))
    close(call("npu::npu_min.dim", x, 1)[0], x.min(1)[0])
    check_gradient(lambda y: y.max(1)[0], lambda g, y: call("npu::npu_max_backward", g, 1, y.max(1)[1], list(y.shape), False), x)


def test_rotary_embedding_is_a_rotation_of_pairs():
    x, angle = rand(1, 5, 2, 8), rand(1, 5, 1, 4)
    cos, sin = angle.cos(), angle.sin()
    out = call("npu::npu_rotary_mul", x, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
    turned = torch.complex(x[..., :4], x[..., 4:]) * torch.complex(cos, sin)
    close(out, torch.cat((turned.real, turned.imag), -1))
    pairs = call("npu::npu_rotary_mul", x, cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1), "interleave")
    other = torch.view_as_complex(x.reshape(1, 5, 2, 4, 2)) * torch.complex(cos, sin)
    close(pairs, torch.view_as_real(other).flatten(-2))
    query, key = call("npu::npu_apply_rotary_pos_emb", x, x * 2, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
    close((query, key), (out, out * 2))
    mixed = call("npu::npu_interleave_rope", x, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
    close(mixed, torch.cat((other.real, other.imag), -1))


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_gradient_of_rotary_embedding(mode):
    check_gradient(lambda x, a, b: call("npu::npu_rotary_mul", x, a, b, mode), lambda g, x, a, b: call("npu::npu_rotary_mul_backward", g, x, a, b, mode),
                   rand(1, 2, 2, 4), rand(1, 2, 1, 4), rand(1, 2, 1, 4) * 2)


# --- dropout and masked softmax


@pytest.mark.parametrize("size", [1, 8, 127, 128, 300])
def test_bits_of_a_mask_survive_packing(size):
    keep = rand(size) > 0
    bits = pack(keep)
    assert bits.numel() == math.ceil(size / 128) * 16
    close(unpack(bits, torch.zeros(size)), keep.float())


def test_dropout_scales_what_it_keeps_and_its_gradient_uses_the_same_bits():
    torch.manual_seed(1)
    x = torch.ones(4000)
    out, mask = call("npu::_npu_dropout", x, 0.25)
    assert sorted(out.unique().tolist()) == pytest.approx([0.0, 1 / 0.75])
    assert out.mean().item() == pytest.approx(1.0, abs=0.05)
    close(call("npu::npu_dropout_backward", x, mask, 0.25), out)
    close(call("npu::npu_dropout_do_mask", x, mask, 0.25)[0], out)


def test_dropout_with_bytes():
    torch.manual_seed(1)
    out, mask = call("npu::_dropout_with_byte_mask", torch.ones(100), 0.5)
    close(out, mask.float() * 2)
    close(call("npu::_dropout_with_byte_mask_backward", torch.ones(100), mask, 0.5), out)
    close(call("aten::_masked_scale", torch.ones(100), mask, 2.0), out)


def test_masks_repeat_for_the_same_seed():
    masks = [call("npu::_npu_dropout_gen_mask", torch.zeros(1), [400], 0.5, seed, 0) for seed in (3, 3, 4)]
    assert (torch.equal(masks[0], masks[1]), torch.equal(masks[0], masks[2])) == (True, False)
    assert call("npu::npu_dropout_gen_mask", [400], 0.5).numel() == 64


def test_softmax_with_addition_and_dropout():
    x, y = rand(3, 4), rand(3, 4) * 2
    _mask, soft, out = call("npu::npu_dropout_with_add_softmax", x, y, 0.5, 0.0, -1)
    close((soft, out), (torch.softmax(x * 0.5 + y, -1),) * 2)

    def backward(g, x, y):
        mask = pack(torch.ones(3, 4))
        return call("npu::npu_dropout_with_add_softmax_backward", g.float(), mask, torch.softmax(x * 0.5 + y, -1).float(), 0.5, 0.0, -1)

    check = torch.autograd.functional.vjp(lambda x, y: torch.softmax(x * 0.5 + y, -1), (x, y), torch.ones(3, 4) * y)[1]
    close(backward(torch.ones(3, 4) * y, x, y), check)


def test_masked_softmax_hides_what_is_true():
    x, mask = rand(2, 1, 3, 4), torch.zeros(2, 1, 3, 4, dtype=torch.bool)
    mask[..., 2] = True
    out = call("npu::npu_scaled_masked_softmax", x, mask, 2.0)
    expected = torch.softmax((x * 2).masked_fill(mask, -torch.inf), -1)
    close(out, expected)
    vjp = torch.autograd.functional.vjp(lambda y: torch.softmax((y * 2).masked_fill(mask, -torch.inf), -1), x, x * 3)[1]
    close(call("npu::npu_scaled_masked_softmax_backward", x * 3, out, mask, 2.0, False), vjp)


def test_masked_softmax_with_its_own_triangle():
    x = rand(1, 1, 4, 4)
    close(call("npu::npu_scaled_masked_softmax", x, torch.zeros(1), 1.0, True),
          torch.softmax(x.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -torch.inf), -1))


def test_masked_softmax_with_position_bias():
    x, mask, bias = rand(6, 2, 3, 3), rand(3, 3, 3), rand(2, 3, 3)
    out = call("npu::npu_masked_softmax_with_rel_pos_bias", x, mask, bias, 0.5)
    expected = torch.stack([torch.softmax(x[i] * 0.5 + mask[i % 3] + bias, -1) for i in range(6)])
    close(out, expected)


# --- optimizers


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_follows_torch(amsgrad):
    p, var = torch.nn.Parameter(rand(20)), rand(20)
    optimizer = torch.optim.AdamW([p], lr=0.1, betas=(0.9, 0.99), weight_decay=0.2, amsgrad=amsgrad)
    m, v, largest = torch.zeros(20), torch.zeros(20), torch.zeros(20)
    for step in range(3):
        grad = rand(20 + step)[:20]
        p.grad = grad.clone()
        optimizer.step()
        call("npu::npu_apply_adam_w.out", 0.9**step, 0.99**step, 0.1, 0.2, 0.9, 0.99, 1e-8, grad, largest if amsgrad else None, amsgrad, False, out=[var, m, v])
    close(var, p.detach(), atol=1e-5, rtol=1e-5)


def test_adam_follows_its_formula():
    var, m, v, g = rand(5), torch.zeros(5), torch.zeros(5), rand(5) * 2
    expected = var - 0.1 * math.sqrt(1 - 0.99) / (1 - 0.9) * (0.1 * g) / (torch.sqrt(0.01 * g * g) + 1e-8)
    call("npu::npu_apply_adam.out", 0.9, 0.99, 0.1, 0.9, 0.99, 1e-8, g, False, False, out=[var, m, v])
    close(var, expected)


def test_adam_of_bert_clips_the_gradient():
    var, m, v, g = rand(5), torch.zeros(5), torch.zeros(5), rand(5) * 2
    clipped = g * (1.0 / 4.0)
    expected = var - 0.1 * (0.1 * clipped / (torch.sqrt(0.01 * clipped**2) + 1e-6) + 0.3 * var)
    call("npu::npu_bert_apply_adam.out", 0.1, 0.9, 0.99, 1e-6, g, 1.0, 4.0, 0.3, out=[var, m, v])
    close(var, expected)


def test_check_for_infinities():
    assert (call("npu::_amp_foreach_non_finite_check", [torch.ones(2)]), call("npu::_amp_foreach_non_finite_check", [torch.ones(2), torch.tensor([torch.inf])])
            ) == (False, True)
    assert call("npu::npu_get_float_status", torch.zeros(8)).sum() == 0


# --- experts


def test_gating_by_softmax():
    x = rand(5, 8)
    values, experts, rows = call("npu::npu_moe_gating_top_k_softmax", x, None, 2)
    expected = torch.softmax(x, -1).sort(-1, descending=True)
    close((values, experts.long()), (expected[0][:, :2], expected[1][:, :2]))
    assert rows.tolist() == [[i, i + 5] for i in range(5)]


def test_gating_leaves_finished_rows_out():
    finished = torch.tensor([True, False])
    assert call("npu::npu_moe_gating_top_k_softmax", rand(2, 8), finished, 1)[1][0] == 8


def test_gating_with_renormalisation():
    x = rand(5, 8)
    values, _experts, _soft = call("npu::npu_moe_gating_top_k_softmax_v2", x, k=3, renorm=1)
    close(values, torch.softmax(x.sort(-1, descending=True)[0][:, :3], -1))


def test_gating_by_groups_and_sigmoid():
    x, bias = rand(6, 8), rand(8)
    weights, experts, scores = call("npu::npu_moe_gating_top_k", x, 2, bias=bias, k_group=1, group_count=4, group_select_mode=1, norm_type=1, out_flag=True,
                                    routed_scaling_factor=2.5)
    plain = torch.sigmoid(x)
    close(scores, plain)
    for row in range(6):
        biased = plain[row] + bias
        group = max(range(4), key=lambda g: biased[2 * g] + biased[2 * g + 1])
        chosen = sorted((2 * group, 2 * group + 1), key=lambda e: -biased[e])
        assert experts[row].tolist() == chosen
        close(weights[row], plain[row, chosen] / plain[row, chosen].sum() * 2.5)


@pytest.mark.parametrize("norm", [0, 1])
def test_gradient_of_gating(norm):
    chosen = torch.tensor([[1, 3], [0, 2]])

    def forward(x):
        y = torch.sigmoid(x) if norm else torch.softmax(x, -1)
        picked = y.gather(-1, chosen)
        return picked / picked.sum(-1, keepdim=True) if norm else picked

    def backward(g, x):
        y = torch.sigmoid(x) if norm else torch.softmax(x, -1)
        return call("npu::npu_moe_gating_top_k_backward", y, g, chosen, norm_type=norm).double()

    x = rand(2, 4).double()
    grad = rand(2, 2).double()
    close(backward(grad, x), torch.autograd.functional.vjp(forward, x, grad)[1], atol=1e-6, rtol=1e-5)


def test_routing_there_and_back():
    x = rand(3, 4)
    chosen = torch.tensor([[1, 2], [0, 1], [0, 2]], dtype=torch.int32)
    rows = torch.arange(6, dtype=torch.int32).view(2, 3).t().contiguous()
    expanded, went, experts = call("npu::npu_moe_init_routing", x, rows, chosen, 3)
    assert experts.tolist() == [0, 0, 1, 1, 2, 2]
    close(expanded, x[[1, 2, 0, 1, 0, 2]])
    assert call("npu::npu_moe_compute_expert_tokens", experts, 3).tolist() == [2, 4, 6]
    scales, bias = rand(3, 2), rand(3, 4)
    out = call("npu::npu_moe_finalize_routing", expanded, x, None, bias, scales, went, chosen, 0, 2)
    close(out, x + sum(scales[:, k:k + 1] * (x + bias[chosen[:, k].long()]) for k in range(2)))


def test_tokens_permuted_and_back():
    x, chosen, probs = rand(4, 3), torch.tensor([[1, 0], [2, 1], [0, 2], [0, 1]]), rand(4, 2)
    permuted, went = call("npu::npu_moe_token_permute", x, chosen)
    order = [row for expert in range(3) for row in range(4) for k in range(2) if chosen[row, k] == expert]
    close(permuted, x[order])
    close(call("npu::npu_moe_token_unpermute", permuted, went, probs), x * probs.sum(1, keepdim=True))
    close(call("npu::_npu_moe_token_unpermute", permuted, went, probs), (x * probs.sum(1, keepdim=True), permuted))
    close(call("npu::npu_moe_token_permute_grad", x, permuted, chosen, went), 2 * x)
    close(call("npu::npu_moe_token_permute_grad_v2", permuted, went, 4, torch.float32, 2), 2 * x)
    check_gradient(lambda p, w: call("npu::npu_moe_token_unpermute", p, went, w), lambda g, p, w: call("npu::npu_moe_token_unpermute_grad", p, g, went, w),
                   permuted, probs)
    grad = rand(4, 3)
    dp, dw = call("npu::npu_moe_token_unpermute_grad", permuted, grad, went, probs)
    expected = torch.autograd.functional.vjp(lambda p, w: (p[went.long()].view(4, 2, 3) * w.unsqueeze(-1)).sum(1), (permuted, probs), grad)[1]
    close((dp, dw), expected)


# --- detection


def test_non_maximum_suppression():
    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 10, 10], [20, 20, 30, 30], [0, 0, 1, 1]])
    scores = torch.tensor([0.9, 0.8, 0.7, 0.1])
    found, count = call("npu::npu_nms_v4", boxes, scores, 4, torch.tensor(0.5), torch.tensor(0.2), True)
    assert (found.tolist(), int(count)) == ([0, 2, 0, 0], 2)
    assert call("npu::npu_nms_with_mask", torch.cat((boxes, scores[:, None]), -1), 0.5)[2].tolist() == [1, 0, 1, 1]


def test_overlaps_of_boxes():
    a, b = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[0.0, 0, 10, 5], [20, 20, 30, 30]])
    close(call("npu::npu_iou", a, b), torch.tensor([[0.5], [0.0]]))
    close(call("npu::npu_iou", a, b, 1), torch.tensor([[1.0], [0.0]]))
    close(call("npu::npu_giou", a.t(), b[1:].t()), torch.tensor([[0 - (900 - 200) / 900]]))
    check_gradient(lambda x, y: call("npu::npu_giou", x, y).squeeze(-1), lambda g, x, y: call("npu::npu_giou_backward", g.unsqueeze(-1), x, y),
                   torch.tensor([[0.0, 1], [0, 1], [10, 12], [10, 11]]), torch.tensor([[2.0, 5], [3, 6], [13, 9], [8, 15]]))


def test_regions_of_a_plane_that_rises_evenly_average_to_the_middle_of_each_bin():
    plane = torch.arange(36.0).view(1, 1, 6, 6) + 1
    out = call("npu::npu_roi_align", plane, torch.tensor([[0, -2.0, -2.0, 22.0, 22.0]]), 0.25, 3, 3, 2, 0)
    close(out, torch.tensor([[[[4.5, 6.5, 8.5], [16.5, 18.5, 20.5], [28.5, 30.5, 32.5]]]]))  # the example of the documentation


def test_gradient_of_regions():
    rois = torch.tensor([[0, 0.0, 0.0, 3.0, 3.0]])
    x, g = rand(1, 1, 4, 4), rand(1, 1, 2, 2)
    found = call("npu::npu_roi_alignbk", g, rois, [1, 1, 4, 4], 2, 2, 1.0, 2, 0)
    close((found * x).sum(), (call("npu::npu_roi_align", x, rois, 1.0, 2, 2, 2, 0) * g).sum())  # the operator is linear, so this is its adjoint


def test_boxes_coded_as_in_the_documentation():
    anchors, truth = torch.tensor([[1.0, 2, 3, 4], [3, 4, 5, 6]]), torch.tensor([[5.0, 6, 7, 8], [7, 8, 9, 6]])
    out = call("npu::npu_bounding_box_encode", anchors, truth, 0, 0, 0, 0, 0.1, 0.1, 0.2, 0.2)
    close(out, torch.tensor([[13.3281, 13.3281, 0.0, 0.0], [13.3281, 6.6641, 0.0, -5.4922]]), atol=2e-2, rtol=1e-2)  # the card gives float16-like digits


def test_boxes_decoded_are_the_boxes_encoded():
    anchors, truth = torch.tensor([[1.0, 2, 9, 8]]), torch.tensor([[5.0, 6, 17, 18]])
    numbers = (0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.2)
    coded = call("npu::npu_bounding_box_encode", anchors, truth, *numbers)
    close(call("npu::npu_bounding_box_decode", anchors, coded, *numbers, [40, 40], 0.016), truth)


# --- cells, losses, convolutions


def test_lstm_cell_and_its_gradient():
    cell = torch.nn.LSTMCell(3, 4)
    x, h, c = rand(2, 3), rand(2, 4), rand(2, 4) * 2
    expected = cell(x, (h, c))
    gates = functional.linear(x, cell.weight_ih), functional.linear(h, cell.weight_hh)
    found = call("aten::_thnn_fused_lstm_cell", *gates, c, cell.bias_ih, cell.bias_hh)
    close(found[:2], tuple(expected))
    other = call("npu::npu_lstm_cell", x, cell.weight_ih, cell.weight_hh, h, c, cell.bias_ih, cell.bias_hh)
    close((other[0], other[2]), tuple(expected))

    def forward(gates, c):
        return call("aten::_thnn_fused_lstm_cell", gates, torch.zeros_like(gates), c)[0]

    def backward(g, gates, c):
        _h, cy, workspace = call("aten::_thnn_fused_lstm_cell", gates, torch.zeros_like(gates), c)
        return call("aten::_thnn_fused_lstm_cell_backward_impl", g, None, c, cy, workspace, True)[:2]

    check_gradient(forward, backward, rand(2, 8), rand(2, 2))


def test_gru_cell():
    cell = torch.nn.GRUCell(3, 4)
    x, h = rand(2, 3), rand(2, 4)
    gates = functional.linear(x, cell.weight_ih), functional.linear(h, cell.weight_hh)
    close(call("aten::_thnn_fused_gru_cell", *gates, h, cell.bias_ih, cell.bias_hh)[0], cell(x, h))


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_gradients_of_losses(reduction):
    name = {0: "none", 1: "mean", 2: "sum"}[reduction]
    a, b = rand(3, 4), rand(3, 4).abs() + 0.1
    check_gradient(lambda x: functional.l1_loss(x, b.double(), reduction=name), lambda g, x: call("npu::l1_loss_backward", g, x, b.double(), reduction), a)
    check_gradient(lambda x: functional.kl_div(x, b.double(), reduction=name), lambda g, x: call("npu::kl_div_backward", g, x, b.double(), reduction), a)
    check_gradient(lambda t: functional.kl_div(a.double(), t, reduction=name), lambda g, t: call("npu::kl_div_target_backward", g, a.double(), t, reduction), b)


def test_cross_entropy_and_its_gradient():
    x, target = rand(4, 5), torch.tensor([0, 3, -100, 2])
    close(call("npu::npu_cross_entropy_loss", x, target)[0], functional.cross_entropy(x, target))
    logs = torch.log_softmax(x, -1)
    vjp = torch.autograd.functional.vjp(lambda y: functional.cross_entropy(y, target), x, torch.tensor(2.0))[1]
    close(call("npu::npu_cross_entropy_loss_backward", torch.tensor(2.0), logs, target), vjp)
    soft = torch.softmax(rand(4, 5) * 2, -1)
    close(call("npu::npu_softmax_cross_entropy_with_logits", x, soft), functional.cross_entropy(x, soft, reduction="none"))
    check_gradient(lambda y: call("npu::npu_softmax_cross_entropy_with_logits", y, soft.double()),
                   lambda g, y: call("npu::npu_softmax_cross_entropy_with_logits_backward", g, y, soft.double()), rand(4, 5))


def test_depthwise_convolution_and_its_gradient():
    x, w = rand(1, 2, 4, 4), rand(2, 1, 3, 3)
    args = [3, 3], None, [1, 1], [1, 1], [1, 1]
    close(call("aten::_conv_depthwise2d", x, w, *args), functional.conv2d(x, w, padding=1, groups=2))
    check_gradient(lambda x, w: functional.conv2d(x, w, padding=1, groups=2),
                   lambda g, x, w: call("npu::_conv_depthwise2d_backward", g, x, w, [3, 3], [1, 1], [1, 1], [1, 1], [True, True]), x, w)


def test_convolutions_of_torch_npu_are_those_of_torch():
    x, w, b = rand(1, 2, 5, 5), rand(4, 2, 3, 3), rand(4)
    close(call("npu::npu_conv2d", x, w, b, [2, 2], [1, 1], [1, 1], 1), functional.conv2d(x, w, b, 2, 1))
    close(call("npu::npu_conv_transpose2d", x, rand(2, 4, 3, 3), b, [1, 1], [1, 1], [2, 2], [1, 1], 1),
          functional.conv_transpose2d(x, rand(2, 4, 3, 3), b, 2, 1, 1))
    check_gradient(lambda x, w: functional.conv2d(x, w, None, 2, 1), lambda g, x, w: call("npu::npu_conv2d_backward", x, g, w, [2, 2], [1, 1], [1, 1], 1,
                                                                                        [True, True, False])[:2], x, w)
    check_gradient(lambda x, w: functional.conv_transpose2d(x, w, None, 2, 1), lambda g, x, w: call(
        "npu::npu_conv_transpose2d_backward", x, g, w, [1, 1], [0, 0], [2, 2], [1, 1], 1, [True, True, False])[:2], rand(1, 2, 3, 3), rand(2, 2, 3, 3))


# --- gradients of aten operators, writes into parts


def test_gradient_of_gather():
    index = torch.tensor([[0, 0, 2], [1, 2, 2]])
    check_gradient(lambda x: x.gather(1, index), lambda g, x: call("npu::npu_gather_backward", g, list(x.shape), 1, index, False), rand(2, 4))


@pytest.mark.parametrize(("repeats", "dim"), [(3, 1), (2, None), (torch.tensor([1, 0, 2, 1]), 1)])
def test_gradient_of_repeat_interleave(repeats, dim):
    name = "npu::repeat_interleave_backward_tensor" if isinstance(repeats, torch.Tensor) else "npu::repeat_interleave_backward_int"
    check_gradient(lambda x: x.repeat_interleave(repeats, dim), lambda g, x: call(name, g, x, repeats, dim), rand(2, 4))


def test_gradient_of_renorm():
    check_gradient(lambda x: torch.renorm(x, 2, 0, 1.0), lambda g, x: call("npu::npu_renorm_backward", g, x, 2, 0, 1.0), rand(3, 4))


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_gradient_of_cross_entropy_of_logits(reduction):
    target, weight, positive = rand(3, 4).sigmoid().double(), rand(4).abs().double(), rand(4).abs().double() * 2
    check_gradient(lambda x: functional.binary_cross_entropy_with_logits(x, target, weight, pos_weight=positive, reduction=("none", "mean", "sum")[reduction]),
                   lambda g, x: call("npu::npu_binary_cross_entropy_with_logits_backward", g, x, target, weight, positive, reduction), rand(3, 4))


@pytest.mark.parametrize("size", [5, 6])
def test_gradients_of_real_transforms(size):
    x = rand(2, size).double()
    spectrum = torch.fft.rfft(x)
    grad = torch.complex(rand(2, spectrum.shape[1]), rand(2, spectrum.shape[1]) * 2).to(torch.complex128)
    close(call("npu::fft_r2c_backward", grad, [1], 0, True, size), torch.autograd.functional.vjp(torch.fft.rfft, x, grad)[1])
    g = rand(2, size).double()
    back = torch.autograd.functional.vjp(lambda s: torch.fft.irfft(s, size, norm="forward"), spectrum, g)[1]
    close(call("npu::fft_c2r_backward", g, [1], 0), back)


def test_gradients_of_slow_convolutions():
    mask = [True, True, False]
    check_gradient(lambda x, w: functional.conv2d(x, w, None, 1, 1, 2), lambda g, x, w: call("npu::slow_conv_dilated2d_backward", g, x, w, [2, 2], [1, 1], [1, 1], [2, 2],
                                                                                           mask)[:2], rand(1, 2, 3, 3), rand(2, 2, 2, 2))
    check_gradient(lambda x, w: functional.conv_transpose2d(x, w, None, 2, 1), lambda g, x, w: call(
        "npu::slow_conv_transpose2d_backward", g, x, w, [3, 3], [2, 2], [1, 1], [0, 0], [1, 1], mask)[:2], rand(1, 2, 3, 3), rand(2, 2, 3, 3))


def test_writes_into_parts_of_a_tensor():
    x = torch.zeros(4, 3)
    rows = torch.tensor([[1], [3]])
    close(call("npu::npu_scatter_nd_update", x, rows, torch.ones(2, 3)), torch.tensor([[0.0] * 3, [1.0] * 3] * 2))
    call("npu::npu_scatter_nd_update_", x, rows, torch.ones(2, 3))
    close(x, torch.tensor([[0.0] * 3, [1.0] * 3] * 2))
    close(call("npu::npu_scatter", x, torch.tensor([0, 1, 2, 0]), torch.full((4,), 5.0), 1)[0], torch.tensor([5.0, 0, 0]))
    close(call("npu::_npu_index_add", x, torch.tensor([0, 0]), torch.ones(2, 3))[0], torch.full((3,), 2.0))
    call("npu::_npu_index_add_", x, torch.tensor([0]), torch.ones(1, 3), alpha=4)
    close(x[0], torch.full((3,), 4.0))
    close(call("npu::one_", torch.zeros(2)), torch.ones(2))
    close(call("npu::copy_memory_", torch.zeros(2), torch.tensor([1.0, 2])), torch.tensor([1.0, 2]))


def test_cache_is_written_from_each_position_on():
    cache, new = torch.zeros(2, 1, 5, 2), rand(2, 1, 2, 2)
    out = call("npu::scatter_update", cache, torch.tensor([1, 3]), new, -2)
    close((out[0, :, 1:3], out[1, :, 3:5], out.count_nonzero()), (new[0], new[1], new.count_nonzero()))
    call("npu::scatter_update_", cache, torch.tensor([1, 3]), new, -2)
    close(cache, out)


# --- arithmetic and registry


@pytest.mark.parametrize(("soc", "mode", "expected"), [("Ascend910B2", None, False), ("Ascend910B2", "0", True), ("Ascend910A", None, True), ("Ascend310P3", "1", True),
                                                       ("Ascend910_9391", None, False)])
def test_which_chip_saturates(soc, mode, expected):
    assert saturates(soc, {} if mode is None else {"INF_NAN_MODE_ENABLE": mode}) is expected


def test_saturation_bounds_float16():
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0], dtype=torch.float16)
    assert saturate(x).tolist() == [65504.0, -65504.0, 0.0, 1.0]


def test_operator_is_found_under_either_namespace():
    assert reference("aten::npu_swiglu.default") is reference("npu::npu_swiglu")


def test_every_reference_says_what_it_computes():
    assert [n for n, f in operators().items() if not f.__doc__] == []
