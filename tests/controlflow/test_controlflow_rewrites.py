"""Source rewrites: the rewritten module against the user's own, on inputs of the test's making, not of the verifier's."""

import pytest
import torch
from torch import nn

from npulift.controlflow import proposals, rewrites_of
from npulift.model import ModelSpec
from npulift.tracing import capture


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
            if x.mean() < 0.01:
                return x
        return x


class Selections(nn.Module):
    def forward(self, x):
        kept = x[x[:, 0] > 0]
        return torch.masked_select(kept, kept > 0.5).sum() + kept.mean()


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            mask = chosen == e
            if mask.any():
                out[mask] = expert(x[mask]) * weight[mask].unsqueeze(-1)
        return out


class TwoOfFour(nn.Module):
    """Routing as transformers' mixture models write it."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2, dim=-1)
        mask = torch.nn.functional.one_hot(chosen, num_classes=4).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for e in range(4):
            slot, row = torch.where(mask[e])
            out.index_add_(0, row, self.experts[e](x[None, row].reshape(-1, 8)) * weights[row, slot, None])
        return out


class Bounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(4, 4)

    def forward(self, x):
        step = 0
        while x.abs().max() > 0.5 and step < 6:
            x = torch.tanh(self.step(x)) * 0.7
            step += 1
        return x


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x):
        total = torch.zeros_like(x)
        for layer in self.layers:
            h = layer(x).relu()
            if h.sum() < 0.3:
                break
            x = x + h  # the residual
            total += x
        return x, total


class Sides(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        if x.mean() > 0:
            y = self.a(x)
            z = y.sum(-1)
        else:
            y = self.b(x)
            if y.max() > 1:
                y = y / y.max()
            z = y.mean(-1)
        return y, z


class Scalar(nn.Module):
    def forward(self, x):
        scale = x.abs().max().item()
        return x / max(scale, 1.0)


class Either(nn.Module):
    def forward(self, x):
        if not torch.isfinite(x).all():
            return torch.nan_to_num(x)
        return x * 2


MODELS = {
    EarlyExit: 8, Selections: 4, Experts: 8, TwoOfFour: 8, Bounded: 4, Breaks: 4, Sides: 4, Scalar: 4, Either: 4,
}


def rewritten(cls, width):
    torch.manual_seed(0)
    module = cls().eval()
    seen = capture(ModelSpec(module, (torch.randn(6, width),)))
    (result,) = rewrites_of(seen)
    assert not result.refused, result.refused
    return module, result


def leaves(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("cls", MODELS, ids=lambda c: c.__name__)
def test_the_rewritten_form_gives_the_same_on_many_inputs(cls):
    module, result = rewritten(cls, MODELS[cls])
    changed = result.build(module)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for scale in (0.0, 0.01, 0.3, 1.0, 5.0, -2.0):
            x = torch.randn(6, MODELS[cls], generator=generator) * scale
            for got, wanted in zip(leaves(changed(x)), leaves(module(x)), strict=True):
                torch.testing.assert_close(got, wanted, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", MODELS, ids=lambda c: c.__name__)
def test_the_rewritten_form_exports_with_fixed_sizes(cls):
    _module, result = rewritten(cls, MODELS[cls])
    assert result.exports


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_masked_full_depth_equals_the_early_exit_at_every_depth(depth):
    module, result = rewritten(EarlyExit, 8)
    with torch.no_grad():
        for i, layer in enumerate(module.layers):  # positive until the layer that is to leave
            layer.weight.copy_(torch.eye(8) * (-1.0 if i == depth - 1 else 1.5))
            layer.bias.zero_()
        x = torch.rand(2, 8) + 0.5
        expected = x * 1.5 ** (depth - 1) * 0
        torch.testing.assert_close(module(x), expected)
        torch.testing.assert_close(result.build(module)(x), expected)


def test_an_empty_selection_has_the_mean_that_eager_gives():
    module, result = rewritten(Selections, 4)
    x = -torch.rand(6, 4)
    assert torch.isnan(module(x))
    assert torch.isnan(result.build(module)(x))


def test_every_path_through_the_branches_is_walked():
    _module, result = rewritten(EarlyExit, 8)
    assert result.evidence.paths >= 5  # none, and leaving at each of four


def test_the_users_module_stays_as_it_was():
    module, result = rewritten(EarlyExit, 8)
    result.build(module)
    assert type(module) is EarlyExit


def test_parameters_keep_their_names():
    module, result = rewritten(Experts, 8)
    assert list(result.build(module).state_dict()) == list(module.state_dict())


def test_the_dense_form_says_how_much_more_it_computes():
    _module, result = rewritten(TwoOfFour, 8)
    assert 1.5 < result.flop_factor < 2.0  # four experts instead of two, and the gate as before


def test_comments_and_untouched_lines_stay():
    _module, result = rewritten(Breaks, 4)
    assert "# the residual" in result.diff


def test_a_change_for_tune_is_made_of_each():
    torch.manual_seed(0)
    module = EarlyExit().eval()
    (change,) = proposals(capture(ModelSpec(module, (torch.randn(2, 8),))))
    assert change.exact


class Unbounded(nn.Module):
    def forward(self, x):
        while x.abs().max() > 1:
            x = x / 2
        return x


class Raises(nn.Module):
    def forward(self, x):
        if x.min() < 0:
            raise ValueError("negative")
        return x.sqrt()


class Whole(nn.Module):
    def forward(self, x):
        return x[x > 0]


class Appends(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        if x.sum() > 0:
            self.seen.append(1)
        return x


@pytest.mark.parametrize(("cls", "why"), [(Unbounded, "no bound"), (Raises, "raises"), (Whole, "as a whole"), (Appends, "more than assign")])
def test_what_cannot_be_done_is_refused_with_the_reason(cls, why):
    (result,) = rewrites_of(capture(ModelSpec(cls(), (torch.rand(4, 4),))))
    assert why in result.refused


class Lies(nn.Module):
    """Its branches have different shapes, so no selection between them can be right."""

    def forward(self, x):
        if x.sum() > 0:
            x = x.sum(0, keepdim=True)
        return x


def test_a_rewrite_that_differs_is_never_offered():
    (result,) = rewrites_of(capture(ModelSpec(Lies(), (torch.rand(4, 4),))))
    assert (result.build, bool(result.refused)) == (None, True)


def test_a_model_without_branches_has_none():
    assert rewrites_of(capture(ModelSpec(nn.Linear(4, 4), (torch.rand(4, 4),)))) == []
