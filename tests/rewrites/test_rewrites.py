"""Every rewrite: what it matches, that values stay, that it leaves alone what it is not for. The right values are eager's."""

import copy
import math
import warnings

import pytest
import torch
from rewrite_cases import MORE, MORE_NEAR_MISSES, Call
from torch import nn
from torch.nn import functional as F

from npulift import rewrites
from npulift.changes import Variant
from npulift.graphs import export, operator_name
from npulift.model import ModelSpec

BY_NAME = {m.REWRITE.name: m.REWRITE for m in rewrites.rewrites() if hasattr(m, "REWRITE")}


def lively(module):
    """Batch norms with statistics that matter."""
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            for t, low, high in ((m.running_mean, -1, 1), (m.running_var, 0.3, 2), (m.weight, 0.5, 1.5), (m.bias, -1, 1)):
                if t is not None:
                    nn.init.uniform_(t, low, high)
    return module.eval()


def gelu_forms():
    root = 1.4142135623730951
    return [
        lambda s, x: x * 0.5 * (1.0 + torch.erf(x / root)), lambda s, x: 0.5 * x * (1.0 + torch.erf(x / root)), lambda s, x: x * (torch.erf(x / root) + 1.0) * 0.5,
        lambda s, x: 0.5 * (x * (1 + torch.erf(x * math.sqrt(0.5)))), lambda s, x: x * (1 + torch.erf(x / root)) / 2,
    ]


def attention(s, q, k, v):
    return (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1) @ v


def masked_attention(s, q, k, v, mask):
    scores = torch.matmul(q * 0.25, k.transpose(2, 3)) + mask
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def rms(s, x):
    y = x.float()
    return s.weight * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def qkv_chunk(s, x):
    q, k, v = s.layers[0](x).chunk(3, -1)
    return q * k + v


