"""Rewrites over drawn sizes, settings and values (NaN and infinities for those that only move elements), and over whole models of transformers. The right values are eager's."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rewrite_cases import Call
from torch import nn
from torch.nn import functional as F

from npulift import graphs, rewrites
from npulift.changes import Variant
from npulift.model import Dim, ModelSpec

TOOLS = Path(__file__).resolve().parents[2] / "tools"
BY_NAME = {m.REWRITE.name: m.REWRITE for m in rewrites.rewrites() if hasattr(m, "REWRITE")}
draws = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
sizes = st.integers(1, 13)


def agrees(name, function, *inputs, exact=False, must=True, layers=()):
    module = Call(function, *layers).eval()
    changed = BY_NAME[name].apply(Variant(ModelSpec(module, inputs), "cpu"))
    if changed is None:
        assert not must, "it did not match"
        return
    wanted, got = module(*inputs), changed.module(*inputs)
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(got, wanted, equal_nan=True, **tolerance)


def odd_values(*shape):
    """Normal numbers with a NaN, both infinities, a huge and a tiny one among them."""
    x = torch.randn(*shape)
    flat = x.view(-1)
    for i, v in enumerate((float("nan"), float("inf"), -float("inf"), 3e38, 1e-44, -0.0)):
        if i < flat.numel():
            flat[(i * 7) % flat.numel()] = v
    return x


@draws
@given(sizes, sizes, sizes, sizes, st.sampled_from(["bilinear", "bicubic"]), st.booleans(), st.booleans())
def test_any_resize_is_two_products(h, w, height, width, mode, corners, antialias):
    agrees("resize-as-matmul", lambda s, x: F.interpolate(x, (height, width), mode=mode, align_corners=corners, antialias=antialias), torch.randn(2, 3, h, w),
           must=not (antialias and 1 in (h, w, height, width)))


@draws
@given(sizes, st.floats(0.3, 5.0), st.booleans(), st.sampled_from([True, False, None]))
def test_any_scale_factor_is_a_product(n, factor, corners, recompute):
    if int(n * factor) > 0:
        agrees("resize-as-matmul", lambda s, x: F.interpolate(x, scale_factor=factor, mode="linear", align_corners=corners, recompute_scale_factor=recompute), torch.randn(1, 2, n))


@draws
@given(sizes, sizes, sizes, sizes)
def test_any_adaptive_pooling_has_fixed_windows(h, w, height, width):
    agrees("adaptive-pool-as-fixed", lambda s, x: F.adaptive_avg_pool2d(x, (height, width)), torch.randn(1, 2, h, w), must=(height, width) not in ((1, 1), (h, w)))


@draws
@given(sizes, sizes, st.integers(-30, 30), st.integers(-30, 30))
def test_any_roll_moves_the_same_elements(h, w, down, right):
    agrees("roll-as-slices", lambda s, x: x.roll((down, right), (0, -1)), odd_values(h, w), exact=True)


@draws
@given(st.integers(5, 11), st.integers(5, 11), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(1, 3))
def test_any_unfold_moves_the_same_elements(h, w, kh, kw, dilation, padding, stride):
    agrees("unfold-as-slices", lambda s, x: F.unfold(x, (kh, kw), dilation, padding, stride), odd_values(2, 3, h, w), exact=True)


@draws
@given(st.permutations("abcd"), st.permutations("bcef"), st.permutations("abef"), st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 4)))
def test_any_einsum_of_two_is_a_product(left, right, out, dims):
    left, right = [c for c in left if c != "d"], list(right)
    a, b = (torch.randn([dims.get(c, 3) for c in letters]) for letters in (left, right))
    agrees("einsum-as-matmul", lambda s, x, y: torch.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", x, y), a, b)


@draws
@given(st.integers(1, 5), st.integers(1, 4), st.integers(3, 5), st.integers(1, 5), st.integers(0, 2), st.integers(0, 2))
def test_any_transposed_convolution_of_large_stride_is_a_convolution(h, w, stride, kernel, padding, extra):
    if padding < kernel and extra < stride and (h - 1) * stride - 2 * padding + kernel + extra > 0 and (w - 1) * stride - 2 * padding + kernel + extra > 0:
        layer = nn.ConvTranspose2d(4, 6, kernel, stride, padding, extra, groups=2)
        agrees("transposed-conv-as-conv", lambda s, x: s.layers[0](x), torch.randn(2, 4, h, w), layers=(layer,))


@draws
@given(st.integers(0, 3), sizes, sizes)
def test_moves_keep_odd_values_in_an_empty_or_small_batch(batch, h, w):
    x = odd_values(batch, 4, h, w)
    agrees("cancel-transposes", lambda s, x: x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2), x, exact=True)
    agrees("cancel-splits", lambda s, x: torch.cat(x.chunk(2, 1), 1) + 1, x, exact=True)
    agrees("glu-as-parts", lambda s, x: F.glu(x, 1), x, exact=True)
    agrees("join-casts", lambda s, x: x.double().float() + 1, x, exact=True)
    agrees("remove-identity", lambda s, x: x.clone().reshape(x.shape).relu(), x, exact=True)
    agrees("activation-forms", lambda s, x: x.clamp(0, 6) + x.clamp(min=0), x, exact=True)


@draws
@given(st.integers(1, 9), st.floats(-3, 3), st.floats(-3, 3), st.floats(0.1, 9), st.integers(0, 2))
def test_any_constants_around_a_layer_fold_into_it(channels, scale, shift, divisor, padding):
    layer = nn.Conv2d(channels, 2 * channels, 3, padding=padding, groups=channels)
    agrees("fold-scale", lambda s, x: (s.layers[0](x) * scale + shift) / divisor, torch.randn(1, channels, 4, 5), layers=(layer,))
    agrees("fold-input-scale", lambda s, x: s.layers[0]((x - shift) / divisor), torch.randn(1, channels, 4, 5), layers=(layer,))


class InPlace(nn.Module):
    """Writes in place as users do: relu_, +=, slices, and a view taken before."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)), inplace=True)
        before = y[:, 0]
        y += 1
        z = torch.zeros(2, 4)
        z[:, 1] = y.mean((1, 2, 3))
        z[0] *= 2
        return y, before + 1, z, z.clone().add_(1)


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_model_that_writes_in_place_keeps_its_values(name):
    spec = ModelSpec(InPlace().eval(), (torch.randn(2, 3, 6, 6),))
    changed = BY_NAME[name].apply(Variant(spec, "cpu"))
    for x in (torch.randn(2, 3, 6, 6), torch.zeros(2, 3, 6, 6)):
        for got, wanted in zip(changed.module(x) if changed else (), spec.module(x), strict=False):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_relu_in_place_becomes_relu_so_that_patterns_see_it():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True), nn.Dropout(), nn.ReLU6(inplace=True)).eval()
    graph = graphs.graph_module(ModelSpec(module, (torch.randn(1, 3, 2, 2),)))
    assert not any(graphs.is_mutable(n) for n in graph.graph.nodes)


