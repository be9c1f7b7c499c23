"""How long and how much memory the capture of a seven-billion-parameter decoder takes on the meta device (aim: 30 s, 2 GB)."""

import subprocess
import sys
from pathlib import Path

CODE = """
import resource, sys, time
sys.path.insert(0, 'examples')
from npulift.loading import load_model
from npulift.tracing import capture
spec = load_model('examples/decoder_7b.py:model')
start = time.perf_counter()
seen = capture(spec)
print(f"{time.perf_counter() - start:.1f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB resident, "
      f"{len(seen.exported_ops)} operators exported, {len(seen.eager_ops)} dispatched")
"""


def main() -> None:
    subprocess.run([sys.executable, "-c", CODE], cwd=Path(__file__).parent.parent, check=True)