def qkv_permute(s, x):
    b, n, c = x.shape
    q, k, v = s.layers[0](x).view(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
    return q * k + v


def shifts(s, x):
    return torch.stack([(x >> (s.order[j] * 4)) & 15 for j in range(4)], -1)


def norm_and_skip(s, x):
    y = s.layers[0](x)
    return s.layers[1](y) + y


R = torch.randn
IMAGE = (R(2, 3, 9, 12),)
CASES = {
    "fold-batch-norm": [
        (lively(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())), IMAGE), (lively(nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, bias=False), nn.BatchNorm2d(6, affine=False))), IMAGE),
        (lively(nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2, groups=2), nn.BatchNorm2d(6))), (R(1, 4, 5, 5),)), (lively(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))), (R(4, 5),)),
        (lively(nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4))), (R(2, 3, 9),)), (lively(nn.Sequential(nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4))), (R(1, 2, 4, 4, 4),)),
    ],
    "remove-identity": [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.ReLU(), nn.Identity()).eval(), (R(2, 4),)), (Call(lambda s, x: x.relu().clone().reshape(x.shape).contiguous() + 0), (R(2, 4),)),
        (Call(lambda s, x: (x * 1)[:, :].permute(0, 1).to(torch.float32).sin()), (R(3, 4),)),
    ],
    "fold-constants": [
        (Call(lambda s, x: x + F.interpolate(s.table, size=(6, 6), mode="bicubic"), table=R(1, 3, 4, 4)), (R(1, 3, 6, 6),)),
        (Call(lambda s, x: x.masked_fill(torch.triu(torch.ones(5, 5), 1).bool(), -9.0)), (R(2, 5, 5),)), (Call(lambda s, x: x * torch.arange(7).float().div(7).cos()), (R(2, 7),)),
    ],
    "merge-duplicates": [
        (Call(lambda s, x: x.sin() + x.sin() * 2), (R(3, 4),)), (Call(lambda s, x: (x @ s.w).relu() - (x @ s.w).relu().sum(), w=R(4, 4)), (R(3, 4),)),
        (Call(lambda s, x: torch.cat([x.exp().log1p(), x.exp()], 1)), (R(2, 3),)),
    ],
    "erf-gelu": [(Call(f), (R(3, 8),)) for f in gelu_forms()],
    "resize-as-matmul": [
        (Call(lambda s, x: F.interpolate(x, scale_factor=1.7, mode="bicubic", align_corners=True)), IMAGE), (Call(lambda s, x: F.interpolate(x, scale_factor=1.7, mode="bilinear")), IMAGE),
        (Call(lambda s, x: F.interpolate(x, size=(5, 7), mode="bilinear", antialias=True)), IMAGE), (Call(lambda s, x: F.interpolate(x, scale_factor=30.0, mode="linear")), (R(1, 4, 9),)),
        (Call(lambda s, x: F.interpolate(x, size=(20, 5), mode="bicubic", antialias=True)), IMAGE), (Call(lambda s, x: F.interpolate(x, size=(1, 1), mode="bilinear", align_corners=True)), IMAGE),
    ],
    "resize-sized": [
        (Call(lambda s, x: F.interpolate(x, scale_factor=2.0, mode="bilinear")), IMAGE), (Call(lambda s, x: F.interpolate(x, scale_factor=3, mode="nearest")), IMAGE),
        (Call(lambda s, x: F.interpolate(x, scale_factor=1.7, mode="bilinear", align_corners=True)), IMAGE),
    ],
    "scattered-attention": [
        (Call(attention), (R(2, 4, 5, 8), R(2, 4, 6, 8), R(2, 4, 6, 8))), (Call(masked_attention), (R(2, 2, 5, 8), R(2, 2, 5, 8), R(2, 2, 5, 8), R(1, 1, 5, 5))),
        (Call(lambda s, q, k, v: torch.bmm(torch.softmax(torch.bmm(q, k) * 0.3, 2), v)), (R(3, 5, 8), R(3, 8, 6), R(3, 6, 8))),
    ],
    "rms-norm": [
        (Call(rms, weight=R(8)), (R(2, 5, 8),)), (Call(rms, weight=R(8)), (R(2, 5, 8).half(),)), (Call(lambda s, x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)), (R(4, 8),)),
        (Call(rms, weight=R(8).bfloat16()), (R(2, 8).bfloat16(),)),
    ],
    "split-qkv": [
        (Call(qkv_chunk, nn.Linear(6, 18)), (R(2, 4, 6),)), (Call(qkv_permute, nn.Linear(6, 18)), (R(2, 4, 6),)), (Call(qkv_chunk, nn.Linear(6, 12, bias=False)), (R(3, 6),)),
    ],
    "merge-linears": [
        (Call(lambda s, x: s.layers[0](x) * s.layers[1](x), nn.Linear(4, 6), nn.Linear(4, 6)), (R(2, 3, 4),)),
        (Call(lambda s, x: F.silu(s.layers[0](x)) * s.layers[1](x) + s.layers[2](x), *[nn.Linear(4, 5, bias=False) for _ in range(3)]), (R(2, 4),)),
        (Call(lambda s, x: torch.cat([s.layers[0](x), s.layers[1](x)], -1), nn.Linear(4, 2), nn.Linear(4, 7)), (R(5, 4),)),
    ],
    "cancel-transposes": [
        (Call(lambda s, x: x.permute(0, 2, 3, 1).relu().mul(2).permute(0, 3, 1, 2)), IMAGE), (Call(lambda s, x: x.transpose(1, 2).transpose(2, 3).sin()), IMAGE),
        (Call(lambda s, x: F.gelu(x.transpose(1, 3)).transpose(1, 3) + 1), IMAGE),
    ],
    "mean-as-pooling": [(Call(lambda s, x: x.mean((2, 3))), IMAGE), (Call(lambda s, x: x.mean((-1, -2), keepdim=True)), IMAGE), (nn.AdaptiveAvgPool2d(1), IMAGE)],
    "split-mean": [(Call(lambda s, x: x.mean((1, 2), keepdim=True)), (R(1, 256, 300),)), (Call(lambda s, x: x.mean((0, 2))), (R(300, 2, 256),)), (Call(lambda s, x: x.mean((1, 2, 3))), (R(2, 64, 32, 40),))],
    "conv-patches-as-linear": [
        (nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4)), (R(2, 3, 4, 8, 8),)), (nn.Conv3d(3, 8, (2, 14, 14), (2, 14, 14), bias=False), (R(5, 3, 2, 14, 14),)), (nn.Conv1d(2, 4, 5, 5), (R(3, 2, 20),)),
    ],
    "split-grouped-conv": [(nn.Conv3d(6, 6, 3, padding=1, groups=3), (R(1, 6, 4, 5, 5),)), (nn.Conv3d(4, 8, 2, groups=2, bias=False), (R(2, 4, 3, 3, 3),)), (nn.Conv3d(8, 8, 3, 2, 1, groups=4), (R(1, 8, 5, 5, 5),))],
    "constant-index": [(Call(lambda s, x: x[:, [0, 3, 5]]), (R(2, 6, 4),)), (Call(lambda s, x: x[..., s.rows], rows=torch.tensor([1, -1])), (R(2, 3, 5),)), (Call(lambda s, x: x[s.rows], rows=torch.tensor([2, 0, 2])), (R(3, 4),))],
    "not-as-compare": [(Call(lambda s, x: x.masked_fill(~(x > 0), 2.0)), (R(3, 4),)), (Call(lambda s, x: torch.logical_not(x > 0.5) * x), (R(3, 4),)), (Call(lambda s, x, m: x * ~m), (R(3), torch.tensor([True, False, True])))],
    "constant-shift": [
        (Call(shifts, order=torch.tensor([0, 2, 1, 3])), (torch.randint(0, 2**20, (3, 4)),)), (Call(lambda s, x: x << s.n, n=torch.tensor(3)), (torch.randint(0, 99, (4,)),)),
        (Call(lambda s, x: torch.bitwise_right_shift(x, s.n), n=torch.tensor(2)), (torch.randint(0, 99, (4,)),)),
    ],
    "cumsum-as-matmul": [(Call(lambda s, x: x.cumsum(-1)), (R(2, 5, 9),)), (Call(lambda s, x: x.cumsum(1)), (R(2, 9, 3),)), (Call(lambda s, x: x.cumsum(0)), (R(7, 3),))],
    "transposed-conv-as-conv": [
        (nn.ConvTranspose2d(3, 1, 5, stride=3, padding=2), (R(1, 3, 4, 4),)), (nn.ConvTranspose2d(4, 6, 4, stride=(4, 2), padding=1, output_padding=(1, 0), groups=2), (R(2, 4, 3, 5),)),
        (nn.ConvTranspose2d(2, 2, 2, stride=3, bias=False), (R(1, 2, 4, 4),)),
    ],
    "nearest-as-transposed-conv": [(nn.Upsample(scale_factor=2), IMAGE), (Call(lambda s, x: F.interpolate(x, size=(27, 24))), IMAGE), (Call(lambda s, x: F.interpolate(x, scale_factor=(1, 4))), IMAGE)],
    "float64-to-float32": [
        (Call(lambda s, x: x * torch.arange(x.shape[1], dtype=torch.float64).mul(0.1).cos().float()), (R(2, 16),)), (Call(lambda s, x: (x.double() * 3).float()), (R(3),)),
        (Call(lambda s, x: x + s.table.sin().float(), table=torch.rand(4, dtype=torch.float64)), (R(2, 4),)),
    ],
    "finite-mask": [
        (Call(lambda s, x: x.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf")).softmax(-1)), (R(2, 5, 5),)),
        (Call(lambda s, x, m: (x + torch.zeros(5, 5).masked_fill(m, float("-inf"))).softmax(-1)), (R(2, 5, 5), torch.ones(5, 5).triu(1).bool())),
        (Call(lambda s, x: (x + torch.full((5, 5), float("-inf")).triu(1)).softmax(-1)), (R(5, 5),)),
    ],
}
CASES |= {name: [(lively(module.eval()), inputs) for module, inputs in cases] for name, cases in MORE.items()}
FLAT = [(name, i) for name, cases in CASES.items() for i in range(len(cases))]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 2e-2}


