"""Activations: fast_gelu, gelu, geglu, swiglu, silu, mish, and their gradients.

Sources: formulas in the documentation of torch_npu (npu_fast_gelu, npu_geglu, npu_swiglu, npu_gelu_mul, npu_silu, npu_mish).
"""

from __future__ import annotations

import torch
from torch.nn import functional

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor


def _one(found: list[Tensor | None]) -> Tensor:
    assert found[0] is not None
    return found[0]


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _fast_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@gives("npu::npu_fast_gelu", "npu::fast_gelu")
def npu_fast_gelu(input: Tensor) -> Tensor:
    """x * sigmoid(1.702 x)."""
    return _fast_gelu(_wide(input)).to(input.dtype)


@gives("npu::npu_fast_gelu_backward")
def npu_fast_gelu_backward(grad: Tensor, input: Tensor) -> Tensor:
    """s + 1.702 x s (1 - s), times grad."""
    return _one(gradients(_fast_gelu, (input,), (grad,)))


@gives("npu::npu_gelu")
def npu_gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """x Phi(x), or its tanh form."""
    return functional.gelu(input, approximate=approximate)


@gives("npu::npu_gelu_backward")
def npu_gelu_backward(grad_output: Tensor, input: Tensor, *, approximate: str = "none") -> Tensor:
    """Gradient of either form."""
    return _one(gradients(lambda x: functional.gelu(x, approximate=approximate), (input,), (grad_output,)))


@gives("npu::npu_gelu_mul")
def npu_gelu_mul(input: Tensor, *, approximate: str = "none") -> Tensor:
    """gelu of the first half of the last dim, times the second."""
    left, right = _wide(input).chunk(2, -1)
    return (functional.gelu(left, approximate=approximate) * right).to(input.dtype)


def _halves(x: Tensor, dim: int, activate_left: bool) -> tuple[Tensor, Tensor]:
    left, right = x.chunk(2, dim)
    return (left, right) if activate_left else (right, left)


@gives("npu::npu_geglu")
def npu_geglu(input: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> tuple[Tensor, Tensor]:
    """(gate, gelu of the activated half): gate = gelu(one half) * other half; approximate 1 is the tanh form."""
    active, plain = _halves(_wide(input), dim, activate_left)
    gelu = functional.gelu(active, approximate="tanh" if approximate == 1 else "none")
    return (plain * gelu).to(input.dtype), gelu.to(input.dtype)


@gives("npu::npu_geglu_grad")
def npu_geglu_grad(grad_output: Tensor, input: Tensor, gelu: Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False) -> Tensor:
    """Gradient of the gate."""
    def forward(x: Tensor) -> Tensor:
        active, plain = _halves(x, dim, activate_left)
        return plain * functional.gelu(active, approximate="tanh" if approximate == 1 else "none")

    return _one(gradients(forward, (input,), (grad_output,)))


def _swiglu(x: Tensor, dim: int) -> Tensor:
    left, right = x.chunk(2, dim)
    return functional.silu(left) * right


@gives("npu::npu_swiglu")
def npu_swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """silu(first half) * second half."""
    return _swiglu(_wide(input), dim).to(input.dtype)


@gives("npu::npu_swiglu_backward")
def npu_swiglu_backward(grad_output: Tensor, input: Tensor, dim: int = -1) -> Tensor:
    """Its gradient."""
    return _one(gradients(lambda x: _swiglu(x, dim), (input,), (grad_output,)))


@gives("npu::npu_silu")
def npu_silu(input: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return functional.silu(input)


@gives("npu::npu_silu_")
def npu_silu_(input: Tensor) -> Tensor:
    """In place."""
    return input.copy_(functional.silu(input))


@gives("npu::npu_silu_backward")
def npu_silu_backward(grad_output: Tensor, x0: Tensor, x1: Tensor) -> Tensor:
    """x0: what went in, x1: what came out."""
    return _one(gradients(functional.silu, (x0,), (grad_output,)))


@gives("npu::npu_mish")
def npu_mish(input: Tensor) -> Tensor:
    """x * tanh(softplus(x))."""
    return functional.mish(input)


@gives("npu::npu_mish_backward")
def npu_mish_backward(grad: Tensor, input: Tensor) -> Tensor:
    """Its gradient."""
    return _one(gradients(functional.mish, (input,), (grad,)))
