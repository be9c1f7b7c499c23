"""Decomposed attention gives what PyTorch's own attention gives."""

import pytest
import torch
from torch.nn import functional as F

from npulift.targets.qnn.attention import decompose_attention

Q, K, V = (torch.randn(2, 3, n, 8, generator=torch.Generator().manual_seed(i)) for i, n in enumerate((10, 12, 12)))


class Masked(torch.nn.Module):
    def __init__(self, mask, causal=False, scale=None):
        super().__init__()
        self.register_buffer("mask", mask)
        self.causal, self.scale = causal, scale

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, self.mask, is_causal=self.causal, scale=self.scale)


BOOL = torch.rand(10, 12, generator=torch.Generator().manual_seed(9)) > 0.3
BOOL[:, 0] = True
CASES = {
    "plain": Masked(None), "scaled": Masked(None, scale=0.3), "causal": Masked(None, causal=True), "bool mask": Masked(BOOL),
    "mask that hides nothing": Masked(torch.ones(1, 1, 10, 12, dtype=torch.bool)), "float mask by head": Masked(torch.randn(1, 3, 10, 12)),
    "float mask with -inf": Masked(torch.zeros(10, 12).masked_fill(~BOOL, float("-inf"))),
}


@pytest.mark.parametrize("form", [{}, {"per_head": True}, {"per_head": True, "block": 4}, {"block": 100}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_same_values_as_pytorch(case, form):
    program = torch.export.export(CASES[case], (Q, K, V))
    torch.testing.assert_close(decompose_attention(program, **form).module()(Q, K, V), CASES[case](Q, K, V), atol=2e-6, rtol=1e-5)


def test_a_mask_that_hides_a_row_is_left_to_the_exporter():
    hiding = BOOL.clone()
    hiding[2] = False
    assert decompose_attention(torch.export.export(Masked(hiding), (Q, K, V))) is None


def test_a_mask_from_an_input_by_blocks():
    class FromInput(torch.nn.Module):
        def forward(self, q, k, v, mask):
            return F.scaled_dot_product_attention(q, k, v, mask)

    program = torch.export.export(FromInput(), (Q, K, V, BOOL))
    got = decompose_attention(program, per_head=True, block=3).module()(Q, K, V, BOOL)
    torch.testing.assert_close(got, FromInput()(Q, K, V, BOOL), atol=2e-6, rtol=1e-5)