def close(got, wanted, tolerance=None):
    warnings.simplefilter("ignore")
    if not isinstance(wanted, torch.Tensor):
        for one, other in zip(got, wanted, strict=True):
            close(one, other, tolerance)
        return
    dtype = wanted.dtype if wanted.is_floating_point() else torch.float32
    limit = tolerance or TOLERANCE.get(dtype, 2e-5)
    torch.testing.assert_close(got, wanted, atol=limit * max(1.0, float(wanted.abs().max()) if wanted.numel() else 1.0), rtol=limit, equal_nan=True)


def rewritten(name, module, inputs):
    spec = ModelSpec(module.eval(), inputs)
    variant = Variant(spec, "cpu")
    return BY_NAME[name].apply(variant), variant


def test_every_rewrite_has_cases_on_at_least_three_models():
    assert {n for n in BY_NAME if len(CASES.get(n, ())) < 3} == set()


@pytest.mark.parametrize(("name", "index"), FLAT, ids=[f"{n}-{i}" for n, i in FLAT])
def test_values_stay_on_the_example_and_on_edge_inputs(name, index):
    module, inputs = CASES[name][index]
    wanted = copy.deepcopy(module).eval()
    changed, _variant = rewritten(name, module, inputs)
    assert changed is not None, "it did not match"
    limit = 3e-6 if name == "float64-to-float32" else None
    for make in (lambda t: t, torch.zeros_like, lambda t: t * 1e3, lambda t: t * 1e-4, lambda t: t.flip(0)):
        given = tuple(make(t).to(t.dtype) if t.is_floating_point() else t for t in inputs)
        close(changed.module(*given), wanted(*given), limit)


