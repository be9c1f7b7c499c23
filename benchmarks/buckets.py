"""Buckets on real text lengths, and what the choice costs.

1. Sentences of the Python documentation that the standard library ships (pydoc_data) through MiniLM, one at a time, in one interleaved run:
   buckets chosen by npulift against padding everything to the maximum and against OpenVINO with open dims. Embeddings are compared with eager.
2. The time that choosing and padding add to the bare program, for one image.
"""

import re
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import npulift
from npulift.bundle import as_array
from npulift.compile import compile as compile_model
from npulift.shapes.observed import Observed

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
SENTENCES, ROUNDS, MAXIMUM = 200, 7, 128


def sentences() -> list[str]:
    """Real sentences of many lengths."""
    from pydoc_data import topics

    found = []
    for text in topics.topics.values():
        found += [s for s in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if 10 < len(s) < 600]
    return found


def main() -> None:
    import minilm
    import openvino as ov

    texts = sentences()
    tokens = [t[:MAXIMUM] for t in minilm.tokenizer()(texts)["input_ids"]]
    observed = Observed.of(("length",), [(max(4, len(t)),) for t in tokens])
    chosen = np.random.default_rng(0).choice(len(tokens), SENTENCES, replace=False)
    calls = []
    for i in chosen:
        ids = torch.tensor([tokens[i] + [0] * max(0, 4 - len(tokens[i]))])
        calls.append((ids, (ids != 0).long()))
    spec = minilm.dynamic()
    single = replace(spec, inputs=tuple(i[:1] for i in spec.inputs), dynamic_dims={p: {1: a[1]} for p, a in spec.dynamic_dims.items()})
    with tempfile.TemporaryDirectory() as folder:
        compile_model(single, "openvino", buckets="auto", shapes=observed, most=4, precision="f32", out=f"{folder}/auto")
        compile_model(single, "openvino", buckets=str(MAXIMUM), precision="f32", out=f"{folder}/one")
        bundles = {"buckets": npulift.load(f"{folder}/auto"), "single maximum": npulift.load(f"{folder}/one")}
        core = ov.Core()
        open_dims = core.compile_model(core.read_model(f"{folder}/auto/program/0/model.xml"), "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"})
        request = open_dims.create_infer_request()
        runners = {name: b.run for name, b in bundles.items()}
        runners["open dims (OpenVINO)"] = lambda arrays: request.infer(list(arrays), share_inputs=True)
        arrays = [tuple(as_array(v) for v in call) for call in calls]
        worst = 0.0
        with torch.inference_mode():
            for call, a in zip(calls, arrays, strict=True):
                worst = max(worst, float(np.abs(bundles["buckets"].run(a)[0] - spec.module(*call).numpy()).max()))
        totals = {name: [] for name in runners}
        for _round in range(ROUNDS + 1):
            for name, run in runners.items():
                start = time.perf_counter()
                for a in arrays:
                    run(a)
                totals[name].append(time.perf_counter() - start)
        print(f"MiniLM, {SENTENCES} sentences, {ROUNDS} interleaved rounds (measured, CPU); buckets {[b['length'] for b in bundles['buckets'].buckets]}; "
              f"padding {bundles['buckets'].statistics.waste:.1%}; largest difference from unpadded eager {worst:.1e}")
        base = statistics.median(totals["buckets"][1:])
        for name, times in totals.items():
            median = statistics.median(times[1:])
            low, high = min(times[1:]), max(times[1:])
            print(f"  {name:<22} {SENTENCES / median:8.1f} sentences/s   {median / base:5.2f} x the time of the buckets   ({low:.2f} to {high:.2f} s)")
        overhead(folder)


def overhead(folder: str) -> None:
    """Microseconds that the bundle adds to the bare program, for one image that fits a bucket exactly and one that is padded."""
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.ReLU()).eval()
    compile_model(npulift.ModelSpec(net, (torch.randn(1, 3, 64, 64),)), "openvino", buckets="32,64", fit="pad", out=f"{folder}/small")
    opened = npulift.load(f"{folder}/small")
    for label, size in (("exact", 64), ("padded", 60)):
        given = (np.random.rand(1, 3, size, size).astype(np.float32),)
        full = (np.random.rand(1, 3, 64, 64).astype(np.float32),)
        opened.run(given)
        program = opened._program(1)[0]
        gaps = []
        for _round in range(2000):
            start = time.perf_counter()
            program(*full)
            middle = time.perf_counter()
            opened.run(given)
            gaps.append((time.perf_counter() - middle) - (middle - start))
        quartiles = statistics.quantiles(gaps, n=4)
        print(f"  choosing and padding, {label}: {statistics.median(gaps) * 1e6:.1f} us over the bare program (quartiles {quartiles[0] * 1e6:.1f} to {quartiles[2] * 1e6:.1f})")
