"""Rules over dynamic sizes and control flow."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from npulift.model import Dim

DYNAMIC = {0: {0: Dim("batch", 1), 1: Dim("steps", 1, 512)}}


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 8)

    def forward(self, ids):
        return self.table(ids).mean(1)


IDS = (torch.randint(0, 100, (2, 16)),)


def test_only_the_dim_without_bound_is_an_error_on_the_intel_npu(only):
    (found,) = only("NPU210", Embed(), IDS, "openvino:NPU", dims=DYNAMIC)
    assert (found.details["dim"], [b["dim"] for b in found.details["bounded"]], str(found.severity)) == ("batch", ["steps"], "error")


def test_int64_max_is_explained(only):
    assert str(2**63 - 1) in only("NPU210", Embed(), IDS, "openvino:NPU", dims=DYNAMIC)[0].message


def test_bounded_dims_are_quiet(only):
    assert only("NPU210", Embed(), IDS, "openvino:NPU", dims={0: {1: Dim("steps", 1, 512)}}) == []


def test_varying_sizes_are_counted(only):
    (found,) = only("NPU212", Embed(), IDS, "qnn", dims={0: {1: Dim("steps", 2, 65)}})
    assert found.details["shapes"] == 64


def test_a_batch_of_one_that_was_fixed_is_found_and_two_is_tried(only):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x).flatten(1)

    (found,) = only("NPU211", Flat(), (torch.randn(1, 3, 8, 8),), "openvino", dims={0: {0: Dim("b", 1, 16)}})
    assert (found.details["example_size"], found.details["symbolic_with_2"]) == (1, True)


def test_a_dim_that_is_symbolic_is_quiet(only):
    assert only("NPU211", Embed(), IDS, "openvino", dims={0: {1: Dim("steps", 1, 512)}}) == []


class Cond(nn.Module):
    def forward(self, x):
        return torch.cond(x.mean() > 0, lambda t: t * 2, lambda t: t - 1, (x,))


def test_run_time_branch_gives_its_where_form(only):
    (found,) = only("NPU220", Cond(), (torch.randn(2, 4),), "rknn:rk3588")
    assert (found.details["where"], found.details["where_equal"]) == ("torch.where(x.mean() > 0, x * 2, x - 1)", True)


class Branch(nn.Module):
    def forward(self, x):
        if torch.isnan(x).any():
            x = torch.zeros_like(x)
        return x.relu()


def test_a_branch_is_found_at_its_line_with_a_form_that_exports(only, line_in):
    (found,) = only("NPU221", Branch(), (torch.randn(2, 4),))
    assert (found.location.line, found.details["rewrite"]["exports"]) == (line_in(Branch, "if torch"), True)


def test_a_branch_on_a_python_flag_is_quiet(look):
    class Flag(nn.Module):
        flag = True

        def forward(self, x):
            return x.relu() if self.flag else x

    assert look(Flag(), (torch.randn(2, 4),)) == []


class Sizes(nn.Module):
    def forward(self, x):
        kept = x[x[:, 0] > 0]
        return torch.masked_select(kept, kept > 0.5).sum() + kept.mean()


def test_each_size_that_depends_on_data_is_found_at_its_line(only, line_in):
    lines = {f.location.line for f in only("NPU222", Sizes(), (torch.randn(16, 4),))}
    assert lines == {line_in(Sizes, "kept = "), line_in(Sizes, "masked_select")}


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            rows = (chosen == e).nonzero().squeeze(-1)
            out = out.index_add(0, rows, expert(x[rows]))
        return out


def test_an_expert_loop_is_one_finding_with_its_sites_and_factor(look, line_in):
    found = [f for f in look(Experts(), (torch.randn(12, 16),)) if f.code in ("NPU222", "NPU223")]
    assert [(f.code, f.location.line, f.details["sites"], f.details["flop_factor"]) for f in found] == [("NPU223", line_in(Experts, "nonzero"), 4, 4.0)]


class Filtered(nn.Module):
    def forward(self, q, keep):
        q = q[keep]
        return functional.scaled_dot_product_attention(q, q, q)


def test_a_filtered_batch_in_attention_is_found(only, line_in):
    (found,) = only("NPU224", Filtered(), (torch.randn(4, 2, 6, 8), torch.tensor([True, False, True, True])), "qnn")
    assert found.location.line == line_in(Filtered, "scaled_dot_product_attention(")


def test_a_value_read_back_is_found_once(look, line_in):
    class Item(nn.Module):
        def forward(self, x):
            scale = x.abs().max().item()
            return x / max(scale, 1.0)

    found = [f for f in look(Item(), (torch.randn(4, 4),)) if f.code == "NPU203"]
    assert [f.location.line for f in found] == [line_in(Item, ".item()")]


@pytest.mark.parametrize("target", ["openvino", "cpu"])
def test_runtimes_of_the_host_get_no_error(look, target):
    assert [f for f in look(Sizes(), (torch.randn(16, 4),), target) if str(f.severity) == "error"] == []
