"""Profiles made up for tests and benchmarks: the vendor's file forms, with plantable faults. Every figure is made up."""

from __future__ import annotations

import json
import random
from pathlib import Path

EPOCH_US = 1_770_105_600_000_000
KERNEL_HEADER = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num,Mix Block Num,HF32 Eligible,Input Shapes,"
    "Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats,Context ID,aicore_time(us),aic_total_cycles,aic_mac_time(us),aic_mac_ratio,aic_mte2_ratio,"
    "aiv_time(us),aiv_total_cycles,aiv_vec_ratio,aiv_mte2_ratio,cube_utilization(%)"
)
LAYER = (  # (name, type, core, us, shapes, cube %)
    ("aclnnRmsNorm_RmsNorm_RmsNorm", "RmsNorm", "AI_VECTOR_CORE", 24.0, "8192,4096;4096", 0),
    ("aclnnMatmul_MatMulCommon_MatMulV3", "MatMulV3", "MIX_AIC", 501.0, "8192,4096;4096,4608", 95),
    ("aclnnRotaryMul_RotaryMul", "RotaryMul", "AI_VECTOR_CORE", 18.0, "4096,2,4,128;4096,1,1,128", 0),
    ("aclnnFlashAttentionScore_FlashAttentionScore", "FlashAttentionScore", "MIX_AIC", 407.0, "4096,2,512;4096,2,512;4096,2,512", 88),
    ("aclnnMatmul_MatMulCommon_MatMulV3", "MatMulV3", "MIX_AIC", 480.0, "8192,4096;4096,4096", 94),
    ("aclnnSwiGlu_SwiGlu", "SwiGlu", "AI_VECTOR_CORE", 60.0, "8192,22016", 0),
    ("aclnnAdd_AddAiCore_Add", "Add", "AI_VECTOR_CORE", 26.0, "8192,4096;8192,4096", 0),
)


def kernel_row(step: int, task: int, name: str, kind: str, core: str, start: float, us: float, wait: float, shapes: str, cube: float, dtype: str = "DT_BF16", formats: str = "ND") -> str:
    """One line of kernel_details.csv as torch_npu writes it: quotes within quotes, a tab after the start."""
    operands = shapes.count(";") + 1
    return (f'{step},0,4294967295,{task},3,{name},{kind},static,{core},{start:.3f}\t,{us:.3f},{wait:.3f},24,0,NO,"""{shapes}""",{";".join([dtype] * operands)},{";".join([formats] * operands)},'
            f'"""{shapes.split(";", maxsplit=1)[0]}""",{dtype},{formats},N/A,{us:.3f},{int(us * 1850)},{us * 0.8:.3f},{cube / 100:.3f},0.600,0,0,0,0,{cube}')


