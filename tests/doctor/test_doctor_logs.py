"""Public troubles in our own words: what the doctor must say, and what it must not."""

import json
import re

import pytest

from npulift.doctor.diagnose import diagnose, diagnose_text
from npulift.doctor.signatures import read_toml
from npulift.findings import Severity


def first(log: str):
    return diagnose_text(log).causes[0]


def said(log: str) -> str:
    return json.dumps([c.as_json() for c in diagnose_text(log).causes], ensure_ascii=False)


FALLBACK = "[W x.ts:51] Warning: CAUTION: The operator '{}' is not currently supported on the NPU backend and will fall back to run on the CPU. (function npu_cpu_fallback)\n"


def test_fallbacks_are_counted_and_are_no_failure():
    cause = first(FALLBACK.format("torchvision::nms") + "page 1 done\n" + FALLBACK.format("aten::isin.Tensor_Tensor_out"))
    assert cause.severity is Severity.WARNING
    assert cause.details["operators"] == ["torchvision::nms", "aten::isin.Tensor_Tensor_out"]
    assert "once an operator" in cause.cause
    assert not re.search(r"fail", cause.cause)


def test_a_fatal_exception_comes_before_a_harmless_fallback():
    causes = diagnose_text(FALLBACK.format("aten::isin.Tensor_Tensor_out") + "E39999: Inner Error!\nE39999  An exception occurred during AICPU execution, errcode:21008\n runtime result = 507018\n").causes
    assert [c.id for c in causes] == ["aicpu-exception", "cpu-fallback"]


OOM = "RuntimeError: NPU out of memory. Tried to allocate {} (NPU 3; {:.2f} GiB total capacity; {:.2f} GiB already allocated; {:.2f} GiB current active; {:.2f} GiB free; {:.2f} GiB reserved in total by PyTorch)"


@pytest.mark.parametrize(("tried", "total", "allocated", "free", "reserved", "cause"), [
    ("22.00 MiB", 61.0, 10.0, 0.02, 10.6, "oom-held-elsewhere"),
    ("2.00 GiB", 61.0, 40.0, 0.5, 59.0, "oom-fragmentation"),
    ("30.00 MiB", 61.0, 60.3, 0.01, 60.6, "oom-too-large"),
    ("99.00 GiB", 61.0, 1.0, 50.0, 1.0, "oom-absurd-request"),
])
def test_the_arithmetic_of_out_of_memory(tried, total, allocated, free, reserved, cause):
    found = first(OOM.format(tried, total, allocated, allocated, free, reserved))
    assert found.id == cause
    assert found.details["outside_gib"] == pytest.approx(total - reserved - free, abs=0.01)
    assert found.details["unused_gib"] == pytest.approx(reserved - allocated, abs=0.01)


def test_the_newer_message_of_the_allocator_is_read_too():
    found = first("torch.OutOfMemoryError: NPU out of memory. Tried to allocate 2.00 GiB. NPU 0 has a total capacity of 60.97 GiB of which 0.50 GiB is free. "
                  "Of the allocated memory 41.00 GiB is allocated by PyTorch, and 17.00 GiB is reserved by PyTorch but unallocated.")
    assert found.id == "oom-fragmentation"
    assert found.details["unused_gib"] == 17.0


def test_allocator_options_that_exclude_each_other():
    causes = diagnose_text("PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True\n" + OOM.format("2.00 GiB", 61.0, 40.0, 40.0, 0.5, 59.0)).causes
    assert {c.id for c in causes} == {"allocator-option-conflict", "oom-fragmentation"}


SCALES = "iter {i}  loss 5.9  scale {s}  overflow={o} {w}\n"


def test_a_scale_that_settles_is_harmless():
    log = "".join(SCALES.format(i=i, s=65536 >> i, o=1, w="skip") for i in range(3)) + "".join(SCALES.format(i=i, s=8192, o=0, w="step") for i in range(3, 9))
    cause = first(log)
    assert (cause.id, cause.severity, cause.details["last_scale"], cause.details["halvings"]) == ("loss-scale-settled", Severity.INFO, 8192.0, 3)
    assert "init_scale=8192" in cause.fix[0]
    assert "diverg" not in said(log)


