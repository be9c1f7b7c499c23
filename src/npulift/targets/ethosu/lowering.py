"""Quantise, lower, and read what the compiler said. Runs in a worker process: executorch and Vela take seconds to minutes, and may exit or abort.

What succeeded is not what the call returned (a float model or a dynamic batch raises nothing and delegates nothing), so the result is judged by what was
delegated, and each refusal is read from the partitioner's own report.
"""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npulift import graphs
from npulift.errors import NpuliftError
from npulift.files import atomic_folder, cache_folder
from npulift.messages import _
from npulift.targets.calibration import read_calibration
from npulift.targets.ethosu.accelerators import Accelerator

FORMAT = 5  # of the cached results
LIMIT = 600  # s that Vela, and the reference model, may take on one graph
_BORDER = re.compile(r"quantize_per_|dequantize_per_|getitem|executorch_call_delegate|dim_order|sym_size|alloc")


def lowered(source: Path, accelerator: Accelerator, options: dict[str, Any]) -> Path:
    """The folder with model.pte, quantised.pt2, report.json and Vela's files; from the cache when the same was lowered before."""
    folder = cache_folder("ethosu") / _key(source, accelerator, options)
    if not (folder / "report.json").exists():
        with atomic_folder(folder) as new:
            _lower(source, accelerator, options, new)
    return folder


def report(folder: Path) -> dict[str, Any]:
    """What `lowered` found out."""
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def _key(source: Path, accelerator: Accelerator, options: dict[str, Any]) -> str:
    from importlib.metadata import version

    state = hashlib.sha256(source.read_bytes())
    if options.get("calibration"):
        state.update(Path(options["calibration"]).read_bytes())
    kept = {k: v for k, v in options.items() if k != "calibration"}
    facts = [FORMAT, repr(accelerator), kept, version("executorch"), version("ethos-u-vela"), version("torchao"), torch.__version__]
    state.update(json.dumps(facts, sort_keys=True).encode())
    return state.hexdigest()[:24]


def _lower(source: Path, accelerator: Accelerator, options: dict[str, Any], folder: Path) -> None:
    from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
    from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_a16w8_quantization_config, get_symmetric_quantization_config
    from executorch.devtools.backend_debug import get_delegation_info
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    logging.getLogger("executorch.backends.arm").setLevel(logging.INFO)  # below that the partitioner writes no report
    program = torch.export.load(source)
    _static(program)
    nhwc = {int(i) for i in options.get("nhwc", ())}
    examples = _layout(program.example_inputs[0] if program.example_inputs else (), nhwc)
    samples = [tuple(torch.from_numpy(np.ascontiguousarray(v)) for v in s) for s in read_calibration(Path(options["calibration"]))] if options.get("calibration") else [examples]
    with tempfile.TemporaryDirectory() as intermediate, _exits_are_errors():
        spec = EthosUCompileSpec(
            accelerator.name, system_config=accelerator.system_config, memory_mode=accelerator.memory_mode, extra_flags=["--verbose-performance"]
        ).dump_intermediate_artifacts_to(intermediate)
        quantizer = EthosUQuantizer(spec)
        sixteen = options.get("precision") == "int16"
        quantizer.set_global(get_symmetric_a16w8_quantization_config() if sixteen else get_symmetric_quantization_config())
        prepared = prepare_pt2e(program.module(check_guards=False), quantizer)
        for sample in samples:
            prepared(*_layout(sample, nhwc))
        quantised = torch.export.export(convert_pt2e(prepared), examples)
        torch.export.save(quantised, folder / "quantised.pt2")
        edge = to_edge_transform_and_lower(
            quantised, partitioner=[EthosUPartitioner(spec)], compile_config=EdgeCompileConfig(_check_ir_validity=False)
        )
        lowered_program = edge.exported_program()
        info = get_delegation_info(lowered_program.graph_module)
        refusals = _refusals(Path(intermediate) / "partition_report.txt")
        layers, parts = _performance(Path(intermediate), accelerator)
        outside = [_outside(n, refusals) for n in lowered_program.graph_module.graph.nodes if n.op == "call_function" and not _BORDER.search(n.name + str(n.target))]
        delegated = {
            row["op_type"]: int(row["occurrences_in_delegated_graphs"]) for row in info.get_operator_delegation_dataframe().to_dict("records")
            if row["op_type"] != "Total" and int(row["occurrences_in_delegated_graphs"]) and not _BORDER.search(row["op_type"])
        }
        whole = _reference(Path(intermediate), lowered_program, quantised, _layout(samples[0], nhwc)) if len(parts) == 1 and not outside else None
        (folder / "model.pte").write_bytes(edge.to_executorch().buffer)  # last: it rewrites the graph that was read above
        result = {
            "subgraphs": info.num_delegated_subgraphs, "delegated": delegated, "outside": outside, "layers": layers, "parts": parts, "reference": whole,
            "accelerator": accelerator.name, "system_config": accelerator.system_config, "memory_mode": accelerator.memory_mode,
        }
    (folder / "report.json").write_text(json.dumps(result))


@contextmanager
def _exits_are_errors() -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raise NpuliftError(_("Vela ended with exit code {code}; its output is in the log.").format(code=error.code), exit_code=1) from error


def _static(program: torch.export.ExportedProgram) -> None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor) and any(not isinstance(s, int) for s in value.shape):
            raise NpuliftError(_("Ethos-U takes fixed sizes only, and input {name} has a size that varies: nothing would be delegated, without an error. "
                                 "Compile the sizes that you need (npulift compile --bucket).").format(name=node.name), exit_code=1)


