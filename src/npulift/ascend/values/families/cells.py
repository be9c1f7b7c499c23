"""Recurrent cells, losses and other aten operators that the CPU has no kernel of its own for.

Sources: schemas and documentation of torch 2.13 (_thnn_fused_lstm_cell, _thnn_fused_gru_cell, _conv_depthwise2d); of torch_npu for the loss gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor


def _gates(a: Tensor, b: Tensor, *biases: Tensor | None) -> Tensor:
    total = a + b
    for bias in biases:
        total = total if bias is None else total + bias
    return total


@gives("aten::_thnn_fused_lstm_cell")
def fused_lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(h, c, the gates after their functions side by side: input, forget, cell, output)."""
    i, f, g, o = _gates(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * cx + i * g
    return o * c.tanh(), c, torch.cat((i, f, g, o), -1)


@gives("aten::_thnn_fused_lstm_cell_backward_impl")
def fused_lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool,
) -> tuple[Any, ...]:
    """(gradient of the gates, of cx, of the bias)."""
    i, f, g, o = workspace.chunk(4, -1)
    gh = grad_hy if grad_hy is not None else torch.zeros_like(cx)
    gc = grad_cy if grad_cy is not None else torch.zeros_like(cx)
    tc = cy.tanh()
    dc = gc + gh * o * (1 - tc.square())
    gates = torch.cat((dc * g * i * (1 - i), dc * cx * f * (1 - f), dc * i * (1 - g.square()), gh * tc * o * (1 - o)), -1)
    return gates, dc * f, gates.sum(0) if has_bias else None


@gives("aten::_thnn_fused_gru_cell")
def fused_gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None = None, hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(h, workspace: reset, update, new, hx and the hidden part of the new gate side by side)."""
    a, b = _gates(input_gates, torch.zeros_like(input_gates), input_bias), _gates(hidden_gates, torch.zeros_like(hidden_gates), hidden_bias)
    (ir, iz, new), (hr, hz, hn) = a.chunk(3, -1), b.chunk(3, -1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * hn).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, hn), -1)


def _by_column(weight: Tensor, width: int) -> Tensor:
    """A weight as (inputs, gates), which is how torch_npu passes it; torch's own way round is turned."""
    return weight if weight.shape[0] == width else weight.t()


@gives("npu::npu_lstm_cell")
def npu_lstm_cell(
    input: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor, c: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """(y, h, c, i, j, f, o, tanh(c)); weights (inputs, 4 * hidden), gates in torch's order i, f, g, o."""
    gates = _gates(input @ _by_column(w_ih, input.shape[-1]), h @ _by_column(w_hh, h.shape[-1]), b_ih, b_hh)
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new = f * c + i * g
    out = o * new.tanh()
    return out, out.clone(), new, i, g, f, o, new.tanh()


@gives("npu::l1_loss_backward", "aten::l1_loss_backward")
def l1_loss_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int) -> Tensor:
    """sign(input - target) * grad, over the number of elements for the mean (reduction 1)."""
    return grad_output * torch.sign(input - target) / (input.numel() if reduction == 1 else 1)


@gives("npu::kl_div_backward", "aten::kl_div_backward")
def kl_div_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    """-target (or -exp(target)) * grad; 0 where a plain target is not positive."""
    weight = target.exp() if log_target else target.clamp(min=0)
    return -weight * grad_output / (input.numel() if reduction == 1 else 1)


@gives("npu::kl_div_target_backward")
def kl_div_target_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    """Gradient of the target."""
    if log_target:
        found = target.exp() * (target + 1 - input)
    else:
        found = torch.where(target > 0, target.clamp(min=torch.finfo(target.dtype).tiny).log() + 1 - input, torch.zeros_like(target))
    return found * grad_output / (input.numel() if reduction == 1 else 1)


@gives("aten::_conv_depthwise2d")
def conv_depthwise2d(input: Tensor, weight: Tensor, kernel_size: Any, bias: Tensor | None, stride: Any, padding: Any, dilation: Any) -> Tensor:
    """A convolution with a group a channel."""
    return functional.conv2d(input, weight, bias, stride, padding, dilation, groups=input.shape[1])


