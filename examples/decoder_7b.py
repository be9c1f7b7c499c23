"""A decoder of seven billion parameters on the meta device: shapes without data, so that any laptop can look at it."""

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, WIDTH, HEADS, HIDDEN, VOCABULARY, SEQUENCE = 32, 4096, 32, 11008, 32000, 2048


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return (x.float() * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        y = self.norm_1(x)
        q, k, v = (p(y).view(batch, length, HEADS, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, WIDTH))
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        size = WIDTH // HEADS
        frequency = 1.0 / (10000 ** (torch.arange(0, size, 2, device=tokens.device).float() / size))
        angle = torch.outer(torch.arange(tokens.shape[1], device=tokens.device).float(), frequency)
        angle = torch.cat((angle, angle), dim=-1).to(x.dtype)
        cos, sin = angle.cos(), angle.sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def model():
    with torch.device("meta"):
        module = Decoder().to(torch.bfloat16).eval()
        tokens = torch.zeros(1, SEQUENCE, dtype=torch.long)
    return module, (tokens,)
