"""Normalisations: RMS norm, layer norm with an addition before it, deep norm, group norm with an activation, batch norm in pieces.

Sources: documentation of torch_npu (npu_rms_norm, npu_add_rms_norm, npu_add_layer_norm, npu_deep_norm, npu_group_norm_silu, batch_norm_reduce) and the schemas
of torch for the parts of synchronised batch norm. Statistics are float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _rms(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    dims = tuple(range(-gamma.dim(), 0))
    rstd = torch.rsqrt(x.square().mean(dims, keepdim=True) + epsilon)
    return x * rstd * gamma, rstd


@gives("npu::npu_rms_norm")
def npu_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """(x / sqrt(mean(x^2) + epsilon) * gamma, 1 / sqrt(...))."""
    out, rstd = _rms(_wide(input), _wide(gamma), epsilon)
    return out.to(input.dtype), rstd


@gives("npu::npu_gemma_rms_norm")
def npu_gemma_rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """The same with 1 + gamma."""
    out, rstd = _rms(_wide(input), 1 + _wide(gamma), epsilon)
    return out.to(input.dtype), rstd


@gives("npu::npu_rms_norm_backward")
def npu_rms_norm_backward(dy: Tensor, input: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """From the saved rstd: dx = r (g - x r^2 mean(g x)), g = dy * gamma; dgamma = sum(dy x r), in float32."""
    dims = tuple(range(-gamma.dim(), 0))
    x, r, grad = _wide(input), _wide(rstd), _wide(dy)
    g = grad * _wide(gamma)
    dx = r * (g - x * r.square() * (g * x).mean(dims, keepdim=True))
    lead = tuple(range(input.dim() - gamma.dim()))
    dgamma = (grad * x * r).sum(lead) if lead else grad * x * r
    return dx.to(input.dtype), dgamma if dgamma.dtype == torch.float64 else dgamma.float()


@gives("npu::npu_add_rms_norm")
def npu_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """(norm of x1 + x2, rstd, x1 + x2)."""
    total = _wide(x1) + _wide(x2)
    out, rstd = _rms(total, _wide(gamma), epsilon)
    return out.to(x1.dtype), rstd, total.to(x1.dtype)


@gives("npu::npu_add_rms_norm_cast")
def npu_add_rms_norm_cast(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(norm in float32, norm in the dtype of x1, rstd, x1 + x2)."""
    total = _wide(x1) + _wide(x2)
    out, rstd = _rms(total, _wide(gamma), epsilon)
    return out.to(x1.dtype).float(), out.to(x1.dtype), rstd, total.to(x1.dtype)


