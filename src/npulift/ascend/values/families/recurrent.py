"""Whole recurrent layers: what nn.LSTM and nn.GRU call on an NPU, forward and gradient.

Sources: schemas of torch_npu 2.13; gates in torch's order. The gradient computes the layer again, so what the forward pass saves for it is not filled.
Dropout between layers in training has no reference, since its mask would have to be the same in both.
"""

from __future__ import annotations

from typing import Any

import torch

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor


def _same_twice(dropout: float, train: bool, layers: int) -> None:
    if dropout and train and layers > 1:
        raise NotImplementedError("dropout between the layers of a recurrent network in training")


def _run(function: Any, x: Tensor, hx: Any, params: list[Tensor], biases: bool, layers: int, train: bool, both: bool, first: bool, sizes: Any) -> Any:
    if sizes is not None:
        return function(x, sizes.cpu(), hx, params, biases, layers, 0.0, train, both)
    return function(x, hx, params, biases, layers, 0.0, train, both, first)


@gives("npu::_lstm_npu")
def lstm_npu(
    input: Tensor, hx: list[Tensor], params: list[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, *,
    batch_first: bool | None = False, batch_sizes: Tensor | None = None,
) -> tuple[Any, ...]:
    """(output, h, c, and seven tensors for the gradient, not filled)."""
    _same_twice(dropout, train, num_layers)
    return (*_run(torch.lstm, input, hx, params, has_biases, num_layers, train, bidirectional, bool(batch_first), batch_sizes), *[None] * 7)


@gives("npu::_lstm_npu_backward")
def lstm_npu_backward(
    grad_y: Tensor | None, grad_hy: Tensor | None, grad_cy: Tensor | None, input: Tensor, hx: list[Tensor], params: list[Tensor], i: Tensor, j: Tensor,
    f: Tensor, o: Tensor, h: Tensor, c: Tensor, tanhc: Tensor, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, *,
    batch_first: bool | None = False, batch_sizes: Tensor | None = None,
) -> tuple[Any, ...]:
    """(gradient of the input, of h and c, of the parameters)."""
    _same_twice(dropout, train, num_layers)

    def forward(x: Tensor, h0: Tensor, c0: Tensor, *weights: Tensor) -> Any:
        return _run(torch.lstm, x, [h0, c0], list(weights), has_biases, num_layers, True, bidirectional, bool(batch_first), batch_sizes)

    dx, dh, dc, *dparams = gradients(forward, (input, *hx, *params), (grad_y, grad_hy, grad_cy))
    return dx, [dh, dc], dparams


@gives("npu::_gru_npu")
def gru_npu(
    input: Tensor, hx: Tensor, params: list[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, *,
    batch_first: bool | None = False, batch_sizes: Tensor | None = None,
) -> tuple[Any, ...]:
    """(output, h, and five tensors for the gradient, not filled)."""
    _same_twice(dropout, train, num_layers)
    return (*_run(torch.gru, input, hx, params, has_biases, num_layers, train, bidirectional, bool(batch_first), batch_sizes), *[None] * 5)


@gives("npu::_gru_npu_backward")
def gru_npu_backward(
    grad_y: Tensor | None, grad_h: Tensor | None, input: Tensor, hx: Tensor, params: list[Tensor], r: Tensor, z: Tensor, n: Tensor, h_n: Tensor, h: Tensor,
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, *, batch_first: bool | None = False,
    batch_sizes: Tensor | None = None,
) -> tuple[Any, ...]:
    """(gradient of the input, of h, of the parameters)."""
    _same_twice(dropout, train, num_layers)

    def forward(x: Tensor, h0: Tensor, *weights: Tensor) -> Any:
        return _run(torch.gru, x, h0, list(weights), has_biases, num_layers, True, bidirectional, bool(batch_first), batch_sizes)

    dx, dh, *dparams = gradients(forward, (input, hx, *params), (grad_y, grad_h))
    return dx, dh, dparams


def _layer(x: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """One layer in one direction, step by step; weight (inputs + hidden, 4 * hidden). All of them (steps, batch, hidden)."""
    steps = []
    state, cell = h.reshape(h.shape[-2:]), c.reshape(c.shape[-2:])
    for now in x.unbind(0):
        i, f, j, o = (torch.cat((now, state), -1) @ weight + bias).chunk(4, -1)
        i, f, j, o = i.sigmoid(), f.sigmoid(), j.tanh(), o.sigmoid()
        cell = f * cell + i * j
        state = o * cell.tanh()
        steps.append((state, state, cell, i, j, f, o, cell.tanh()))
    return tuple(torch.stack(parts) for parts in zip(*steps, strict=True))


@gives("npu::npu_lstm")
def npu_lstm(
    input: Tensor, weight: Tensor, bias: Tensor, seq_mask: Tensor, h: Tensor, c: Tensor, has_biases: bool, num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool, flag_seq: bool, direction: bool,
) -> tuple[Tensor, ...]:
    """(y, h, c, i, j, f, o, tanh(c)) of one layer in one direction, each step of them; torch_npu turns the input round for the other direction."""
    return _layer(input, weight, bias, h, c)


@gives("npu::npu_lstm_backward")
def npu_lstm_backward(
    grady: Tensor | None, gradh: Tensor | None, gradc: Tensor | None, input: Tensor, weight: Tensor, bias: Tensor, hx: Tensor, cx: Tensor, y_output: Tensor,
    h_output: Tensor, c_output: Tensor, i: Tensor, j: Tensor, f: Tensor, o: Tensor, tanhc: Tensor,
) -> tuple[Any, ...]:
    """Gradients of input, weight, bias, h and c."""
    return tuple(gradients(_layer, (input, weight, bias, hx, cx), (grady, gradh, gradc)))


@gives("npu::npu_lstm_cell_backward")
def npu_lstm_cell_backward(
    grady: Tensor | None, gradh: Tensor | None, gradc: Tensor | None, input: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor, c: Tensor, y_output: Tensor,
    h_output: Tensor, c_output: Tensor, i: Tensor, j: Tensor, f: Tensor, o: Tensor, tanhc: Tensor,
) -> tuple[Any, ...]:
    """Gradients of input, w_ih, w_hh, both biases, h and c; from the gates that the forward pass saved."""
    flat = [t.reshape(c.shape) for t in (i, j, f, o, tanhc)]
    gi, gj, gf, go, tc = flat
    dh = sum((g.reshape(c.shape) for g in (grady, gradh) if g is not None), torch.zeros_like(c))
    dc = (gradc.reshape(c.shape) if gradc is not None else 0) + dh * go * (1 - tc.square())
    gates = torch.cat((dc * gj * gi * (1 - gi), dc * c * gf * (1 - gf), dc * gi * (1 - gj.square()), dh * tc * go * (1 - go)), -1)
    rows = w_ih.shape[0] == input.shape[-1]
    dx, dhx = (gates @ (w.t() if rows else w) for w in (w_ih, w_hh))
    dw_ih, dw_hh = ((x.t() @ gates) if rows else (gates.t() @ x) for x in (input, h))
    return dx, dw_ih, dw_hh, gates.sum(0), gates.sum(0), dhx, dc * gf
