"""Run every architecture of tools/ascend_architectures.py on the virtual Ascend and write docs/ascend_models.md: fallbacks, predicted time, peak memory.

    python tools/ascend_models.py [--mode fake|real] [--target ascend-910b2] [name ...]

Exits with 1 when a run stops, or when the fallbacks that npulift counts are not the operators that torch_npu itself warns about.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ascend_architectures import ARCHITECTURES

from npulift.ascend.run_findings import fallbacks
from npulift.ascend.run_report import report
from npulift.ascend.simulation import Simulation, simulate
from npulift.files import write_text

WARNED = re.compile(r"The operator '([^']+)' is not currently supported on the NPU backend")


def run(name: str, target: str, mode: str) -> Simulation:
    """Simulate one forward pass of an architecture."""
    return simulate(f"{Path(__file__).parent / 'ascend_architectures.py'}:{name}", target, mode=mode, time_limit=300)


def warned(simulation: Simulation) -> set[str]:
    """The operators that torch_npu itself said fall back."""
    return {operator for line in simulation.log for operator in WARNED.findall(line)}


def counted(simulation: Simulation) -> set[str]:
    """The operators that npulift says fall back, by base name as torch_npu prints them."""
    return {f.operator for f in fallbacks(simulation)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--mode", default="fake")
    parser.add_argument("--target", default="ascend-910b2")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "ascend_models.md")
    options = parser.parse_args()
    rows, bad = [], 0
    for name in options.names or sorted(ARCHITECTURES):
        done = run(name, options.target, options.mode)
        data = report(done).data
        same = counted(done) == warned(done)
        good = done.status == "finished" and same
        bad += not good
        time = f"{data['time']['npu_s'] * 1e6:.0f}" if data["time"] else "-"
        fell = ", ".join(f"`{f['operator']}` x{f['count']}" for f in data["fallbacks"]) or "none"
        stopped = "" if done.status == "finished" else f"stopped: {(done.error.get('message') or str(done.exit_code)).splitlines()[0][:80]}"
        rows.append(f"| {name} | {ARCHITECTURES[name][0]} | {data['launches']} | {fell} | {time} | {data['peak_memory_bytes'] / 2**20:.2f} | {stopped} |")
        note = "" if same else f"  npulift {counted(done) - warned(done)}, torch_npu {warned(done) - counted(done)}"
        print(f"{name:20} {done.status:9} {data['launches']:5} launches, {len(counted(done))} operators fall back{note} {stopped}", flush=True)
    text = [
        "# Architectures of transformers on the virtual Ascend", "",
        f"One forward pass of small, random configurations on a virtual {options.target} ({options.mode} mode), written by `python tools/ascend_models.py`.",
        "Launches, fallbacks and peak memory come from the real torch_npu on hollow CANN (simulated); the time is the cost model's (predicted), kernels only.", "",
        "| name | class | launches | fallbacks | predicted us | peak MiB | |", "|---|---|---|---|---|---|---|", *rows, "",
    ]
    if not options.names:
        write_text(options.out, "\n".join(text))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
