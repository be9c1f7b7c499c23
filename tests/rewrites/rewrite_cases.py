"""Small models for the rewrites of forms, layouts and arithmetic: a list of (module, inputs) for each, and what only looks like it."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Call(nn.Module):
    """A function as a module, with its constants as buffers."""

    def __init__(self, function, *layers, **buffers):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *args):
        return self.function(self, *args)


R = torch.randn
IMAGE = (R(2, 3, 9, 12),)
C = math.sqrt(2 / math.pi)


def spelled_norm(s, x):
    mean = x.mean(-1, keepdim=True)
    return s.w * (x - mean) / torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-6) + s.b


def spelled_norm_product(s, x):
    centred = x - x.mean(-1, keepdim=True)
    return (centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)) * s.w + s.b


def spelled_norm_var(s, x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


def complex_rotary(s, q, angles):
    z = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
    return torch.view_as_real(z * torch.polar(torch.ones_like(angles), angles)).flatten(3).type_as(q)


def complex_constant(s, x):
    z = torch.view_as_complex(x.view(2, 5, 4, 2))
    return torch.view_as_real(z * s.table[None, :5]).reshape(x.shape)


def complex_misc(s, a, b):
    z = torch.complex(a, b)
    y = (z.conj() * z + z[:, :1] * 2.0).transpose(0, 1)
    return y.real, y.imag, y.abs()


def repeat_kv(x, n):
    b, h, s, d = x.shape
    return x[:, :, None, :, :].expand(b, h, n, s, d).reshape(b, h * n, s, d)


def grouped(s, q, k, v):
    return F.scaled_dot_product_attention(q, repeat_kv(k, 2), repeat_kv(v, 2))


def heads(s, q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


def rotate_half(x):
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def rotary(s, q, cos, sin):
    return q * cos + rotate_half(q) * sin


def split_of_cat(s, x, y):
    a, b = torch.cat([x, y], 1).split([2, 3], 1)
    return a.sin() * b.sum()


def halves(s, x):
    gate, up = s.layers[0](x).chunk(2, -1)
    return F.silu(gate) * up


def halves_swapped(s, x):
    up, gate = s.layers[0](x).chunk(2, -1)
    return F.silu(gate) * up


def used_twice(s, x):
    y = s.layers[0](x)
    return y * 2 + y.sum()


MASKED = Call(lambda s, q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m))
MORE = {
    "tanh-gelu": [
        (Call(lambda s, x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))), (R(3, 8),)),
        (Call(lambda s, x: x * 0.5 * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))), (R(3, 8),)),
        (Call(lambda s, x: (1 + torch.tanh(C * (0.044715 * x**3 + x))) * x / 2), (R(3, 8),)),
    ],
    "activation-forms": [
        (Call(lambda s, x: x * torch.sigmoid(x)), (R(9),)), (Call(lambda s, x: x * torch.tanh(F.softplus(x))), (R(9),)), (Call(lambda s, x: x * F.relu6(x + 3) / 6), (R(99) * 4,)),
        (Call(lambda s, x: F.relu6(x + 3.0) * (1 / 6)), (R(99) * 4,)), (Call(lambda s, x: x * ((x + 3).clamp(0, 6) / 6)), (R(99) * 4,)), (Call(lambda s, x: x.clamp(0, 6)), (R(9) * 5,)),
        (Call(lambda s, x: x.clamp(min=0)), (R(9),)), (nn.Hardtanh(0.0, 6.0), (R(9) * 5,)),
    ],
    "fold-scale": [
        (Call(lambda s, x: s.layers[0](x) * s.g, nn.Linear(4, 6), g=R(6)), (R(2, 3, 4),)), (Call(lambda s, x: 3 - s.layers[0](x) / 2, nn.Conv2d(3, 4, 3, padding=1)), IMAGE),
        (Call(lambda s, x: s.g * s.layers[0](x) + s.t, nn.Conv2d(3, 6, 3, groups=3, bias=False), g=R(6, 1, 1), t=R(1, 6, 1, 1)), IMAGE),
        (Call(lambda s, x: s.layers[0](x) + s.t, nn.Linear(4, 6, bias=False), t=R(6)), (R(4),)),
    ],
    "fold-input-scale": [
        (Call(lambda s, x: s.layers[0]((x - s.m) / s.d), nn.Conv2d(3, 4, 3), m=R(1, 3, 1, 1), d=torch.rand(3, 1, 1) + 0.5), IMAGE),
        (Call(lambda s, x: s.layers[0](x / 255.0), nn.Conv2d(3, 6, 3, padding=1, groups=3)), IMAGE), (Call(lambda s, x: s.layers[0](1 - x * s.g), nn.Linear(4, 3, bias=False), g=R(4)), (R(2, 4),)),
    ],
    "join-layers": [
        (nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), (R(2, 4),)), (nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1, bias=False)), IMAGE),
        (nn.Sequential(nn.Linear(4, 9, bias=False), nn.Linear(9, 5, bias=False), nn.ReLU()), (R(2, 3, 4),)),
    ],
    "layer-norm": [(Call(spelled_norm, w=R(8), b=R(8)), (R(2, 5, 8),)), (Call(spelled_norm_product, w=R(8), b=R(8)), (R(3, 8),)), (Call(spelled_norm_var), (R(2, 3, 8),))],
    "complex-as-real": [
        (Call(complex_rotary), (R(1, 2, 3, 8), R(3, 4))), (Call(complex_constant, table=torch.randn(7, 4, dtype=torch.complex64)), (R(2, 5, 8),)), (Call(complex_misc), (R(3, 4), R(3, 4))),
    ],
    "cancel-splits": [
        (Call(lambda s, x: torch.cat(x.chunk(3, 1), 1).sin()), (R(2, 6),)), (Call(lambda s, x: torch.stack(x.unbind(1), 1) * 2), (R(2, 3, 4),)),
        (Call(split_of_cat), (R(2, 2), R(2, 3))),
    ],
    "join-casts": [
        (Call(lambda s, x: x.float().half() + 1), (R(8).half(),)), (Call(lambda s, x: x.double().float().sin()), (R(8),)), (Call(lambda s, x: x.view(2, 12).reshape(4, 6).unsqueeze(0).reshape(24) + 1), (R(2, 3, 4),)),
        (Call(lambda s, x: x.int().long().float() / 2), (torch.randint(0, 99, (5,), dtype=torch.int16),)),
    ],
    "roll-as-slices": [(Call(lambda s, x: x.roll((-2, 3), (1, 2))), IMAGE), (Call(lambda s, x: torch.roll(x, 1, -1)), IMAGE), (Call(lambda s, x: x.roll((100, 0), (0, 3)) + 1), IMAGE)],
    "einsum-as-matmul": [
        (Call(lambda s, a, b: torch.einsum("bhqd,bhkd->bhqk", a, b)), (R(2, 3, 4, 5), R(2, 3, 6, 5))), (Call(lambda s, a, b: torch.einsum("bchw,cd->bdhw", a, b)), (R(2, 3, 4, 5), R(3, 7))),
        (Call(lambda s, a, b: torch.einsum("i,j", a, b)), (R(3), R(4))), (Call(lambda s, a, b: torch.einsum("blhd,hdm->blm", a, b)), (R(2, 3, 4, 5), R(4, 5, 6))), (Call(lambda s, a, b: torch.einsum("ij,kj->ki", a, b)), (R(3, 4), R(5, 4))),
    ],
    "unfold-as-slices": [
        (nn.Unfold(3), IMAGE), (nn.Unfold((2, 3), dilation=(2, 1), padding=(1, 2), stride=(2, 3)), IMAGE), (Call(lambda s, x: F.unfold(x, 2, stride=2).relu()), (R(1, 5, 8, 6),)),
    ],
    "adaptive-pool-as-fixed": [(nn.AdaptiveAvgPool2d((3, 4)), IMAGE), (nn.AdaptiveAvgPool2d((2, 5)), IMAGE), (nn.AdaptiveAvgPool2d((1, 7)), IMAGE), (nn.AdaptiveAvgPool2d((20, 13)), IMAGE)],
    "linear-as-conv": [
        (Call(lambda s, x: s.layers[0](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), nn.Linear(3, 5)), IMAGE), (Call(lambda s, x: s.layers[0](x.permute(0, -2, -1, 1)).sum(1), nn.Linear(3, 5, bias=False)), IMAGE),
        (Call(lambda s, x: F.gelu(s.layers[0](x.permute(0, 2, 3, 1))), nn.Linear(3, 4)), IMAGE),
    ],
    "plain-arithmetic": [
        (Call(lambda s, x: x**2 + x.pow(3) / 7), (R(8),)), (Call(lambda s, x: x.abs().pow(0.5) + (x * x + 1).pow(-0.5)), (R(8),)), (Call(lambda s, x: 1 / torch.sqrt(x * x + 1)), (R(8),)),
    ],
    "norm-as-scale": [
        (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU()), IMAGE), (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4)), (R(5, 4),)), (Call(lambda s, x: s.layers[0](x.relu()), nn.BatchNorm2d(3, affine=False)), IMAGE),
    ],
    "attention-by-head": [
        (Call(heads), (R(2, 3, 5, 8), R(2, 3, 6, 8), R(2, 3, 6, 8))), (MASKED, (R(2, 3, 5, 8), R(2, 3, 6, 8), R(2, 3, 6, 8), R(2, 3, 5, 6))),
        (Call(lambda s, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)), (R(1, 2, 5, 8), R(1, 2, 5, 8), R(1, 2, 5, 8))), (MASKED, (R(2, 3, 5, 8), R(2, 3, 6, 8), R(2, 3, 6, 8), R(5, 6))),
    ],
    "grouped-heads": [
        (Call(grouped), (R(2, 4, 5, 8), R(2, 2, 5, 8), R(2, 2, 5, 8))), (Call(grouped), (R(1, 2, 5, 8), R(1, 1, 9, 8), R(1, 1, 9, 8))),
        (Call(lambda s, q, k: F.scaled_dot_product_attention(q, repeat_kv(k, 3), repeat_kv(k, 3), is_causal=True)), (R(2, 6, 5, 8), R(2, 2, 5, 8))),
    ],
    "glu-as-parts": [(nn.GLU(), (R(2, 8),)), (nn.GLU(1), (R(2, 4, 3),)), (Call(lambda s, x: F.glu(x.relu(), 0) + 1), (R(6),))],
    "fused-rms-norm": [
        (nn.RMSNorm(8), (R(2, 5, 8),)), (nn.RMSNorm(8, eps=1e-5), (R(2, 8),)), (Call(lambda s, x: F.rms_norm(x, (8,), s.w, 1e-6), w=R(8).half()), (R(3, 8).half(),)),
    ],
    "fused-rotary": [
        (Call(rotary), (R(2, 4, 5, 8), R(1, 1, 5, 8), R(1, 1, 5, 8))), (Call(lambda s, c, d, x: rotate_half(x) * d + c * x), (R(2, 1, 5, 8), R(2, 1, 5, 8), R(2, 4, 5, 8))),
        (Call(lambda s, x, c, d: rotary(s, x.relu(), c, d) + 1), (R(1, 2, 3, 4), R(1, 2, 3, 4), R(1, 2, 3, 4))),
    ],
    "fused-swiglu": [
        (Call(lambda s, x: F.silu(s.layers[0](x)) * s.layers[1](x), nn.Linear(4, 6), nn.Linear(4, 6)), (R(2, 3, 4),)),
        (Call(lambda s, x: s.layers[1](x) * F.silu(s.layers[0](x)), nn.Linear(4, 6, bias=False), nn.Linear(4, 6, bias=False)), (R(2, 4),)),
        (Call(halves, nn.Linear(4, 12)), (R(2, 4),)),
    ],
    "drop-expand": [
        (Call(lambda s, x, m: x * m.expand(2, 3, 4)), (R(2, 3, 4), R(2, 1, 4))), (Call(lambda s, x, m: x + m.expand_as(x)), (R(2, 3), R(1, 3))),
        (Call(lambda s, x, m: torch.maximum(m.broadcast_to(5, 3), x)), (R(5, 3), R(1, 3))),
    ],
}
MORE_NEAR_MISSES = [
    ("tanh-gelu", Call(lambda s, x: 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * x**3)))), (R(4),)),
    ("activation-forms", Call(lambda s, x, y: x * torch.sigmoid(y)), (R(4), R(4))),
    ("activation-forms", Call(lambda s, x: x.clamp(0, 5)), (R(4),)),
    ("activation-forms", Call(lambda s, x: x.clamp(min=0)), (torch.arange(4),)),
    ("fold-scale", Call(used_twice, nn.Linear(4, 4)), (R(2, 4),)),
    ("fold-scale", Call(lambda s, x: s.layers[0](x) * s.g, nn.Conv2d(3, 12, 1), g=R(12)), IMAGE),
    ("fold-scale", Call(lambda s, x: s.layers[0](x) + s.g, nn.Linear(4, 1), g=R(3)), (R(2, 4),)),
    ("fold-input-scale", Call(lambda s, x: s.layers[0](x + 1), nn.Conv2d(3, 4, 3, padding=1)), IMAGE),
    ("join-layers", nn.Sequential(nn.Linear(64, 2), nn.Linear(2, 64)), (R(2, 64),)),
    ("join-layers", nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)), IMAGE),
    ("layer-norm", Call(lambda s, x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()), (R(3, 8),)),
    ("complex-as-real", Call(lambda s, x: torch.fft.rfft(x).abs()), (R(3, 8),)),
    ("cancel-splits", Call(lambda s, x: torch.cat(x.chunk(2, 1)[::-1], 1).sin()), (R(2, 6),)),
    ("cancel-splits", Call(lambda s, x: torch.cat(x.chunk(2, 1), 0).sin()), (R(2, 6),)),
    ("join-casts", Call(lambda s, x: x.half().float()), (R(8),)),
    ("join-casts", Call(lambda s, x: x.long().float()), (R(8),)),
    ("adaptive-pool-as-fixed", nn.AdaptiveMaxPool2d(3), IMAGE),
    ("einsum-as-matmul", Call(lambda s, a: torch.einsum("ii->i", a)), (R(3, 3),)),
    ("grouped-heads", Call(heads), (R(2, 4, 5, 8), R(2, 4, 5, 8), R(2, 4, 5, 8))),
    ("fused-rotary", Call(lambda s, x, c, d: x * c + torch.cat([x[..., 4:], -x[..., :4]], -1) * d), (R(2, 4, 5, 8), R(1, 1, 5, 8), R(1, 1, 5, 8))),
    ("fused-swiglu", Call(halves_swapped, nn.Linear(4, 12)), (R(2, 4),)),
    ("drop-expand", Call(lambda s, m: m.expand(5, 3) + 1), (R(1, 3),)),
]