def test_a_scale_that_spirals_down_is_not():
    log = "".join(f"Gradient overflow. Skipping step\nLoss scaler reducing loss scale to {512.0 / 2**i}\n" for i in range(8)) + "{'loss': 5.2, 'grad_norm': 641.9}"
    assert first(log).id == "loss-scale-spiral"


def test_a_late_rank_is_found_by_its_seconds():
    log = ("[rank0] 09:00:00 weights ready, first barrier\n[rank1] 09:00:02 weights ready, first barrier\n[rank2] 09:00:30 reading shard 3\n"
           "[rank0] 09:02:00 EI0006: Getting socket times out. Reason: x\n[rank2] 09:05:10 weights ready, first barrier\n")
    cause = first(log)
    assert (cause.id, cause.details["rank"], cause.details["late_seconds"]) == ("late-rank", 2, 310.0)
    assert "HCCL_CONNECT_TIMEOUT=400" in " ".join(cause.fix)


def test_ranks_of_equal_time_are_not_called_late():
    log = "[rank0] 09:00:00 weights ready\n[rank1] 09:00:02 weights ready\n[rank0] 09:02:00 EI0006: Getting socket times out.\n"
    assert first(log).id != "late-rank"


def test_uneven_iteration_counts():
    log = "[rank2] error code is 507046\n[rank7] epoch 3 finished, 640 iterations\n[rank2] epoch 3, iteration 641 started\n"
    cause = first(log)
    assert cause.id == "uneven-iterations"
    assert cause.details["iterations"] == {"2": 641, "7": 640}
    assert any("drop_last" in step for step in cause.fix)


def test_the_first_failure_across_files_is_on_the_rank_with_its_own_error(tmp_path):
    (tmp_path / "rank0.log").write_text("2026-01-01 10:05:00 EI0002: The wait execution of the Notify register times out. Reason: remote rank: [1]\n")
    (tmp_path / "rank1.log").write_text("2026-01-01 09:35:00 RuntimeError: NPU function error: x, error code is 507035\n")
    causes = diagnose([str(tmp_path)]).causes
    assert causes[0].id == "vector-core-exception"
    assert causes[0].first is not None
    assert causes[0].first.rank == 1
    assert len(causes) == 1
    assert "EI0002" in causes[0].follows[0]


def test_an_exception_of_another_rank_explains_the_timeout(tmp_path):
    (tmp_path / "rank0.log").write_text("10:05:00 EI0006: Getting socket times out.\n")
    (tmp_path / "rank1.log").write_text("10:01:00 KeyError: 'labels' is missing\n")
    cause = diagnose([str(tmp_path)]).causes[0]
    assert (cause.id, cause.details["rank"]) == ("other-rank-exception", 1)


def test_a_port_over_65535_is_computed():
    log = "HCCL_IF_BASE_PORT=65530 ; logical device 1 -> physical device 17\nEI0019: Communication_Error_Bind_IP_Port\n"
    assert first(log).details["port"] == 65547
    assert "in use" not in said(log)


def test_a_taken_port():
    cause = first("EJ0003: Failed to bind the IP port. Reason: The IP address and port have been bound already.\n host nic listen start failed, port[60000], return[11]\n")
    assert (cause.id, cause.details["port"]) == ("hccl-port-taken", 60000)


@pytest.mark.parametrize(("listing", "words"), [("driver  ascend-toolkit", "not sourced"), ("driver", "not an Ascend machine")])
def test_missing_cann_is_told_apart(listing, words):
    cause = first(f"RuntimeError: Failed to infer device type\nImportError: libascendcl.so: cannot open shared object file\nls /usr/local/Ascend -> {listing}\n")
    assert words in cause.cause
    assert "Failed to infer" in cause.follows[0]


def test_the_driver_is_told_from_the_toolkit():
    assert first("ImportError: libascend_hal.so: cannot open shared object file: No such file").id == "ascend-driver-missing"


def test_the_list_of_dtypes_is_read_out_of_the_message():
    cause = first("chip: Ascend910A\nRuntimeError: call aclnnCast failed, detail:EZ1001: self not implemented for DT_BFLOAT16, should be in dtype support list [DT_FLOAT16,DT_FLOAT,].")
    assert cause.id == "chip-lacks-bfloat16"
    assert cause.details["supported"] == ["float16", "float32"]