@gives("npu::_conv_depthwise2d_backward")
def conv_depthwise2d_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any, output_mask: list[bool],
) -> tuple[Any, ...]:
    """(gradient of the input, of the weight)."""
    found = gradients(lambda x, w: functional.conv2d(x, w, None, stride, padding, dilation, groups=x.shape[1]), (input, weight), (grad_output,))
    return tuple(g if wanted else None for g, wanted in zip(found, output_mask, strict=True))


@gives("npu::npu_conv2d", "npu::npu_convolution", "npu::npu_conv3d")
def npu_convolution(input: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Tensor:
    """A plain convolution of two or three dims."""
    return torch.convolution(input, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups)


@gives("npu::npu_conv2d_backward", "npu::npu_convolution_backward", "npu::npu_conv3d_backward")
def npu_convolution_backward(
    input: Tensor, grad_output: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int, output_mask: list[bool],
) -> tuple[Any, ...]:
    """Gradients of input, weight and bias, where asked for."""
    return tuple(torch.ops.aten.convolution_backward(grad_output, input, weight, [weight.shape[0]] if output_mask[2] else None, stride, padding, dilation, False,
                                                     [0] * len(stride), groups, output_mask))


@gives("npu::npu_conv_transpose2d", "npu::npu_convolution_transpose")
def npu_convolution_transpose(
    input: Tensor, weight: Tensor, bias: Tensor | None, padding: list[int], output_padding: list[int], stride: list[int], dilation: list[int], groups: int,
) -> Tensor:
    """A transposed convolution."""
    return torch.convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@gives("npu::npu_conv_transpose2d_backward", "npu::npu_convolution_transpose_backward", "npu::npu_conv_transpose3d_backward")
def npu_convolution_transpose_backward(
    input: Tensor, grad_output: Tensor, weight: Tensor, padding: list[int], output_padding: list[int], stride: list[int], dilation: list[int], groups: int,
    output_mask: list[bool],
) -> tuple[Any, ...]:
    """Its gradients."""
    return tuple(torch.ops.aten.convolution_backward(grad_output, input, weight, [weight.shape[1] * groups] if output_mask[2] else None, stride, padding,
                                                     dilation, True, output_padding, groups, output_mask))


@gives("npu::npu_cross_entropy_loss")
def npu_cross_entropy_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0, return_zloss: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(loss, log softmax, zloss, log sum of exponents); z loss is not reckoned (0)."""
    if lse_square_scale_for_zloss or return_zloss:
        raise NotImplementedError("npu_cross_entropy_loss with a z loss")
    wide = input.float()
    loss = functional.cross_entropy(wide, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing)
    return loss.to(input.dtype), torch.log_softmax(wide, -1).to(input.dtype), torch.zeros(()), torch.logsumexp(wide, -1)


@gives("npu::npu_cross_entropy_loss_backward")
def npu_cross_entropy_loss_backward(
    grad_loss: Tensor, log_prob: Tensor, target: Tensor, weight: Tensor | None = None, grad_zloss: Tensor | None = None,
    lse_for_zloss: Tensor | None = None, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0.0,
    lse_square_scale_for_zloss: float = 0.0,
) -> Tensor:
    """Gradient of the logits: log_prob is a softmax's logarithm, which log_softmax leaves as it is."""
    found = gradients(lambda x: functional.cross_entropy(x, target, weight if weight is None else weight.to(x.dtype), ignore_index=ignore_index,
                                                         reduction=reduction, label_smoothing=label_smoothing), (log_prob,), (grad_loss,))[0]
    assert found is not None
    return found


@gives("npu::npu_softmax_cross_entropy_with_logits")
def npu_softmax_cross_entropy_with_logits(input: Tensor, labels: Tensor) -> Tensor:
    """-sum(labels * log_softmax(input)) by row."""
    return -(labels * torch.log_softmax(input, -1)).sum(-1)


@gives("npu::npu_softmax_cross_entropy_with_logits_backward")
def npu_softmax_cross_entropy_with_logits_backward(grad: Tensor, input: Tensor, labels: Tensor) -> Tensor:
    """(softmax * sum(labels) - labels) * grad."""
    return (torch.softmax(input, -1) * labels.sum(-1, keepdim=True) - labels) * grad.unsqueeze(-1)
