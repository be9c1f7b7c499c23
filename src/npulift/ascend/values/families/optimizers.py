"""Fused optimizer steps.

Sources: formulas of aclnnApplyAdamW (beta1_power is that of the step before: it is multiplied by beta1 first) and of the Adam operator of CANN (that of
TensorFlow's ApplyAdam: beta1_power is that of this step); documentation of torch_npu.npu_bert_apply_adam.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from npulift.ascend.values.registry import gives

Tensor = torch.Tensor


@gives("npu::npu_apply_adam_w", "npu::npu_apply_adam_w.out")
def npu_apply_adam_w(
    beta1_power: float, beta2_power: float, lr: float, weight_decay: float, beta1: float, beta2: float, epsilon: float, grad: Tensor,
    max_grad_norm: Tensor | None, amsgrad: bool | None, maximize: bool | None, *, out: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """AdamW on out = (var, m, v), in place; with amsgrad, max_grad_norm holds the largest v so far."""
    var, m, v = out
    g = (-grad if maximize else grad).float()
    first = beta1 * m.float() + (1 - beta1) * g
    second = beta2 * v.float() + (1 - beta2) * g.square()
    m.copy_(first)
    v.copy_(second)
    if amsgrad and max_grad_norm is not None:
        second = torch.maximum(max_grad_norm.float(), second)
        max_grad_norm.copy_(second)
    step = (first / (1 - beta1_power * beta1)) / ((second / (1 - beta2_power * beta2)).sqrt() + epsilon)
    var.copy_(var.float() * (1 - lr * weight_decay) - lr * step)
    return var, m, v


@gives("npu::npu_apply_adam", "npu::npu_apply_adam.out")
def npu_apply_adam(
    beta1_power: float, beta2_power: float, lr: float, beta1: float, beta2: float, epsilon: float, grad: Tensor, use_locking: bool | None,
    use_nesterov: bool | None, *, out: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Adam on out = (var, m, v), in place."""
    var, m, v = out
    g = grad.float()
    first = beta1 * m.float() + (1 - beta1) * g
    second = beta2 * v.float() + (1 - beta2) * g.square()
    rate = lr * math.sqrt(1 - beta2_power) / (1 - beta1_power)
    ahead = first * beta1 + (1 - beta1) * g if use_nesterov else first
    var.copy_(var.float() - rate * ahead / (second.sqrt() + epsilon))
    m.copy_(first)
    v.copy_(second)
    return var, m, v


@gives("npu::npu_bert_apply_adam", "npu::npu_bert_apply_adam.out")
def npu_bert_apply_adam(
    lr: float, beta1: float, beta2: float, epsilon: float, grad: Tensor, max_grad_norm: float, global_grad_norm: float, weight_decay: float,
    step_size: float | None = None, adam_mode: int = 0, *, out: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """BERT's Adam on out = (var, m, v): no bias correction, decay added to the update, the gradient scaled down to max_grad_norm where it is positive."""
    var, m, v = out
    g = grad.float()
    if max_grad_norm > 0 and global_grad_norm > max_grad_norm:
        g = g * (max_grad_norm / global_grad_norm)
    first = beta1 * m.float() + (1 - beta1) * g
    second = beta2 * v.float() + (1 - beta2) * g.square()
    update = first / (second.sqrt() + epsilon) + weight_decay * var.float()
    var.copy_(var.float() - lr * update)
    m.copy_(first)
    v.copy_(second)
    return var, m, v


@gives("npu::_amp_foreach_non_finite_check")
def amp_foreach_non_finite_check(scaled_grads: list[Tensor]) -> bool:
    """True when a gradient has an inf or a nan."""
    return not all(bool(torch.isfinite(g).all()) for g in scaled_grads)


@gives("npu::npu_alloc_float_status", "npu::npu_get_float_status", "npu::npu_clear_float_status")
def float_status(input: Tensor, mode: Any = 0) -> Tensor:
    """Eight words that stay 0: overflow is seen in the values themselves."""
    return torch.zeros(8, dtype=torch.float32)
