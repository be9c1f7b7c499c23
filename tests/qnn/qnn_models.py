"""Small models of the kinds that people bring to a Qualcomm NPU, written for these tests."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Islands(nn.Module):
    """A resize and an erf that the compiler refuses, between convolutions that it takes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        x = F.interpolate(self.first(x).relu(), scale_factor=1.7, mode="bicubic", align_corners=True)
        return torch.erf(self.second(x)).mean((2, 3))


class PickRows(nn.Module):
    def forward(self, x):
        return (x * 2)[:, [0, 3, 5]] + 1


class PickPairs(nn.Module):
    def forward(self, x):
        return x[[0, 3, -1], [1, -2, 0]]


class RmsNorm(nn.Module):
    """The weight comes first, as transformers writes Llama's norms."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """A transformer block whose queries, keys and values come from one Linear, cut apart in one of the usual ways."""

    def __init__(self, width=64, heads=2, cut="unbind"):
        super().__init__()
        self.norm, self.qkv, self.out, self.heads, self.cut = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width), heads, cut

    def forward(self, x):
        b, n, c = x.shape
        y = self.qkv(self.norm(x))
        if self.cut == "unbind":
            q, k, v = y.reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        elif self.cut == "index":
            y = y.reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            q, k, v = y[0], y[1], y[2]
        else:
            parts = y.chunk(3, -1) if self.cut == "chunk" else y.split(c, dim=2)
            q, k, v = (p.reshape(b, n, self.heads, -1).transpose(1, 2) for p in parts)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
