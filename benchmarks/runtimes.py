"""npulift tune against eager, torch.compile, plain OpenVINO and plain ONNX Runtime, on real models, each in one interleaved run.

Ratios are of medians; spread is the interquartile range over the median. Absolute times wander on a shared machine; ratios within one run hold.
"""

import tempfile
from pathlib import Path

from npulift.tune import tune

MODELS = ("efficientnet_lite0", "digits_vit", "minilm", "vit_tiny", "swin_tiny")


def row(name: str, entry: dict, tuned: float) -> str:
    return f"  {name:<14} {entry['median_s'] * 1e3:9.3f} ms   spread {entry['spread']:6.1%}   {entry['median_s'] / tuned:6.2f} x tuned"


def main() -> None:
    examples = Path(__file__).parent.parent / "examples"
    for model in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            report = tune(f"{examples / model}.py:model", "openvino", budget=120, out=Path(folder) / "out")
        data = report.as_json()
        tuned = data["tuned"]
        kept = ", ".join(t["change"] for t in data["trials"] if t["verdict"] == "kept") or "nothing beat the compilers"
        print(f"\n{model} ({tuned['kind']}, {tuned['rounds']} interleaved rounds); kept: {kept}")
        for name, entry in sorted(data["baseline"].items(), key=lambda item: -item[1]["median_s"]):
            print(row(name, entry, tuned["median_s"]))
        print(row("tuned", tuned, tuned["median_s"]))
        for name, reason in data["failures"].items():
            print(f"  {name:<14} left out: {reason}")



