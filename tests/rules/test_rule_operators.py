"""Rules over operators. The right value of each equivalence comes from torch's own operator; a neighbour without the trouble is quiet."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from npulift.capture import Op, Tensor
from npulift.rules import conv3d_patch_embed, missing_fake_kernel, transposed_conv_stride


def conv3d(groups):
    return nn.Conv3d(24, 24, 3, padding=1, groups=groups)


CLIP = (torch.randn(1, 24, 2, 4, 4),)


def test_grouped_conv3d_gives_two_ways_out_and_the_price_of_internal_formats(only):
    (found,) = only("NPU141", conv3d(3), CLIP)
    assert [w in found.fix for w in ("8.1.RC1", "split", "allow_internal_format", "TransData")] == [True] * 4


def test_splitting_by_group_is_checked(only):
    assert only("NPU141", conv3d(3), CLIP)[0].details["split_max_abs_diff"] < 1e-5


@pytest.mark.parametrize("groups", [1, 24])
def test_whole_and_depthwise_conv3d_are_quiet(only, groups):
    assert only("NPU141", conv3d(groups), CLIP) == []


def test_patch_embedding_offers_a_checked_linear(only):
    (found,) = only("NPU142", nn.Conv3d(3, 8, (2, 4, 4), (2, 4, 4)), (torch.randn(2, 3, 2, 4, 4),), "ascend-310p3")
    assert (found.details["in_features"], found.details["linear_max_abs_diff"] < 1e-4, str(found.severity)) == (96, True, "error")


def test_patches_of_a_larger_input_are_the_same_product():
    x, w = torch.randn(2, 3, 4, 8, 12), torch.randn(5, 3, 2, 4, 4)
    torch.testing.assert_close(conv3d_patch_embed.linear_form(x, w), functional.conv3d(x, w, stride=(2, 4, 4)), atol=1e-4, rtol=1e-4)


def test_overlapping_conv3d_is_no_patch_embedding(only):
    assert only("NPU142", nn.Conv3d(3, 8, (2, 4, 4), (1, 4, 4)), (torch.randn(1, 3, 4, 8, 8),)) == []


class Upsample(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return functional.interpolate(x, **self.options)


def test_linear_upsampling_has_low_confidence_and_both_flop_counts(only):
    (found,) = only("NPU143", Upsample(scale_factor=30.0, mode="linear"), (torch.rand(1, 9, 20),))
    assert (found.details["confidence"], found.details["flops_matrix"], found.details["flops_now"]) == ("low", 2 * 9 * 600 * 20, 3 * 9 * 600)


@pytest.mark.parametrize(("size", "upscale"), [((32, 32), False), ((96, 96), True)])
def test_antialias_up_is_free_and_down_is_not(only, size, upscale):
    (found,) = only("NPU144", Upsample(size=size, mode="bilinear", antialias=True), (torch.rand(1, 3, 64, 64),), "qnn")
    assert (found.details["upscale"], found.details["plain_max_abs_diff"] < 1e-5) == (upscale, upscale)


def test_antialias_as_two_fixed_matrices_is_equal(only):
    (found,) = only("NPU144", Upsample(size=(24, 40), mode="bilinear", antialias=True), (torch.rand(1, 3, 64, 64),), "qnn")
    assert found.details["matrices_max_abs_diff"] < 1e-5


class Shifts(nn.Module):
    def __init__(self, tensors):
        super().__init__()
        self.tensors = tensors
        self.register_buffer("order", torch.tensor([0, 4, 1, 5]))

    def forward(self, x):
        amounts = self.order if self.tensors else (0, 4, 1, 5)
        return torch.stack([(x >> (amounts[i] * 4)) & 0xF for i in range(4)], -1)


def test_shifts_by_tensors_are_one_finding_with_the_constants(only):
    (found,) = only("NPU145", Shifts(True), (torch.randint(0, 2**31 - 1, (4, 6)),))
    assert (found.details["occurrences"], found.details["amounts"], found.details["constant_shift_equal"]) == (4, [0, 16, 4, 20], True)


def test_shifts_by_numbers_are_quiet(only):
    assert only("NPU145", Shifts(False), (torch.randint(0, 2**31 - 1, (4, 6)),)) == []


ROOT2 = 1.4142135623730951
SPELLINGS = {
    "half last": lambda h: h * (torch.erf(h / ROOT2) + 1.0) * 0.5,
    "half first": lambda h: 0.5 * h * (1.0 + torch.erf(h / ROOT2)),
    "by product": lambda h: h * 0.5 * (1.0 + torch.erf(h * 0.7071067811865476)),
    "half of the erf": lambda h: h * (0.5 * torch.erf(h / ROOT2) + 0.5),
    "outside": lambda h: 0.5 * (h * (1.0 + torch.erf(h / ROOT2))),
}


class Spelled(nn.Module):
    def __init__(self, spelling):
        super().__init__()
        self.spelling = spelling

    def forward(self, x):
        return self.spelling(x)


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_gelu_is_recognised_in_any_order(only, spelling):
    (found,) = only("NPU146", Spelled(spelling), (torch.randn(2, 16),), "qnn")
    assert (found.details["spelling"], found.details["islands_removed"]) == ("gelu", 1)


def test_another_erf_is_no_gelu(only):
    (found,) = only("NPU146", Spelled(lambda h: torch.erf(h / 3.0)), (torch.randn(2, 16),), "qnn")
    assert found.details["spelling"] == "erf"


class Attention(nn.Module):
    def forward(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


QKV = tuple(torch.randn(1, 2, 8, 16) for _ in range(3))


@pytest.mark.parametrize(("target", "advice"), [("qnn", "decompose"), ("ascend-910b2", "keep-fused")])
def test_advice_about_attention_is_opposite_by_target(only, target, advice):
    assert only("NPU147", Attention(), QKV, target)[0].details["advice"] == advice


def test_the_operators_after_decomposition_are_those_of_the_real_export(only):
    assert only("NPU147", Attention(), QKV, "qnn")[0].details["operators_after"]["MatMul"] == 2


@pytest.fixture
def scale_rows():
    library = torch.library.Library("npulift_rules_test", "FRAGMENT")
    library.define("scale_rows(Tensor x, Tensor s) -> Tensor")
    library.impl("scale_rows", lambda x, s: x * s[:, None], "CPU")
    yield torch.ops.npulift_rules_test.scale_rows
    library._destroy()


def test_a_custom_operator_without_fake_kernel_gets_a_stub_that_works(only, scale_rows):
    class Model(nn.Module):
        def forward(self, x, s):
            return scale_rows(x, s).relu()

    (found,) = only("NPU150", Model(), (torch.randn(3, 4), torch.rand(3)), "qnn")
    namespace = {"torch": torch}
    exec(found.details["stub"], namespace)
    program = torch.export.export(Model(), (torch.randn(3, 4), torch.rand(3)))
    assert [tuple(n.meta["val"].shape) for n in program.graph.nodes if n.op == "call_function"] == [(3, 4), (3, 4)]


def test_custom_op_without_fake_is_found_and_one_with_it_is_quiet(only):
    @torch.library.custom_op("npulift_rules_test::without", mutates_args=())
    def without(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.library.custom_op("npulift_rules_test::having", mutates_args=())
    def having(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    having.register_fake(torch.empty_like)

    class Model(nn.Module):
        def forward(self, x):
            return without(x) + having(x)

    assert [f.details["operator"] for f in only("NPU150", Model(), (torch.randn(3, 4),))] == ["npulift_rules_test::without"]


def test_a_stub_takes_each_size_from_an_argument(scale_rows):
    def tensor(*shape, dtype="float32"):
        return Tensor(shape, dtype)

    op = Op("npulift_rules_test::scale_rows.default", (tensor(5, 7), tensor(9)), (tensor(9, 7, dtype="int64"),), None, None, None, None, None, "", "eager")
    assert missing_fake_kernel.stub(op).endswith("return x.new_empty((s.shape[0], x.shape[1]), dtype=torch.int64)")


class Mask(nn.Module):
    def __init__(self, inverted):
        super().__init__()
        self.inverted = inverted

    def forward(self, x):
        mask = torch.tril(torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool))
        return x.masked_fill(~mask if self.inverted else mask == 0, 0.0)


@pytest.mark.parametrize("target", ["qnn", "ethos-u55-128"])
def test_inverted_mask_is_found_and_its_equal_form_checked(only, target):
    assert [f.details["equal"] for f in only("NPU151", Mask(True), (torch.randn(2, 6, 6),), target)] == [True]


def test_mask_compared_with_zero_is_quiet(only):
    assert only("NPU151", Mask(False), (torch.randn(2, 6, 6),), "qnn") == []


def test_nearest_upsampling_offers_an_equal_transposed_convolution(only):
    (found,) = only("NPU152", Upsample(scale_factor=2.0, mode="nearest"), (torch.randn(1, 8, 8, 8),), "ethos-u55-128")
    assert (found.details["scale"], found.details["transposed_conv_max_abs_diff"]) == ([2, 2], 0.0)


def test_nearest_upsampling_is_quiet_on_u85(only):
    assert only("NPU152", Upsample(scale_factor=2.0, mode="nearest"), (torch.randn(1, 8, 8, 8),), "ethos-u85-256") == []


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(dim=(1, 2), keepdim=True)


@pytest.mark.parametrize(("rows", "products"), [(256, [102400]), (16, [])])
def test_the_product_of_reduced_axes_is_computed(only, rows, products):
    assert [f.details["product"] for f in only("NPU153", Mean(), (torch.randn(1, rows, 400),), "ethos-u55-128")] == products


@pytest.mark.parametrize(("stride", "count"), [(3, 1), (2, 0)])
def test_transposed_convolution_beyond_stride_two(only, stride, count):
    assert len(only("NPU154", nn.ConvTranspose2d(3, 1, 5, stride=stride, padding=2), (torch.randn(1, 3, 4, 4),), "ethos-u55-128")) == count


def test_zero_insertion_equals_the_transposed_convolution():
    x, w = torch.randn(2, 3, 5, 4), torch.randn(3, 6, 5, 3)
    wanted = functional.conv_transpose2d(x, w, stride=(3, 4), padding=(2, 1), output_padding=(1, 2))
    torch.testing.assert_close(transposed_conv_stride.zero_insertion(x, w, [3, 4], [2, 1], [1, 2]), wanted, atol=1e-4, rtol=1e-4)


def test_forced_cuda_attention_is_an_error(only):
    class Forced(nn.Module):
        def forward(self, q, k, v):
            return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, False)[0]

    assert [str(f.severity) for f in only("NPU105", Forced(), QKV)] == ["error"]


def test_eager_fast_path_is_found_and_switching_it_off_tried(only):
    (found,) = only("NPU104", nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), (torch.randn(2, 5, 32),))
    assert (found.details["operator"], found.details["fast_path_off_removes_it"]) == ("aten::_transformer_encoder_layer_fwd", True)


def test_the_fast_path_is_as_it_was_afterwards(only):
    only("NPU104", nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), (torch.randn(2, 5, 32),))
    assert torch.backends.mha.get_fastpath_enabled()


def test_train_mode_is_found(only):
    assert len(only("NPU600", nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)).train(), (torch.randn(2, 4),))) == 1


def test_train_mode_of_modules_that_do_not_care_is_quiet(only):
    assert only("NPU600", nn.Linear(4, 4).train(), (torch.randn(2, 4),)) == []


@pytest.mark.parametrize(("features", "count"), [(1003, 1), (1008, 0)])
def test_sizes_that_are_no_multiple_of_16(only, features, count):
    assert len(only("NPU410", nn.Linear(512, features), (torch.randn(16, 512),))) == count


def test_bicubic_becomes_many_core_operators(only):
    (found,) = only("NPU107", Upsample(scale_factor=1.7, mode="bicubic", align_corners=True), (torch.randn(1, 2, 8, 8),), "ethos-u55-128")
    assert found.details["gathers"] == 16  # four by four neighbours


def test_scatter_is_found(only):
    class Scatter(nn.Module):
        def forward(self, x, index):
            return torch.zeros(8, 4).scatter_add(0, index, x)

    assert len(only("NPU106", Scatter(), (torch.randn(8, 4), torch.randint(0, 8, (8, 4))), "ethos-u55-128")) == 1


class Convs(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x).relu()


def test_channels_first_input_is_found_and_channels_last_removes_it(only):
    x = torch.randn(1, 3, 16, 16)
    last = x.to(memory_format=torch.channels_last)
    assert [len(only("NPU400", Convs(), (v,), "ethos-u55-128")) for v in (x, last)] == [1, 0]


@pytest.mark.parametrize(("target", "count"), [("ethos-u55-128", 1), ("ascend-910b2", 0)])
def test_rank_five_behind_a_convolution_is_for_ethos_alone(only, target, count):
    class Five(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 16, 3, 2, 1)

        def forward(self, x):
            return self.conv(x).relu().permute(0, 2, 3, 1).reshape(1, 1, 8, 8, 16).permute(0, 1, 3, 2, 4)

    assert len(only("NPU401", Five(), (torch.randn(1, 3, 16, 16),), target)) == count


def test_copies_for_layout_alone_are_found(only):
    class Copies(nn.Module):
        def forward(self, x):
            return x.transpose(1, 2).contiguous().transpose(1, 2).contiguous() + 1

    assert len(only("NPU402", Copies(), (torch.randn(4, 128, 256),))) == 1


def test_a_rule_that_fails_is_told_and_hides_nothing(look, monkeypatch):
    from npulift.rules import train_mode

    def broken(capture, target):
        raise RuntimeError("for the test")
        yield

    monkeypatch.setattr(train_mode, "find", broken)
    found = look(conv3d(3), CLIP)
    assert {"NPU109", "NPU141"} <= {f.code for f in found}
