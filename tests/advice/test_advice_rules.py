"""Seeded faults are named with their figures; a healthy profile gives no warning."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "profilers"))
import generated

from npulift.advise import advise

HEAD = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim,Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats\n"


def found(report, code):
    return next(f for f in report.findings if f.code == code)


def warnings(report):
    return [f.code for f in report.findings if f.severity.value != "info"]


def test_a_healthy_profile_gives_no_warning(tmp_path):
    generated.kernel_details(tmp_path / "kernel_details.csv", 2800)
    assert warnings(advise(tmp_path)) == []


def test_a_healthy_trace_gives_no_warning(tmp_path):
    generated.trace_view(tmp_path / "trace_view.json", 300_000)
    assert warnings(advise(tmp_path)) == []


def test_complex_numbers_on_the_ai_cpu(tmp_path):
    (tmp_path / "kernel_details.csv").write_text(
        HEAD + '1,aclnnMul_Mul,Mul,AI_CPU,"1000.0\t",900.0,1,1,"""2,8;2,8""",DT_COMPLEX128;DT_COMPLEX128,ND;ND,"""2,8""",DT_COMPLEX128,ND\n'
        + '1,MatMul_1,MatMulV3,MIX_AIC,1901.0,100.0,1,24,"""8,8;8,8""",DT_BF16;DT_BF16,ND;ND,"""8,8""",DT_BF16,ND\n')
    finding = found(advise(tmp_path), "ADV001")
    assert finding.details["ai_cpu_share"] == pytest.approx(0.9)
    assert finding.details["cause"] == "complex128"


def test_both_kinds_of_layout_conversion_are_told_apart(tmp_path):
    rows = [("trans_1", "TransData", "100", "1,64,8,8", "NCHW", "1,4,8,8,16", "NC1HWC0"), ("Conv_2", "Conv2D", "500", "1,4,8,8,16", "NC1HWC0", "1,4,8,8,16", "NC1HWC0"),
            ("trans_3", "TransData", "100", "1,4,8,8,16", "NC1HWC0", "1,64,8,8", "NCHW"), ("trans_4", "TransData", "60", "512,512", "ND", "32,32,16,16", "FRACTAL_NZ"),
            ("MatMul_5", "MatMulV2", "240", "64,512;32,32,16,16", "ND;FRACTAL_NZ", "64,512", "ND")]
    now, text = 1000.0, HEAD
    for name, kind, us, shape, form, out, out_form in rows:
        text += f'1,{name},{kind},AI_CORE,{now},{us},0,8,"""{shape}""",FLOAT16,{form},"""{out}""",FLOAT16,{out_form}\n'
        now += float(us)
    (tmp_path / "kernel_details.csv").write_text(text)
    report = advise(tmp_path)
    assert (found(report, "ADV005").details["activation_us"], found(report, "ADV006").details["weight_us"]) == (200.0, 60.0)
    assert found(report, "ADV006").details["before"] == ["MatMul_5"]


def test_first_step_compiles_once(tmp_path):
    (tmp_path / "t.csv").write_text("iteration,time_ms,soc,kernel_meta_files\n1,90000,Ascend910A,7\n2,1000,Ascend910A,7\n3,1010,Ascend910A,7\n4,990,Ascend910A,7\n")
    finding = found(advise(tmp_path / "t.csv"), "ADV003")
    assert (finding.details["ratio"], finding.details["jit_compile_default"]) == (90.0, True)


def test_lost_kernels_at_the_head(tmp_path):
    text = "Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Task Wait Time(us)\n"
    text += "".join(f"MatMul,MatMulV3,AI_CORE,{1000 * i}.0,50.0,950.0\n" for i in range(17))
    (tmp_path / "op_summary_1.csv").write_text(text)
    finding = found(advise(tmp_path, active=20), "ADV101")
    assert (finding.details["recorded"], finding.details["missing"], finding.details["average_us"]) == (17, 3, 50.0)


def test_an_oversized_configuration(tmp_path):
    config = {"common_config": {"schedule": {"wait": 0, "warmup": 0, "active": 100, "repeat": 0}, "with_stack": True}, "experimental_config": {"_profiler_level": "Level2"}}
    (tmp_path / "profiler_info_0.json").write_text(json.dumps({"config": config}))
    assert {"active", "repeat", "with_stack", "profiler_level"} <= set(found(advise(tmp_path), "ADV102").details["problems"])


def test_small_packets_are_no_straggler(tmp_path):
    time = {"Elapse Time(ms)": 22.0, "Transit Time(ms)": 20.0, "Wait Time(ms)": 1.0}
    speed = {"RDMA": {"Transit Size(MB)": 19.66, "Transit Time(ms)": 20.0, "Bandwidth(GB/s)": 0.98, "Size Distribution": {"0.065536": [300, 20.0]}}}
    (tmp_path / "communication.json").write_text(json.dumps({"step1": {"collective": {"hcom_allReduce__1@7": {"Communication Time Info": time, "Communication Bandwidth Info": speed}}}}))
    report = advise(tmp_path)
    assert found(report, "ADV070").details["packets"] == 300
    assert "ADV075" not in warnings(report)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    root = tmp_path_factory.mktemp("cluster")
    for rank in range(64):
        generated.rank_folder(root, rank, slow=rank == 37, slow_link=(12, 13), expert_factor=2.5 if rank == 5 else 1.0)
    return advise(root)


def test_the_slow_rank_of_64_is_found_with_its_cause(cluster):
    assert (found(cluster, "ADV075").details["rank"], found(cluster, "ADV075").details["cause"]) == (37, "host")


def test_the_slow_link_of_64_is_found(cluster):
    assert [s["link"] for s in found(cluster, "ADV074").details["slow"]] == ["12-13"]


def test_the_overloaded_experts_of_64_are_found(cluster):
    assert found(cluster, "ADV080").details["rank"] == 5


def test_a_comparison_adds_up(tmp_path):
    generated.kernel_details(tmp_path / "a.csv", 280)
    generated.kernel_details(tmp_path / "b.csv", 560)
    data = advise(tmp_path / "b.csv", tmp_path / "a.csv").data["comparison"]
    assert sum(data["parts"].values()) == pytest.approx(data["difference_us"], abs=0.01)
    assert data["operators_difference_us"] == pytest.approx(data["parts"]["computing"], abs=0.01)
