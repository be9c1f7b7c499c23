"""Fit the constants of the Ascend cost model to a kernel_details.csv and print the error by kernel type.

    python tools/fit_ascend_cost.py CAPTURE.csv                  fit on one half of the kernels, test on the other; then with one kernel type left out at a time
    python tools/fit_ascend_cost.py CAPTURE.csv --write          and write calibration.json (fitted on all kernels) and the tables of docs/ascend_cost.md

The capture used for the constants in the project: one step of a GPT-like model on an Ascend 910B, test data of the Apache-2.0 project Ascend mstt.
"""

from __future__ import annotations

import argparse
import copy
import csv
import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize

from npulift.ascend.chips import chip
from npulift.ascend.cost.launches import Cache, cached
from npulift.ascend.cost.roofline import predict
from npulift.ascend.cost.tables import KernelType, kernel_type, links
from npulift.ascend.records import Operand

ROOT = Path(__file__).resolve().parent.parent
CHIP = chip("ascend-910b2")
SOURCE = "a public capture from an Ascend 910B (test data of the Apache-2.0 project Ascend mstt)"
_DTYPES = {"FLOAT": "float32", "FLOAT16": "float16", "DT_BF16": "bfloat16", "DOUBLE": "float64", "BOOL": "bool"}

# read, write: reductions and fills of large tensors in the capture reach the published bandwidth (1.66 and 1.79 of 1.6 TB/s); kept, not fitted.
START: dict[str, Any] = {
    "shared": {"read": 1.03, "write": 1.12, "mixed": 1.3, "l2_bytes_per_cycle": 45.0, "l2_write": 0.9},
    "groups": {}, "types": {},
}
# Where the capture has no kernel of a group. attention: half of the cube's and of the vector's rate is what public measurements of flash attention reach.
GUESSES = {
    "attention": {"launch_ns": 12000.0, "step_ns": 0.0, "cube_factor": 1.7, "vector_factor": 1.5, "memory_factor": 1.0},
}


@dataclass(frozen=True)
class Kernel:
    """One row of the capture. warm, warm_out: what the L2 cache held before it. times: how often it was seen."""

    row: int
    kind: KernelType
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    ns: float
    warm: tuple[float, ...]
    warm_out: bool
    times: int = 1

    def predicted(self, table: dict[str, Any]) -> float:
        kernel = "AiCpu" if self.kind.device == "AI_CPU" else self.kind.name
        return predict(kernel, self.inputs, self.outputs, CHIP, warm=self.warm, warm_out=self.warm_out, constants=table | _BARS).ns


_BARS = {"spread": {"types": {}, "groups": {}, "unknown": [1, 1], "other_chip": [1, 1]}, "counts": {}, "chips": [CHIP.name], "source": SOURCE}


def read(path: Path) -> list[Kernel]:
    """The kernels of the capture (collectives left out), with the state of the cache as the model keeps it."""
    cache = Cache(links()[CHIP.name].l2_bytes)
    kernels = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            if row["Accelerator Core"] in ("HCCL", "HCOM"):
                continue
            inputs = _operands(row["Input Shapes"], row["Input Data Types"])
            outputs = _operands(row["Output Shapes"], row["Output Data Types"])
            kind = kernel_type(row["Type"])
            if row["Accelerator Core"] == "AI_CPU":
                kind = kernel_type("AiCpu")
            if row["Input Shapes"] == row["Output Shapes"] == "N/A":
                continue  # 25 MemSet whose size the capture does not tell: nothing to predict from
            warm, warm_out = cached(kind, inputs, outputs, cache)
            kernels.append(Kernel(number, kind, inputs, outputs, float(row["Duration(us)"]) * 1e3, tuple(warm), warm_out))
    return kernels


def _operands(shapes: str, dtypes: str) -> tuple[Operand, ...]:
    shapes = shapes.strip('"')
    if shapes == "N/A":
        return ()
    sizes = [tuple(int(n) for n in part.split(",") if n) for part in shapes.split(";")]
    names = [_DTYPES.get(d, d.lower()) for d in dtypes.split(";")]
    return tuple(Operand(s, d, "ND", ()) for s, d in zip(sizes, names, strict=False) if d != "undefined")


def loss(table: dict[str, Any], kernels: Iterable[Kernel]) -> float:
    """Mean absolute logarithm of predicted over measured; kernels over 20 us count three times, since they make the sum."""
    total = weights = 0.0
    for k in kernels:
        weight = (3.0 if k.ns > 20_000 else 1.0) * math.sqrt(k.times)
        total += weight * abs(math.log(max(1.0, k.predicted(table)) / k.ns))
        weights += weight
    return total / max(1.0, weights)


