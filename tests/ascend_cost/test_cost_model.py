"""The cost model against closed forms, and against a public capture where it is at hand."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from npulift.ascend import records
from npulift.ascend.chips import chip, chips
from npulift.ascend.cost import Predictor, predict, predict_launch, weight
from npulift.ascend.cost.launches import Cache
from npulift.ascend.cost.roofline import cube_seconds
from npulift.ascend.cost.tables import _rows, calibration, kernel_type, kernel_types, links
from npulift.ascend.cost.work import Gemm, work
from npulift.ascend.records import Event, Operand, Signature
from npulift.capture import Op, Tensor
from npulift.measured import Kind

B2 = chip("ascend-910b2")


def half(*shape: int) -> Operand:
    return Operand(shape, "float16", "ND", ())


def launch(function: str, inputs: tuple[Operand, ...], outputs: tuple[Operand, ...]) -> Event:
    signature = Signature(function, inputs, outputs, ())
    return Event(records.LAUNCH, 0, signature, function, 0, 0, 0, 0, 0, 0, "", None, None, "", "forward", "", 0)


def test_aligned_product_costs_the_cube_its_multiply_adds():
    gemm = Gemm(1, 3072, 4096, 4096)  # 24 x 16 tiles of 128 x 256: 16 whole waves over 24 cores
    assert cube_seconds(gemm, B2, "float16") == pytest.approx(gemm.flops / (24 * 8192 * 1.85e9), rel=1e-9)


def test_size_that_is_not_a_multiple_of_16_costs_as_much_as_the_next_one():
    assert cube_seconds(Gemm(1, 3072, 4096, 4081), B2, "float16") == cube_seconds(Gemm(1, 3072, 4096, 4096), B2, "float16")


def test_product_too_small_for_all_cores_takes_longer_than_its_share():
    small, large = Gemm(1, 128, 256, 4096), Gemm(1, 3072, 4096, 4096)
    assert cube_seconds(small, B2, "float16") / small.flops > 2 * cube_seconds(large, B2, "float16") / large.flops


@pytest.mark.parametrize(("dtype", "times"), [("int8", 0.5), ("bfloat16", 1.0), ("float32", 4.0)])
def test_cube_rate_by_dtype(dtype, times):
    gemm = Gemm(1, 3072, 4096, 4096)
    assert cube_seconds(gemm, B2, dtype) == pytest.approx(times * cube_seconds(gemm, B2, "float16"))


@pytest.mark.parametrize(
    ("function", "inputs", "out", "flops"),
    [
        ("aclnnMm", [(64, 32), (32, 48)], (64, 48), 2 * 64 * 32 * 48),
        ("aclnnAddmm", [(48,), (64, 32), (32, 48)], (64, 48), 2 * 64 * 32 * 48),
        ("aclnnMatmul", [(4, 8, 64, 32), (4, 8, 32, 48)], (4, 8, 64, 48), 32 * 2 * 64 * 32 * 48),
        ("aclnnMatmul", [(4, 64, 32), (32, 48)], (4, 64, 48), 4 * 2 * 64 * 32 * 48),
        ("aclnnBaddbmm", [(4, 64, 48), (4, 64, 32), (4, 32, 48)], (4, 64, 48), 4 * 2 * 64 * 32 * 48),
        ("aclnnConvolution", [(2, 32, 8, 8), (64, 32, 3, 3), (64,)], (2, 64, 8, 8), 2 * 2 * 64 * 8 * 8 * 32 * 9),
        ("aclnnConvolution", [(2, 32, 8, 8), (32, 16, 3, 3)], (2, 32, 8, 8), 2 * 2 * 32 * 8 * 8 * 16 * 9),
        ("aclnnFlashAttentionScore", [(2, 4, 128, 64), (2, 4, 256, 64), (2, 4, 256, 64)], (2, 4, 128, 64), 2 * 2 * 2 * 4 * 128 * 256 * 64),
        ("aclnnFlashAttentionScoreGrad", [(2, 4, 128, 64), (2, 4, 256, 64), (2, 4, 256, 64)], (2, 4, 128, 64), 5 * 2 * 2 * 4 * 128 * 256 * 64),
    ],
)
def test_floating_point_operations_by_shape(function, inputs, out, flops):
    job = work(kernel_type(function), [half(*s) for s in inputs], [half(*out)], 48)
    assert sum(g.flops for g in job.gemms) == flops


def test_gradient_of_a_convolution_is_two_convolutions():
    shapes = [(2, 64, 8, 8), (2, 32, 8, 8), (64, 32, 3, 3)]
    job = work(kernel_type("aclnnConvolutionBackward"), [half(*s) for s in shapes], [half(*shapes[1]), half(*shapes[2]), half(64)], 48)
    assert sum(g.flops for g in job.gemms) == 2 * 2 * 2 * 64 * 8 * 8 * 32 * 9


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_attention_counts_the_same_in_every_layout(layout):
    sizes = {"B": 2, "N": 4, "S": 128, "D": 128, "H": 512}
    q = half(*(sizes[letter] for letter in layout))
    job = work(kernel_type("FlashAttentionScore"), [q, q, q], [q], 48, layout)
    assert sum(g.flops for g in job.gemms) == 4 * 2 * 4 * 128 * 128 * 128


def test_data_beyond_the_cache_moves_slower_than_data_within():
    fits, large = half(16 << 20), half(1 << 30)
    rate = {x: x.bytes * 3 / predict("aclnnAdd", (x, x), (x,), B2).ns for x in (fits, large)}
    assert rate[fits] > 2 * rate[large]


def test_kernel_of_a_few_elements_costs_its_launch():
    p = predict("aclnnAdd", (half(8), half(8)), (half(8),), B2)
    assert (p.bound, 500 < p.ns < 3000) == ("launch", True)


def test_dtype_without_vector_instructions_goes_to_the_ai_cpu():
    wide = Operand((4096,), "float64", "ND", ())
    p = predict("aclnnAdd", (wide, wide), (wide,), B2)
    assert (p.device, p.ns > 50_000) == ("AI_CPU", True)


def test_int64_arithmetic_counts_eight_vector_passes_for_one():
    one, two = (work(kernel_type("Mul"), [Operand((64,), d, "ND", ())], [Operand((64,), d, "ND", ())], 48) for d in ("int32", "int64"))
    assert two.passes == 8 * one.passes


@pytest.mark.parametrize("name", [n for n in chips() if n not in calibration()["chips"]])
def test_chip_without_calibration_data_says_so(name):
    p = predict("MatMul", (half(4096, 4096), half(4096, 4096)), (half(4096, 4096),), chip(name))
    assert (p.calibrated, "no calibration data" in p.basis, p.kind) == (False, True, Kind.PREDICTED)


def test_kernel_type_that_the_capture_lacks_is_not_called_calibrated():
    q = half(2, 8, 1024, 64)
    p = predict("aclnnFlashAttentionScore", (q, q, q), (q,), B2)
    assert (p.calibrated, p.high_ns / p.low_ns > 5) == (False, True)


def test_every_figure_lies_in_its_bar():
    for name in kernel_types():
        p = predict(name, (half(64, 64), half(64, 64), half(64, 64)), (half(64, 64),), B2)
        assert p.low_ns <= p.ns <= p.high_ns, name


def test_every_function_maps_to_a_known_type():
    assert {r["type"] for r in _rows("aclnn.csv")} <= set(kernel_types())


@pytest.mark.parametrize(("function", "kind"), [("aclnnInplaceAdd", "Add"), ("aclnnForeachMulScalarV2", "ForeachOptimizer"), ("aclnnApplyAdamWV2", "ApplyAdamW"),
                                                ("aclop:MatMul", "MatMul"), ("aclnnFlashAttentionScoreGradV4", "FlashAttentionScoreGrad"), ("aclnnNoSuch", "Unknown")])
def test_kernel_type_of_a_function(function, kind):
    assert kernel_type(function).name == kind


def test_links_stand_for_every_chip():
    assert set(links()) == set(chips())


def test_least_recently_used_buffer_leaves_the_cache_first():
    cache = Cache(100)
    cache.access([60], [])
    cache.access([], [30])
    cache.access([], [50])
    assert cache.access([60, 30], []) == ([0.0, 1.0], False)


def test_two_buffers_of_one_size_need_two_places():
    cache = Cache(100)
    cache.access([40], [])
    assert cache.access([40, 40], []) == ([1.0, 0.0], False)


def test_predictor_finds_a_tensor_that_was_just_written():
    x, y, z = half(24 << 20), half(23 << 20), half(22 << 20)
    predictor = Predictor(B2)
    first, again = predictor(launch("aclnnAbs", (x,), (y,))), predictor(launch("aclnnAbs", (y,), (z,)))
    assert first is not None
    assert again is not None
    assert again.ns < first.ns * 0.8


def test_compilation_is_paid_once_a_shape_and_only_where_the_chip_compiles():
    old, new = Predictor(chip("ascend-910a")), Predictor(B2)
    event = launch("aclnnAbs", (half(8),), (half(8),))
    assert [p(event) is None for p in (old,)] == [False]
    assert (old.compiles(event) is not None, old.compiles(event), new.compiles(event)) == (True, None, None)


def collective(name: str, size: int, ranks: int) -> Event:
    return Event(records.COLLECTIVE, 0, None, name, size, ranks, 0, 0, 0, 0, "", None, None, "", "forward", "", 0)


def test_all_reduce_over_a_mesh_sends_an_eighth_over_each_link_twice():
    p = predict_launch(collective("HcclAllReduce", 800_000_000, 8), B2)
    assert p is not None
    assert p.ns == pytest.approx(2 * 1e8 / (28e9 * 0.8) * 1e9, rel=0.01)


def test_all_gather_is_half_of_an_all_reduce():
    gather, reduce = (predict_launch(collective(name, 800_000_000, 8), B2) for name in ("HcclAllGather", "HcclAllReduce"))
    assert gather is not None
    assert reduce is not None
    assert gather.ns == pytest.approx(reduce.ns / 2, rel=0.01)


def test_sixteen_cards_cross_the_network():
    eight, sixteen = (predict_launch(collective("HcclAllReduce", 800_000_000, n), B2) for n in (8, 16))
    assert eight is not None
    assert sixteen is not None
    assert sixteen.ns > eight.ns


def test_copy_to_the_host_runs_at_the_rate_of_pcie():
    event = Event(records.COPY, 0, None, "device-to-host", 1 << 30, 2, 0, 0, 0, 0, "", None, None, "", "forward", "", 0)
    p = predict_launch(event, B2)
    assert p is not None
    assert (1 << 30) / p.ns == pytest.approx(24.0, rel=0.01)


def op(name: str, inputs: list[tuple[int | str, ...]], out: tuple[int | str, ...]) -> Op:
    return Op(name, tuple(Tensor(s, "float16") for s in inputs), (Tensor(out, "float16"),), 1, 1, 1, None, None, "", "export")


def test_weight_of_a_linear_layer_is_that_of_the_kernel():
    found = weight(op("aten::linear.default", [(8, 512, 1024), (4096, 1024), (4096,)], (8, 512, 4096)), B2)
    kernel = predict("aclnnAddmm", (half(4096), half(4096, 1024), half(1024, 4096)), (half(4096, 4096),), B2)
    assert found == pytest.approx(kernel.ns / 1e9, rel=0.01)


def test_weight_of_an_operator_of_unknown_size_is_unknown():
    assert weight(op("aten::relu.default", [("s0", 4)], ("s0", 4)), B2) is None


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "tools" / "fit_ascend_cost.py"
    spec = importlib.util.spec_from_file_location("fit_ascend_cost", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["fit_ascend_cost"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def capture() -> Path:
    folder = Path(os.environ.get("NPULIFT_CAPTURES", Path(__file__).resolve().parents[3] / "shared" / "data" / "ascend"))
    path = folder / "kernel_details_training_910b.csv"
    if not path.exists():
        pytest.skip("the public Ascend captures are not here; set NPULIFT_CAPTURES to their folder")
    return path


@pytest.mark.captures
def test_half_of_the_capture_predicts_the_other_half(tool, capture):
    first, second = tool.halves(tool.read(capture))
    found = tool.summary(tool.errors(tool.fit(first), second))
    assert (found["median"] <= 0.12, found["within_40"] >= 0.9, abs(found["sum"] - 1) <= 0.1) == (True, True, True), found


@pytest.mark.captures
def test_random_halves_of_the_capture_predict_each_other(tool, capture):
    import random

    kernels = tool.read(capture)
    random.Random(3).shuffle(kernels)
    found = tool.summary(tool.errors(tool.fit(kernels[::2]), kernels[1::2]))
    assert (found["median"] <= 0.12, found["within_40"] >= 0.88, abs(found["sum"] - 1) <= 0.12) == (True, True, True), found


@pytest.mark.captures
def test_shipped_constants_give_the_sum_of_the_capture(tool, capture):
    found = tool.summary([(k.kind.name, k.ns, predict(k.kind.name, k.inputs, k.outputs, B2, warm=k.warm, warm_out=k.warm_out).ns) for k in tool.read(capture)])
    assert (found["median"] <= 0.1, abs(found["sum"] - 1) <= 0.1) == (True, True), found


@pytest.mark.captures
def test_a_type_left_out_keeps_the_sum(tool, capture):
    found = tool.summary(tool.left_out(tool.read(capture)))
    assert (found["median"] <= 0.15, abs(found["sum"] - 1) <= 0.1) == (True, True), found