@pytest.mark.parametrize(("name", "index"), FLAT, ids=[f"{n}-{i}" for n, i in FLAT])
def test_it_is_idempotent_exports_again_and_leaves_the_users_module_alone(name, index):
    module, inputs = CASES[name][index]
    before = {k: v.clone() for k, v in module.state_dict().items()}
    changed, _variant = rewritten(name, module, inputs)
    assert BY_NAME[name].apply(changed) is None
    export(changed.spec)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_model_that_it_is_not_for_is_left_untouched(name):
    module, inputs = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (R(2, 4),)
    changed, _variant = rewritten(name, module, inputs)
    assert changed is None


@pytest.mark.parametrize("name", ["fold-batch-norm", "remove-identity", "erf-gelu", "cancel-transposes", "scattered-attention", "merge-duplicates"])
def test_non_contiguous_and_channels_last_inputs_work(name):
    module, inputs = CASES[name][0]
    wanted = copy.deepcopy(module).eval()
    changed, _variant = rewritten(name, module, inputs)
    for make in (lambda t: t.transpose(0, -1).contiguous().transpose(0, -1), lambda t: t.to(memory_format=torch.channels_last) if t.ndim == 4 else t):
        given = tuple(make(t) for t in inputs)
        close(changed.module(*given), wanted(*given))


NEAR_MISSES = [
    ("erf-gelu", Call(lambda s, x: x * 0.5 * (1.0 + torch.erf(x / 1.5))), (R(4),)),
    ("erf-gelu", Call(lambda s, x: x * 0.4 * (1.0 + torch.erf(x / 1.4142135623730951))), (R(4),)),
    ("erf-gelu", Call(lambda s, x, y: y * 0.5 * (1.0 + torch.erf(x / 1.4142135623730951))), (R(4), R(4))),
    ("fold-batch-norm", Call(norm_and_skip, nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)), IMAGE),
    ("scattered-attention", Call(lambda s, q, k, v: (q @ k.transpose(-1, -2)).softmax(-2) @ v), (R(2, 4, 8), R(2, 4, 8), R(2, 4, 8))),
    ("cancel-transposes", Call(lambda s, x, y: (x.transpose(1, 2) + y).transpose(1, 2)), (R(2, 3, 4), R(2, 4, 3))),
    ("merge-duplicates", Call(lambda s, x: torch.rand_like(x) * 0 + torch.rand_like(x) * 0 + x), (R(3),)),
    ("conv-patches-as-linear", nn.Conv3d(3, 4, 2, 2, padding=1), (R(1, 3, 4, 4, 4),)),
    ("split-grouped-conv", nn.Conv3d(4, 4, 3, groups=4), (R(1, 4, 4, 4, 4),)),
    ("resize-sized", Call(lambda s, x: F.interpolate(x, scale_factor=1.7, mode="bilinear")), IMAGE),
    ("rms-norm", Call(lambda s, x: x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-5)), (R(4, 8),)),
    ("not-as-compare", Call(lambda s, x: ~x), (torch.arange(4),)),
    ("split-mean", Call(lambda s, x: x.mean((1, 2))), (R(1, 16, 40),)),
    *MORE_NEAR_MISSES,
]


@pytest.mark.parametrize("index", range(len(NEAR_MISSES)), ids=[f"{n}-{i}" for i, (n, _m, _x) in enumerate(NEAR_MISSES)])
def test_what_only_looks_like_it_is_not_touched(index):
    name, module, inputs = NEAR_MISSES[index]
    changed, _variant = rewritten(name, module, inputs)
    assert changed is None


def test_dims_that_vary_do_not_trip_any_rewrite():
    from npulift.model import Dim

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.norm = *(nn.Linear(8, 8) for _ in range(3)), nn.LayerNorm(8)

        def forward(self, x):
            y = self.norm(x)
            scores = (self.q(y) @ self.k(y).transpose(-1, -2) / 8**0.5).softmax(-1)
            return (x + scores @ self.v(y)).reshape(x.shape).mean(1)

    spec = ModelSpec(Block().eval(), (R(3, 6, 8),), dynamic_dims={0: {0: Dim("batch", 1, 16), 1: Dim("length", 2, 64)}})
    for rewrite in BY_NAME.values():
        changed = rewrite.apply(Variant(spec, "cpu"))
        for x in (R(3, 6, 8), R(5, 11, 8)):
            if changed is not None:
                close(changed.module(x), spec.module(x))


def test_the_fused_form_is_really_there():
    module, inputs = CASES["scattered-attention"][0]
    changed, _variant = rewritten("scattered-attention", module, inputs)
    names = [operator_name(n.target) for n in changed.module.graph.nodes if n.op == "call_function"]
    assert "aten::scaled_dot_product_attention.default" in names
    assert not any("softmax" in n for n in names)