class Decoder(nn.Module):
    """A decoder block spelled out: RMS norm, rotary embedding, grouped heads, scattered attention, SwiGLU."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads, self.weight = heads, nn.Parameter(torch.rand(width) + 0.5)
        self.q, self.k, self.v, self.gate, self.up = (nn.Linear(width, width, bias=False) for _ in range(5))

    def forward(self, x, cos, sin):
        b, s, c = x.shape
        y = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        q, k, v = (p(y).view(b, s, self.heads, c // self.heads).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat((-t[..., t.shape[-1] // 2 :], t[..., : t.shape[-1] // 2]), -1) * sin for t in (q, k))
        x = x + ((q @ k.transpose(2, 3) * (c // self.heads) ** -0.5).softmax(-1) @ v).transpose(1, 2).reshape(b, s, c)
        return F.silu(self.gate(x)) * self.up(x)


FUSED = ("rms-norm", "fused-rms-norm", "fused-rotary", "fused-swiglu", "scattered-attention")


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_scattered_decoder_block_becomes_the_fused_operators(dynamic):
    dims = {0: {0: Dim("batch", 1, 8), 1: Dim("length", 2, 64)}, 1: {2: Dim("length", 2, 64)}, 2: {2: Dim("length", 2, 64)}} if dynamic else {}
    inputs = (torch.randn(2, 6, 16), torch.randn(1, 1, 6, 8), torch.randn(1, 1, 6, 8))
    spec = ModelSpec(Decoder().eval(), inputs, dynamic_dims=dims)
    variant = Variant(spec, "cpu")
    for name in FUSED:
        variant = BY_NAME[name].apply(variant) or variant
    names = [graphs.operator_name(n.target) for n in variant.module.graph.nodes if n.op == "call_function"]
    kept = {n for n in names if n.startswith("npulift::") or "attention" in n}
    assert kept == {"npulift::rms_norm.default", "npulift::rotary_mul.default", "npulift::swiglu.default", "aten::scaled_dot_product_attention.default"}
    torch.testing.assert_close(variant.module(*inputs), spec.module(*inputs), rtol=1e-4, atol=1e-5)
    graphs.export(variant.spec)


def sweep_tools():
    sys.path.insert(0, str(TOOLS))
    import ascend_architectures
    import rewrites_page

    return ascend_architectures, rewrites_page


@pytest.mark.parametrize("name", ["bert", "convnext", "llama", "segformer", "swin"])
def test_every_rewrite_alone_and_in_a_row_keeps_a_transformers_model(name):
    architectures, page = sweep_tools()
    counts, trouble = page.try_all(*architectures.build(name))
    assert trouble == []
    assert counts


@pytest.mark.slow
def test_every_rewrite_keeps_every_architecture():
    architectures, page = sweep_tools()
    found = {}
    for name in architectures.ARCHITECTURES:
        try:
            module, inputs = architectures.build(name)
            graphs.export(ModelSpec(module, inputs))
        except Exception:
            continue
        found[name] = page.try_all(module, inputs)[1]
    assert {n: t for n, t in found.items() if t and "random outputs" not in t[0]} == {}
    assert len(found) >= 40