@gives("npu::npu_add_rms_norm_v2")
def npu_add_rms_norm_v2(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Tensor:
    """In place: x1 becomes the norm, x2 the sum; returns rstd."""
    out, rstd, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    x1.copy_(out)
    x2.copy_(total)
    return rstd


@gives("npu::npu_add_layer_norm")
def npu_add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-5, additional_output: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(layer norm of x1 + x2, mean, rstd, x1 + x2 where additional_output asks for it)."""
    total = _wide(x1) + _wide(x2)
    dims = tuple(range(-gamma.dim(), 0))
    mean = total.mean(dims, keepdim=True)
    rstd = torch.rsqrt(total.var(dims, correction=0, keepdim=True) + epsilon)
    out = (total - mean) * rstd * _wide(gamma) + _wide(beta)
    return out.to(x1.dtype), mean, rstd, total.to(x1.dtype) if additional_output else torch.empty(0, dtype=x1.dtype)


@gives("npu::npu_add_layer_norm_backward")
def npu_add_layer_norm_backward(
    dy_opt: Tensor | None, x1: Tensor, x2: Tensor, rstd: Tensor, mean: Tensor, gamma: Tensor, dsum_opt: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dx1, dx2, dgamma, dbeta); dsum_opt: gradient of the sum itself."""
    grad = _wide(dy_opt) if dy_opt is not None else torch.zeros_like(_wide(x1))
    dx, dgamma, dbeta = _layer_norm_grad(grad, _wide(x1) + _wide(x2), mean, rstd, gamma)
    if dsum_opt is not None and dsum_opt.numel():
        dx = dx + _wide(dsum_opt)
    return dx.to(x1.dtype), dx.to(x2.dtype), dgamma, dbeta


def _layer_norm_grad(grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    count = gamma.dim() if gamma is not None else 1
    dims, lead = tuple(range(-count, 0)), tuple(range(x.dim() - count))
    hat = (x - _wide(mean)) * _wide(rstd)
    g = grad * _wide(gamma) if gamma is not None else grad
    dx = _wide(rstd) * (g - g.mean(dims, keepdim=True) - hat * (g * hat).mean(dims, keepdim=True))
    return dx, (grad * hat).sum(lead) if lead else grad * hat, grad.sum(lead) if lead else grad


@gives("npu::npu_layer_norm_eval")
def npu_layer_norm_eval(input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Layer norm."""
    return functional.layer_norm(input, normalized_shape, weight, bias, eps)


@gives("npu::npu_layernorm_grad")
def npu_layernorm_grad(
    grad_out: Tensor, input: Tensor, normalized_shape: list[int], mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dweight, dbias) from the saved statistics."""
    gamma = weight if weight is not None else torch.ones(normalized_shape)
    shape = (*input.shape[: input.dim() - len(normalized_shape)], *([1] * len(normalized_shape)))
    dx, dgamma, dbeta = _layer_norm_grad(_wide(grad_out), _wide(input), mean.reshape(shape), rstd.reshape(shape), gamma)
    return dx.to(input.dtype), dgamma.to(gamma.dtype), dbeta.to(gamma.dtype)


@gives("npu::npu_deep_norm")
def npu_deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, rstd, layer norm of alpha * x + gx)."""
    total = alpha * _wide(x) + _wide(gx)
    dims = tuple(range(-gamma.dim(), 0))
    mean = total.mean(dims, keepdim=True)
    rstd = torch.rsqrt(total.var(dims, correction=0, keepdim=True) + epsilon)
    return mean, rstd, ((total - mean) * rstd * _wide(gamma) + _wide(beta)).to(x.dtype)


@gives("npu::npu_deep_norm_backward")
def npu_deep_norm_backward(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float = 0.3,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(dx, dgx, dbeta, dgamma)."""
    d, dgamma, dbeta = _layer_norm_grad(_wide(dy), alpha * _wide(x) + _wide(gx), mean, rstd, gamma)
    return (alpha * d).to(x.dtype), d.to(gx.dtype), dbeta, dgamma


def _group(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    folded = _wide(x).reshape(x.shape[0], groups, -1)
    mean = folded.mean(-1)
    rstd = torch.rsqrt(folded.var(-1, correction=0) + eps)
    return ((folded - mean[..., None]) * rstd[..., None]).reshape(x.shape), mean, rstd


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (1, -1, *([1] * (x.dim() - 2)))
    out = x if weight is None else x * _wide(weight).view(shape)
    return out if bias is None else out + _wide(bias).view(shape)


@gives("npu::npu_group_norm_silu")
def npu_group_norm_silu(input: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 1e-5) -> tuple[Tensor, Tensor, Tensor]:
    """(silu of the group norm, mean, rstd)."""
    out, mean, rstd = _group(input, group, eps)
    return functional.silu(_scaled(out, weight, bias)).to(input.dtype), mean.to(input.dtype), rstd.to(input.dtype)


@gives("npu::npu_group_norm_swish")
def npu_group_norm_swish(
    input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float | None = 1e-5, swish_scale: float | None = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """(y * sigmoid(swish_scale * y) of the group norm y, mean, rstd)."""
    out, mean, rstd = _group(input, num_groups, eps if eps is not None else 1e-5)
    y = _scaled(out, weight, bias)
    return (y * torch.sigmoid((swish_scale if swish_scale is not None else 1.0) * y)).to(input.dtype), mean, rstd


@gives("npu::npu_group_norm_swish_grad")
def npu_group_norm_swish_grad(
    grad: Tensor, input: Tensor, num_groups: int, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor, grad_input_mask: list[bool],
    swish_scale: float | None = 1.0,
) -> tuple[Any, ...]:
    """(dx, dweight, dbias); epsilon is taken from the saved statistics."""
    folded = _wide(input).reshape(input.shape[0], num_groups, -1)
    eps = float((_wide(rstd).reshape(folded.shape[:2]).pow(-2) - folded.var(-1, correction=0)).mean().clamp(min=0))

    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = _scaled(_group(x, num_groups, eps)[0], w, b)
        return y * torch.sigmoid((swish_scale if swish_scale is not None else 1.0) * y)

    return tuple(gradients(forward, (input, weight, bias), (grad,)))


def _channels(x: Tensor) -> tuple[int, ...]:
    return tuple(d for d in range(x.dim()) if d != 1)


def _on_channels(v: Tensor, x: Tensor) -> Tensor:
    return _wide(v).view(1, -1, *([1] * (x.dim() - 2)))


@gives("aten::batch_norm_stats")
def batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(mean, 1 / sqrt(var + eps)) by channel."""
    x = _wide(input)
    return x.mean(_channels(x)), torch.rsqrt(x.var(_channels(x), correction=0) + eps)


@gives("npu::batch_norm_reduce")
def batch_norm_reduce(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(sum, sum of squares) by channel."""
    x = _wide(input)
    return x.sum(_channels(x)), x.square().sum(_channels(x))


@gives("aten::batch_norm_elemt")
def batch_norm_elemt(input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    """(x - mean) * invstd * weight + bias."""
    x = _wide(input)
    return _scaled((x - _on_channels(mean, x)) * _on_channels(invstd, x), weight, bias).to(input.dtype)


@gives("aten::batch_norm_elemt.out")
def batch_norm_elemt_out(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float, *, out: Tensor,
) -> Tensor:
    """The same into a tensor."""
    return out.copy_(batch_norm_elemt(input, weight, bias, mean, invstd, eps))


@gives("aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    input: Tensor, mean: Tensor, invstd: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Statistics of several parts, (parts, channels), joined by their counts; the running ones move by momentum."""
    n = _wide(counts).view(-1, 1)
    total = n.sum()
    joined = (mean * n).sum(0) / total
    variance = ((invstd.pow(-2) - eps) * n + n * (mean - joined).square()).sum(0) / total
    if running_mean is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * joined)
    if running_var is not None:
        running_var.copy_((1 - momentum) * running_var + momentum * variance * total / (total - 1))
    return joined, torch.rsqrt(variance + eps)


@gives("npu::batch_norm_gather_stats_update")
def batch_norm_gather_stats_update(
    input: Tensor, total: Tensor, squares: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """The same from sums and sums of squares, as batch_norm_reduce gives them."""
    n = _wide(counts).sum()
    mean = total.reshape(-1, total.shape[-1]).sum(0) / n
    variance = squares.reshape(-1, squares.shape[-1]).sum(0) / n - mean.square()
    if running_mean is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * mean)
    if running_var is not None:
        running_var.copy_((1 - momentum) * running_var + momentum * variance * n / (n - 1))
    return mean, torch.rsqrt(variance + eps)


@gives("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, input_g: bool, weight_g: bool, bias_g: bool,
) -> tuple[Any, ...]:
    """(sum of grad, sum of grad * (x - mean), dweight, dbias) by channel."""
    g, x = _wide(grad_out), _wide(input)
    sums = g.sum(_channels(x))
    with_x = (g * (x - _on_channels(mean, x))).sum(_channels(x))
    like = weight if weight is not None else mean
    return (sums if input_g else None, with_x if input_g else None, (with_x * invstd).to(like.dtype) if weight_g else None,
            sums.to(like.dtype) if bias_g else None)


@gives("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad_out: Tensor, input: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, sum_dy: Tensor, sum_dy_xmu: Tensor, count: Tensor,
) -> Tensor:
    """Gradient of the input from the joined sums."""
    g, x, n = _wide(grad_out), _wide(input), _wide(count).sum()
    r = _on_channels(invstd, x)
    dx = g - _on_channels(sum_dy, x) / n - (x - _on_channels(mean, x)) * r.square() * _on_channels(sum_dy_xmu, x) / n
    dx = dx * r
    return (dx if weight is None else dx * _on_channels(weight, x)).to(input.dtype)
