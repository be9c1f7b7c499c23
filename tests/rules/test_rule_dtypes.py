"""Rules over dtypes and precision: what is found, at which line, with which numbers, and that a clean neighbour stays quiet."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from npulift.rules.float64_leak import rotary_error


class Rotary(nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        inverse = 1.0 / (10000 ** (torch.arange(0, x.shape[-1], 2, dtype=self.dtype) / x.shape[-1]))
        angle = torch.outer(torch.arange(x.shape[1], dtype=self.dtype), inverse)
        return x * angle.cos().repeat_interleave(2, dim=1).float()


def test_float64_names_the_producer_and_the_operator_that_rejects_it(only, line_in):
    (found,) = only("NPU301", Rotary(), (torch.randn(1, 8, 16),))
    assert (found.location.line, found.details["producer"], found.details["rejected"]) == (line_in(Rotary, "inverse ="), "aten::arange", ["aten::repeat_interleave"])


def test_the_float32_table_error_is_computed_from_the_models_own_positions(only):
    few, many = (only("NPU301", Rotary(), (torch.randn(1, n, 16),))[0].details["float32_max_abs_diff"] for n in (8, 2048))
    assert 0 <= few < 1e-6 < many


def test_rotary_error_at_4096_positions_is_what_two_tables_give():
    positions, channels = torch.arange(4096), torch.arange(0, 128, 2)
    exact = torch.outer(positions.double(), 10000.0 ** (-channels.double() / 128)).cos()
    single = torch.outer(positions.float(), 1.0 / (10000 ** (channels.float() / 128))).cos()
    assert rotary_error(4096, 128) == pytest.approx(float((exact - single.double()).abs().max()), rel=0.3)


def test_float32_rotary_is_quiet(only):
    assert only("NPU301", Rotary(torch.float32), (torch.randn(1, 8, 16),)) == []


class Complex(nn.Module):
    def forward(self, x):
        return torch.view_as_real(torch.view_as_complex(x) * (1 + 1j))


def test_complex_numbers_are_found(only, line_in):
    (found,) = only("NPU302", Complex(), (torch.randn(4, 2),))
    assert found.location.line == line_in(Complex, "view_as_real")


class Integers(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        return (x.to(self.dtype) * 7 + 1) % 11


def test_int64_arithmetic_on_large_tensors_is_found(only):
    assert len(only("NPU303", Integers(torch.int64), (torch.randint(0, 9, (64, 64)),))) == 1


def test_int32_arithmetic_is_quiet(only):
    assert only("NPU303", Integers(torch.int32), (torch.randint(0, 9, (64, 64)),)) == []


@pytest.mark.parametrize(("target", "count"), [("ascend-910a", 1), ("ascend-310p3", 1), ("ascend-910b2", 0)])
def test_bfloat16_is_an_error_on_chips_without_it(only, target, count):
    assert len(only("NPU304", nn.Linear(4, 4).bfloat16(), (torch.randn(2, 4).bfloat16(),), target)) == count


class Guarded(nn.Module):
    def forward(self, x):
        y = (x.half() * 3000).pow(2)
        return torch.where(torch.isinf(y).any(), torch.zeros_like(y), y)


@pytest.mark.parametrize(("target", "default"), [("ascend-910a", "saturation"), ("ascend-910b2", "inf-nan")])
def test_isinf_after_half_differs_between_the_overflow_modes(only, target, default):
    (found,) = only("NPU310", Guarded(), (torch.full((2, 4), 2.0),), target)
    assert (found.details["inf_nan"], found.details["saturation"], found.details["chip_default"]) == (True, False, default)


def test_the_switch_is_named(only):
    assert "INF_NAN_MODE_ENABLE" in only("NPU310", Guarded(), (torch.full((2, 4), 2.0),))[0].fix


class Masked(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.fill = fill

    def forward(self, q, k, keep):
        mask = torch.zeros(keep.shape).masked_fill(~keep, self.fill)
        return (q @ k.transpose(-1, -2) + mask).softmax(-1)


KEEP = torch.tril(torch.ones(3, 3), -1).bool()


def test_a_fully_masked_row_is_proven_on_the_sample(only):
    (found,) = only("NPU311", Masked(-math.inf), (torch.randn(3, 4), torch.randn(3, 4), KEEP))
    assert found.details["fully_masked_rows"] == [[0]]


def test_the_polarity_of_ascends_mask_is_told(only):
    assert "True means masked" in only("NPU311", Masked(-math.inf), (torch.randn(3, 4), torch.randn(3, 4), KEEP))[0].fix


def test_a_finite_mask_is_quiet(only):
    assert only("NPU311", Masked(torch.finfo(torch.float32).min), (torch.randn(3, 4), torch.randn(3, 4), KEEP)) == []


class Squares(nn.Module):
    def forward(self, x):
        return x.pow(2).sum(-1).sqrt()


def test_values_beyond_float16_are_found_with_the_largest(only):
    (found,) = only("NPU312", Squares(), (torch.full((2, 4), 200.0),), "qnn")
    assert found.details["largest"] == 4 * 200.0**2


def test_values_within_float16_are_quiet(only):
    assert only("NPU312", Squares(), (torch.full((2, 4), 2.0),), "qnn") == []


def test_a_plain_model_has_no_finding(look):
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 16)).eval()
    assert [look(model, (torch.randn(4, 16),), t) for t in ("ascend-910b2", "qnn", "ethos-u55-128", "rknn:rk3588", "openvino:NPU")] == [[]] * 5


def test_scaled_dot_product_attention_itself_is_no_mask_trouble(only):
    class Plain(nn.Module):
        def forward(self, q):
            return functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    assert only("NPU311", Plain(), (torch.randn(1, 2, 4, 8),)) == []