def kernel_details(path: Path, rows: int, steps: int = 4) -> None:
    """A healthy step sequence of about `rows` kernels."""
    per_step = max(1, rows // steps)
    with path.open("w", newline="") as file:
        file.write(KERNEL_HEADER + "\r\n")
        now, task = float(EPOCH_US), 1
        for step in range(1, steps + 1):
            for i in range(per_step):
                name, kind, core, us, shapes, cube = LAYER[i % len(LAYER)]
                file.write(kernel_row(step, task % 65535, name, kind, core, now, us, 1.2, shapes, cube) + "\r\n")
                now += us + 1.2
                task += 1


def trace_view(path: Path, size: int, truncated: bool = False, seed: int = 0) -> dict[str, int]:
    """A trace_view.json of about `size` bytes in the vendor's form; returns how many events of which kind and the kernels' total in ns."""
    random_ = random.Random(seed)
    counts = {"events": 0, "kernels": 0, "operators": 0, "kernel_ns": 0, "complete": 0}
    dump = json.dumps
    with path.open("w") as file:
        lanes = ((4100, "Python"), (410002, "CANN"), (800, "Ascend Hardware"), (801, "Overlap Analysis"), (802, "Communication"))
        file.write("[" + ", ".join(dump({"ph": "M", "name": "process_name", "pid": p, "tid": 0, "args": {"name": n}}) for p, n in lanes))
        counts["events"] = len(lanes)
        written, now, correlation = 1000, EPOCH_US * 1000, 1
        step, step_start = 1, now
        buffer: list[str] = []
        while written < size:
            name, kind, core, us, shapes, _cube = LAYER[correlation % len(LAYER)]
            us = round(us * random_.uniform(0.98, 1.02), 3)
            host = now - 400_000
            start, ns = f"{now // 1000}.{now % 1000:03d}", round(us * 1000)
            host_text = f"{host // 1000}.{host % 1000:03d}"
            api = name.split("_")[0]
            group = (
                dump({"ph": "X", "name": f"aten::{kind.lower()}", "pid": 4100, "tid": 4100, "ts": host_text, "dur": 20.5, "cat": "cpu_op", "args": {
                    "Sequence number": correlation, "Fwd thread id": 0, "Input Dims": shapes, "Input type": "c10::BFloat16;c10::BFloat16", "Call stack": "model.py(41): forward;\ntrain.py(88): step"}}),
                dump({"ph": "X", "name": "Enqueue", "pid": 4100, "tid": 4100, "ts": host_text, "dur": 3.1, "cat": "enqueue", "args": {"correlation_id": correlation}}),
                dump({"ph": "s", "bp": "e", "name": "enqueue_to_dequeue", "id": correlation, "pid": 4100, "tid": 4100, "ts": host_text, "cat": "async_task_queue"}),
                dump({"ph": "X", "name": f"Dequeue@{api}", "pid": 4100, "tid": 4177, "ts": host_text, "dur": 9.8, "cat": "dequeue", "args": {"correlation_id": correlation}}),
                dump({"ph": "f", "bp": "e", "name": "enqueue_to_dequeue", "id": correlation, "pid": 4100, "tid": 4177, "ts": host_text, "cat": "async_task_queue"}),
                dump({"name": f"AscendCL@{api}", "pid": 410002, "tid": 4177, "ts": host_text, "dur": 8.1, "args": {"Thread Id": 4177, "Mode": "ACL_OP", "connection_id": correlation}, "ph": "X"}),
                dump({"name": f"HostToDevice{correlation}", "ph": "s", "cat": "HostToDevice", "id": str(correlation), "pid": 410002, "tid": 4177, "ts": host_text}),
                dump({"name": f"HostToDevice{correlation}", "ph": "f", "cat": "HostToDevice", "id": str(correlation), "pid": 800, "tid": 3, "ts": start, "bp": "e"}),
                dump({"name": name, "pid": 800, "tid": 3, "ts": start, "dur": us, "args": {"Model Id": 4294967295, "Task Type": core, "Stream Id": 3, "Task Id": correlation % 65535,
                     "Batch Id": 0, "Subtask Id": 4294967295, "connection_id": correlation}, "ph": "X"}),
                dump({"ph": "s", "bp": "e", "name": "torch_to_npu", "id": now, "pid": 4100, "tid": 4100, "ts": host_text, "cat": "async_npu"}),
                dump({"ph": "f", "bp": "e", "name": "torch_to_npu", "id": now, "pid": 800, "tid": 3, "ts": start, "cat": "async_npu"}),
            )
            counts["events"] += len(group)
            counts["kernels"] += 1
            counts["operators"] += 1
            counts["kernel_ns"] += ns
            now += ns + 1000
            correlation += 1
            text = ", " + ", ".join(group)
            if correlation % 1500 == 0:
                mark = dump({"ph": "X", "name": f"ProfilerStep#{step}", "pid": 4100, "tid": 4100, "ts": f"{step_start // 1000}.{step_start % 1000:03d}", "dur": (now - step_start) / 1000, "cat": "cpu_op", "args": {}})
                text += ", " + mark
                counts["events"] += 1
                step, step_start = step + 1, now
            written += len(text)
            buffer.append(text)
            if len(buffer) > 2000:
                file.write("".join(buffer))
                buffer.clear()
        file.write("".join(buffer))
        file.write(', {"ph": "X", "name": "aten::cut' if truncated else "]")
    counts["complete"] = counts["events"]
    return counts


def rank_folder(root: Path, rank: int, *, steps: int = 3, slow: bool = False, slow_link: tuple[int, int] | None = None, world: int = 64, expert_factor: float = 1.0) -> None:
    """One rank's ASCEND_PROFILER_OUTPUT: step split, collectives, links and a few kernels. slow: this rank's host stalls 30 ms a step, so that the others wait."""
    random_ = random.Random(rank)
    folder = root / f"node_{rank}_20260203120000_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True)
    (folder.parent / f"profiler_info_{rank}.json").write_text(json.dumps({"config": {"common_config": {
        "activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"], "schedule": {"wait": 1, "active": steps, "warmup": 1, "repeat": 1, "skip_first": 1}, "record_shapes": True, "with_stack": False},
        "experimental_config": {"_profiler_level": "Level1", "_data_simplification": True}}, "rank_id": str(rank)}))
    stall = 30_000.0 if slow else 0.0
    with (folder / "step_trace_time.csv").open("w", newline="") as file:
        file.write("Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,Communication(Not Overlapped and Exclude Receive),Preparing\r\n")
        for step in range(10, 10 + steps):
            exposed = 600.0 if slow else 30_600.0
            computing, free = 80_000 + random_.uniform(-200, 200), 1_500 + stall
            file.write(f"{rank % 8},{step},{computing:.1f},{exposed:.1f},6100.0,{exposed + 6100:.1f},{free:.1f},{computing + exposed + free:.1f},0,{exposed:.1f},300.0\r\n")
    communication, matrix = {}, {}
    group = "13681099123456789"
    for step in range(10, 10 + steps):
        operators, links = {}, {}
        for k in range(4):
            wait = 0.1 if slow else 7.6
            operators[f"hcom_allReduce__{k}_{step}_1@{group}"] = {
                "Communication Time Info": {"Start Timestamp(us)": EPOCH_US + step * 1000.0, "Elapse Time(ms)": 3.0 + wait, "Transit Time(ms)": 3.0 + random_.uniform(-0.1, 0.1), "Wait Time(ms)": wait,
                                            "Synchronization Time(ms)": wait, "Idle Time(ms)": 0.0, "Wait Time Ratio": 0.7, "Synchronization Time Ratio": 0.7},
                "Communication Bandwidth Info": {"HCCS": {"Transit Size(MB)": 52.4, "Transit Time(ms)": 3.0, "Bandwidth(GB/s)": 17.5, "Large Packet Ratio": 1.0, "Size Distribution": {"2.097152": [25, 3.0]}}}}
        neighbour = (rank + 1) % world
        speed = 17.5 * random_.uniform(0.97, 1.03) * (0.3 if slow_link == (rank, neighbour) else 1.0)
        links[f"{rank}-{neighbour}"] = {"Transport Type": "HCCS", "Transit Size(MB)": 209.6, "Transit Time(ms)": round(209.6 / speed, 4), "Bandwidth(GB/s)": round(speed, 3)}
        communication[f"step{step}"] = {"p2p": {}, "collective": operators}
        matrix[f"step{step}"] = {"p2p": {}, "collective": {f"allreduce-total@{group}": links}}
    (folder / "communication.json").write_text(json.dumps(communication))
    (folder / "communication_matrix.json").write_text(json.dumps(matrix))
    with (folder / "kernel_details.csv").open("w", newline="") as file:
        file.write(KERNEL_HEADER + "\r\n")
        now, task = float(EPOCH_US), 1
        for step in range(10, 10 + steps):
            for name, kind, core, us, shapes, cube in (*LAYER, ("aclnnGroupedMatmul_GroupedMatmul", "GroupedMatmul", "MIX_AIC", 900.0 * expert_factor, "8192,4096;8,4096,2816", 90)) * 4:
                file.write(kernel_row(step, task, name, kind, core, now, us, 1.0, shapes, cube) + "\r\n")
                now += us + 1.0
                task += 1