def _layout(values: tuple[Any, ...], nhwc: set[int]) -> tuple[Any, ...]:
    return tuple(v.to(memory_format=torch.channels_last) if i in nhwc and v.ndim == 4 else v for i, v in enumerate(values))


def _refusals(path: Path) -> dict[str, str]:
    """Reason by node name, from the partitioner's table, whose cells go over several lines."""
    if not path.exists():
        return {}
    reasons: dict[str, str] = {}
    cells: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("│"):
            parts = [c.strip() for c in line.strip("│").split("│")]
            cells = [" ".join(filter(None, pair)) for pair in zip(cells or [""] * len(parts), parts, strict=False)]
        elif cells:
            if len(cells) >= 4 and cells[0] != "Node name":
                reasons.setdefault(cells[0], cells[-1])
            cells = []
    return reasons


def _outside(node: torch.fx.Node, refusals: dict[str, str]) -> dict[str, Any]:
    location, _call = graphs.node_lines(node)
    target = str(getattr(node.target, "_name", None) or node.target)
    return {
        "node": node.name, "operator": re.sub(r"^.*?(aten[.:]+\w+).*$", r"\1", target, flags=re.S), "reason": refusals.get(node.name, ""),
        "file": location.file if location else None, "line": location.line if location else 0, "module": graphs.node_module(node),
    }


def _performance(intermediate: Path, accelerator: Accelerator) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """(rows of Vela's per-layer tables, a summary for each delegated graph). Vela runs once more on each graph, since executorch keeps the last one's files only."""
    layers, parts = [], []
    graphs_on_disk = sorted(intermediate.rglob("output_tag*.tosa")) or sorted(intermediate.rglob("*.tosa"))[:1]
    for index, tosa in enumerate(graphs_on_disk):
        out = intermediate / f"vela-{index}"
        command = [
            sys.executable, "-m", "ethosu.vela", str(tosa), "--accelerator-config", accelerator.name, "--system-config", accelerator.system_config,
            "--memory-mode", accelerator.memory_mode, "--config", "Arm/vela.ini", "--verbose-performance", "--output-dir", str(out),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
        except subprocess.TimeoutExpired as error:
            raise NpuliftError(_("Vela gave no answer within {n} s on a delegated graph.").format(n=LIMIT), exit_code=1) from error
        tables, summaries = list(out.glob("*per-layer.csv")), list(out.glob("*summary*.csv"))
        if done.returncode or not tables or not summaries:
            raise NpuliftError(_("Vela failed on a delegated graph: {error}").format(error=(done.stderr or done.stdout).strip().splitlines()[-1:]), exit_code=1)
        with tables[0].open(newline="") as file:
            layers += [{"graph": index, **row} for row in csv.DictReader(file)]
        with summaries[0].open(newline="") as file:
            row = next(csv.DictReader(file))
        parts.append({key: float(row[key]) for key in (
            "cycles_total", "core_clock", "inference_time", "sram_memory_used", "dram_memory_used", "on_chip_flash_memory_used", "off_chip_flash_memory_used", "nn_macs",
            "sram_total_bytes", "dram_total_bytes")})
    return layers, parts


def _reference(intermediate: Path, lowered_program: Any, quantised: Any, sample: tuple[Any, ...]) -> dict[str, Any] | None:
    """The TOSA reference model against the quantised graph run by PyTorch, on one sample, in codes of the output; None where the border is not one graph."""
    nodes = [n for n in lowered_program.graph_module.graph.nodes if n.op == "call_function"]
    quantize = [n for n in nodes if "quantized_decomposed.quantize_per_tensor" in str(n.target)]
    dequantize = [n for n in nodes if "quantized_decomposed.dequantize_per_tensor" in str(n.target)]
    tosa = sorted(intermediate.rglob("output_tag*.tosa"))
    if len(quantize) != len(sample) or not dequantize or len(tosa) != 1:
        return None
    arrays = {}
    for i, (node, value) in enumerate(zip(quantize, sample, strict=True)):
        scale, zero, low, high, dtype = node.args[1:6]
        arrays[f"in_{i}"] = torch.ops.quantized_decomposed.quantize_per_tensor.default(value, scale, zero, low, high, dtype).numpy()
    given, got = intermediate / "given.npz", intermediate / "got.npz"
    np.savez(given, **arrays)
    code = (
        "import sys, numpy as np, tosa_reference_model as m\n"
        "g = np.load(sys.argv[2])\n"
        "out, status = m.run(open(sys.argv[1], 'rb').read(), [g[k] for k in sorted(g.files)], verbosity='NONE', initialize_variable_tensor_from_numpy=True)\n"
        "np.savez(sys.argv[3], *out)\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code, str(tosa[0]), str(given), str(got)], capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"ran": False, "error": f"no answer within {LIMIT} s"}
    if done.returncode:  # the reference model is known to crash now and then
        return {"ran": False, "error": f"exit code {done.returncode}"}
    with torch.no_grad():
        wanted = [v for v in torch.utils._pytree.tree_leaves(quantised.module(check_guards=False)(*sample)) if isinstance(v, torch.Tensor)]
    worst = 0.0
    with np.load(got) as outputs:
        for node, name, want in zip(dequantize, outputs.files, wanted, strict=False):
            scale, zero = float(node.args[1]), int(node.args[2])
            value = (outputs[name].astype(np.float64).reshape(tuple(want.shape)) - zero) * scale
            worst = max(worst, float(np.abs(value - want.numpy()).max()) / scale)
    return {"ran": True, "codes_off": worst}


def copy_to(folder: Path, target: Path) -> None:
    """The files that a bundle needs."""
    for name in ("model.pte", "quantised.pt2", "report.json"):
        shutil.copyfile(folder / name, target / name)
