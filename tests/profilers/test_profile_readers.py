"""Readers take what profilers write, whatever its age, and what is broken without a traceback."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
import generated

from npulift.errors import NpuliftError
from npulift.profilers.reading import read, read_file


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "kernel_details.csv"
    generated.kernel_details(path, 70, steps=2)
    return path


def test_starts_are_exact_to_the_nanosecond(tmp_path):
    path = tmp_path / "kernel_details.csv"
    path.write_text('Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim\nAdd_1,Add,AI_CORE,"1736413971558972.913\t",5.86,0,8\n')
    assert read([path]).profile.events["start_ns"].to_list() == [1736413971558972913]


def test_byte_order_mark_and_renamed_columns(tmp_path):
    path = tmp_path / "op_summary_1.csv"
    path.write_bytes(b"\xef\xbb\xbfDevice_id,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us),Task Wait Time(us),Block Num\r\n0,Add_1,N/A,AI_VECTOR_CORE,10.5,2.5,N/A,8\r\n")
    row = read([path]).profile.events.row(0, named=True)
    assert (row["type"], row["duration_ns"], row["wait_ns"], row["cores"]) == ("Add", 2500, None, 8)


def test_a_cut_last_line_is_left_out_and_told(table):
    text = table.read_text()
    table.write_text(text[: text.rindex("MatMulV3")])
    evidence = read([table])
    assert evidence.files[0].truncated
    assert evidence.profile.events["duration_ns"].null_count() == 0


@pytest.mark.parametrize("size", [60_000, 400_000])
def test_all_events_of_a_trace_are_found(tmp_path, size):
    made = generated.trace_view(tmp_path / "trace_view.json", size)
    evidence = read([tmp_path / "trace_view.json"])
    kernels = evidence.profile.events.filter(evidence.profile.events["category"] == "kernel")
    assert (evidence.files[0].records, kernels.height, kernels["duration_ns"].sum()) == (made["complete"], made["kernels"], made["kernel_ns"])


def test_two_processes_read_the_same_as_one(tmp_path, monkeypatch):
    from npulift.profilers import trace_json

    path = tmp_path / "trace_view.json"
    generated.trace_view(path, 3_000_000)
    one = read_file(path)
    monkeypatch.setattr(trace_json, "PARALLEL_FROM", 1)
    two = read_file(path)
    assert one.events.sort("start_ns", "name").equals(two.events.sort("start_ns", "name"))


def test_a_cut_trace_gives_its_whole_events(tmp_path):
    made = generated.trace_view(tmp_path / "trace_view.json", 100_000, truncated=True)
    file = read([tmp_path / "trace_view.json"]).files[0]
    assert (file.truncated, file.records) == (True, made["complete"])


def test_torch_profiler_plain_and_packed_are_the_same(tmp_path):
    import gzip

    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorder:
        torch.randn(64, 64) @ torch.randn(64, 64)
    plain = tmp_path / "a.pt.trace.json"
    recorder.export_chrome_trace(str(plain))
    (tmp_path / "b.pt.trace.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    known = sum(e["cat"] == "cpu_op" for e in json.loads(plain.read_text())["traceEvents"] if e.get("ph") == "X" and "cat" in e)
    a, b = (read([p]).profile.events for p in (plain, tmp_path / "b.pt.trace.json.gz"))
    assert (a["category"] == "operator").sum() == known
    assert a.equals(b)


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(NpuliftError, match="There is no"):
        read([tmp_path / "nothing"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_cut_and_altered_files_never_raise_anything_else(tmp_path, data):
    name = data.draw(st.sampled_from(["kernel_details.csv", "trace_view.json", "communication.json"]))
    path = tmp_path / name
    if name.endswith("csv"):
        generated.kernel_details(path, 21)
    elif name.startswith("trace"):
        generated.trace_view(path, 6000)
    else:
        path.write_text(json.dumps({"step1": {"collective": {"hcom_allReduce__1@7": {"Communication Time Info": {"Elapse Time(ms)": 1.0}, "Communication Bandwidth Info": {}}}}}))
    raw = bytearray(path.read_bytes())
    for _n in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at: at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=6))
    path.write_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    try:
        read([path])
    except NpuliftError:
        pass