def descend(table: dict[str, Any], places: list[tuple[dict[str, Any], str]], kernels: list[Kernel], penalty: float = 0.0) -> None:
    """Set the constants at `places` to what fits the kernels best (Nelder-Mead over their logarithms)."""
    if not kernels:
        return
    start = np.array([math.log(max(1e-9, where[name])) for where, name in places])

    def cost(x: Any) -> float:
        for (where, name), value in zip(places, x, strict=True):
            where[name] = math.exp(float(value))
        return loss(table, kernels) + penalty * float(np.abs(x - start).mean())

    found = minimize(cost, start, method="Nelder-Mead", options={"maxiter": 120 * len(places), "xatol": 1e-3, "fatol": 1e-5,
                                                                  "initial_simplex": _simplex(start)})
    cost(found.x)


def _simplex(start: Any) -> Any:
    rows = [start]
    for i in range(len(start)):
        row = start.copy()
        row[i] += 0.35
        rows.append(row)
    return np.array(rows)


def unique(kernels: Iterable[Kernel]) -> list[Kernel]:
    """One kernel for each launch form, with the median of its times; keeps the fit quick."""
    same: dict[Any, list[Kernel]] = defaultdict(list)
    for k in kernels:
        same[(k.kind.name, k.inputs, k.outputs, k.warm, k.warm_out)].append(k)
    return [Kernel(g[0].row, g[0].kind, g[0].inputs, g[0].outputs, statistics.median(k.ns for k in g), g[0].warm, g[0].warm_out, len(g)) for g in same.values()]


def fit(kernels: list[Kernel]) -> dict[str, Any]:
    """Constants: shared ones from the big element-wise kernels, then those of each group, then factors of each type that has several kernels."""
    table = copy.deepcopy(START)
    forms = unique(kernels)
    by_group: dict[str, list[Kernel]] = defaultdict(list)
    for k in forms:
        by_group[k.kind.group].append(k)
    for group in sorted({*by_group, *GUESSES, "elementwise", "fill"}):
        table["groups"][group] = dict(GUESSES.get(group) or {"launch_ns": 1300.0, "step_ns": 200.0, "cube_factor": 1.1, "vector_factor": 1.0, "memory_factor": 1.0})
    random = table["groups"].setdefault("random", dict(table["groups"]["elementwise"]))
    random["byte_ns"] = 0.06
    table["groups"]["ai_cpu"] = {"launch_ns": 100_000.0, "element_ns": 1.0, "step_ns": 0.0}
    big = [k for k in forms if k.ns > 10_000 and k.kind.group in ("elementwise", "fill", "reduce")]
    shared = table["shared"]
    descend(table, [(shared, n) for n in shared if n not in ("read", "write")], big, penalty=0.05)
    for group, members in by_group.items():
        constants = table["groups"][group]
        if group == "ai_cpu":
            constants["launch_ns"] = statistics.median(k.ns for k in members)
            continue
        names = ["launch_ns", "step_ns"]
        names += {"cube": ["cube_factor"], "random": ["byte_ns"], "norm": ["vector_factor"], "transcendental": ["vector_factor"]}.get(group, ["memory_factor"])
        descend(table, [(constants, n) for n in names], members, penalty=0.05)
    for members in by_group.values():
        names_of: dict[str, list[Kernel]] = defaultdict(list)
        for k in members:
            names_of[k.kind.name].append(k)
        if len(names_of) < 2:
            continue
        for name, ones in names_of.items():
            own = table["types"][name] = {"launch": 1.0, "throughput": 1.0}
            descend(table, [(own, "launch"), (own, "throughput")], ones, penalty=0.02)
    return table


def errors(table: dict[str, Any], kernels: Iterable[Kernel]) -> list[tuple[str, float, float]]:
    """(type, measured ns, predicted ns)."""
    return [(k.kind.name, k.ns, k.predicted(table)) for k in kernels]


def summary(found: list[tuple[str, float, float]]) -> dict[str, float]:
    """Median and 90th percentile of the relative error, and predicted over measured sum."""
    wrong = sorted(abs(p - m) / m for _t, m, p in found)
    return {"kernels": len(found), "median": statistics.median(wrong), "p90": wrong[min(len(wrong) - 1, math.ceil(0.9 * len(wrong)) - 1)],
            "within_40": sum(w <= 0.4 for w in wrong) / len(wrong), "sum": sum(p for *_x, p in found) / sum(m for _t, m, _p in found)}


def by_type(found: list[tuple[str, float, float]]) -> dict[str, list[tuple[str, float, float]]]:
    """The same, by kernel type, those with the most time first."""
    groups: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for row in found:
        groups[row[0]].append(row)
    return dict(sorted(groups.items(), key=lambda item: -sum(m for _t, m, _p in item[1])))


def halves(kernels: list[Kernel]) -> tuple[list[Kernel], list[Kernel]]:
    """Every other kernel of each type, in the order of the step; a type with one kernel is tested only, by the constants of its group."""
    seen: dict[str, int] = defaultdict(int)
    both: tuple[list[Kernel], list[Kernel]] = ([], [])
    for k in kernels:
        seen[k.kind.name] += 1
        both[seen[k.kind.name] % 2].append(k)
    return both