def test_packages_that_are_there_are_not_asked_for():
    cause = first("[Init][Env]init env failed!\nbuild op model failed, result = 500001\npip list: numpy 1.26, sympy 1.12\n")
    assert "decorator" in cause.fix[0]
    assert "sympy" not in cause.fix[0]


def test_kernels_of_another_chip():
    cause = first("EZ9999:  Op Sort does not has any binary.\nnpu-smi: Chip 310P3 ; opp kernels present: ascend910b\n")
    assert (cause.confidence, cause.details["needed"], cause.details["present"]) == ("medium", "ascend310p", ["ascend910b"])


def test_a_source_tree():
    cause = first('cwd: /work/a\n  File "/work/a/torch_npu/__init__.py", line 3, in <module>\nModuleNotFoundError: No module named \'torch_npu._C\'\n')
    assert cause.id == "inside-source-tree"


def test_an_installed_package_is_no_source_tree():
    cause = first('  File "/usr/lib/python3/site-packages/torch_npu/__init__.py", line 3, in <module>\nModuleNotFoundError: No module named \'torch_npu._C\'\n')
    assert cause.id == "extension-module-missing"


def test_skel_path_before_its_consequence():
    cause = first("[W] qnn_open failed, 0x80000406\n[E] QnnBackend_validateOpConfig failed 3110 for X\nenv: ADSP_LIBRARY_PATH unset ; found /opt/q/libQnnHtpV75Skel.so\n")
    assert 'ADSP_LIBRARY_PATH="/opt/q"' in cause.fix[0]
    assert "3110" in cause.follows[0]


def test_dynamic_quantization_explains_the_bare_code():
    assert first("Status Message: QNN graph execute error. Error code: 6031\nops: DynamicQuantizeLinear x3\n").id == "qnn-dynamic-quantization"


def test_the_first_step_is_told_from_the_others():
    cause = first("soc: Ascend310P3 jit_compile=True first step 300.5 s  step 2 2.0 s  step 3 2.0 s")
    assert (cause.id, cause.details["first_seconds"], cause.details["later_seconds"]) == ("first-step-compiles", 300.5, 2.0)


def test_progress_bars_give_seconds_too():
    assert first("  0%| | 1/99 [00:30<9:00, 30.00s/it]\n 50%|#| 50/99 [00:40<0:10, 5.00it/s]\n").details["later_seconds"] == pytest.approx(0.2)


def test_nan_is_placed_and_the_last_finite_value_named():
    cause = first("step: 10 loss: 2.5\nstep: 11 loss: 2.4\nstep: 12 loss: nan\n")
    assert "step 12" in cause.cause
    assert "2.4" in cause.cause


def test_an_unknown_code_is_named_from_the_table_with_low_confidence():
    cause = first("RuntimeError: NPU function error: foo, error code is 107017")
    assert (cause.id, cause.confidence) == ("error-code-107017", "low")


CORPUS = ("written_on_1", "written_on_2", "written_on_3", "written_on_4", "written_on_5")


@pytest.fixture(scope="module")
def corpus(root_folder):
    return {name: read_toml(root_folder / f"{name}.toml")["piece"] for name in CORPUS}


@pytest.fixture(scope="module")
def root_folder():
    from pathlib import Path

    return Path(__file__).parent / "corpus"


def right(piece) -> bool:
    causes = diagnose_text(piece["log"]).causes
    return bool(causes and causes[0].id in piece["want"]) if piece["want"] else not any(c.severity is Severity.ERROR for c in causes)


def test_the_corpus_is_large_enough(corpus):
    assert sum(map(len, corpus.values())) >= 150


@pytest.mark.parametrize("name", CORPUS)
def test_nine_in_ten_of_the_corpus_are_right(corpus, name):
    wrong = [p["source"] for p in corpus[name] if not right(p)]
    assert len(wrong) <= len(corpus[name]) / 10, wrong


def test_nothing_is_claimed_on_200_unrelated_logs(root_folder):
    templates = read_toml(root_folder / "unrelated.toml")["logs"]
    logs = [t.replace("{n}", str(7 + 3 * k + i % 5)).replace("{m}", str(100 + 37 * k + i)) for k in range(5) for i, t in enumerate(templates)]
    assert len(logs) >= 200
    assert [(log, c.id) for log in logs for c in diagnose_text(log).causes] == []