def left_out(kernels: list[Kernel], say: Callable[[str], None] = lambda _t: None) -> list[tuple[str, float, float]]:
    """Each kernel type predicted by a fit without it."""
    found = []
    for name in sorted({k.kind.name for k in kernels}):
        table = fit([k for k in kernels if k.kind.name != name])
        found += errors(table, [k for k in kernels if k.kind.name == name])
        say(name)
    return found


def lines(title: str, found: list[tuple[str, float, float]]) -> list[str]:
    """A Markdown table of errors by type."""
    rows = [f"| {title} | kernels | time (us) | median error | nine in ten within | predicted / measured sum |", "|---|---|---|---|---|---|"]
    for name, some in [("**all**", found), *by_type(found).items()]:
        s = summary(some)
        rows.append(f"| {name} | {s['kernels']:.0f} | {sum(m for _t, m, _p in some) / 1e3:,.0f} | {s['median']:.0%} | {s['p90']:.0%} | {s['sum']:.2f} |")
    return rows


def calibration(table: dict[str, Any], tested: list[tuple[str, float, float]], left: list[tuple[str, float, float]], kernels: list[Kernel], dispatch: dict[str, float]) -> dict[str, Any]:
    """What goes into calibration.json: the constants, and the bars: of a type from the test half, of a group from the types left out."""
    def bar(some: list[tuple[str, float, float]], least: float) -> list[float]:
        ratios = np.array([m / p for _t, m, p in some])
        low, high = np.quantile(ratios, [0.05, 0.95])
        return [round(min(float(low), 1 - least), 3), round(max(float(high), 1 + least), 3)]

    group_of = {k.kind.name: k.kind.group for k in kernels}
    counts: dict[str, int] = defaultdict(int)
    for k in kernels:
        counts[k.kind.name] += 1
    tested_types = by_type(tested)
    spread_types = {name: bar(tested_types[name], 0.1) if len(tested_types.get(name, [])) > 1 else [0.6, 1.6] for name in counts if name != "AiCpu"}
    groups: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    for row in left:
        groups[group_of[row[0]]].append(row)
    spread_groups = {g: bar(rows, 0.4) if len({r[0] for r in rows}) > 1 else [0.4, 2.5] for g, rows in groups.items() if g != "ai_cpu"}
    spread_groups["ai_cpu"] = bar([r for r in tested if r[0] == "AiCpu"], 0.5)
    rounded = json.loads(json.dumps(table), parse_float=lambda t: float(f"{float(t):.5g}"))
    return {
        "source": SOURCE, "chips": ["ascend-910b1", "ascend-910b2"],
        "note": "chips: those with the cores and clock of the captured one (24 cube, 48 vector, 1.85 GHz). spread: measured over predicted, 5 % to 95 %.",
        **rounded, **dispatch, "counts": dict(sorted(counts.items())),
        "spread": {"types": dict(sorted(spread_types.items())), "groups": dict(sorted(spread_groups.items())), "unknown": [0.3, 4.0], "other_chip": [0.5, 2.0]},
    }


def host(path: Path) -> dict[str, float]:
    """collective_ns: the shortest collective; dispatch_ns: median time from one start to the next where kernels under 5 us follow each other."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    collective = min(float(r["Duration(us)"]) for r in rows if r["Accelerator Core"] in ("HCCL", "HCOM")) * 1e3
    starts = [(float(r["Start Time(us)"]), float(r["Duration(us)"])) for r in rows if r["Accelerator Core"] not in ("HCCL", "HCOM")]
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(starts) if a[1] < 5 and b[1] < 5]
    return {"collective_ns": round(collective, 1), "dispatch_ns": round(statistics.median(gaps) * 1e3, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true", help="halves only")
    options = parser.parse_args()
    kernels = read(options.capture)
    first, second = halves(kernels)
    tested = errors(fit(first), second)
    report = lines("fit on one half, tested on the other", tested)
    print("\n".join(report))
    if options.quick:
        return
    left = left_out(kernels)
    other = lines("type left out of the fit", left)
    print("\n" + "\n".join(other))
    if options.write:
        found = calibration(fit(kernels), tested, left, kernels, host(options.capture))
        target = ROOT / "src/npulift/ascend/cost/calibration.json"
        target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        page = ROOT / "docs/ascend_cost.md"
        text = page.read_text(encoding="utf-8")
        for name, table in (("halves", report), ("left-out", other)):
            text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m, t=table: m[1] + "\n".join(t) + "\n" + m[2], text, flags=re.S)
        page.write_text(text, encoding="utf-8")
        print(f"\nwrote {target.relative_to(ROOT)} and {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
