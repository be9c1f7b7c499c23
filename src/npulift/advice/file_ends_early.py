"""ADV100 file-ends-early: a file ends before its end.

The profiler writes the framework's part first and adds the device's part later, and closes the file last. When the process is killed, the disk is full, or the export is interrupted, the file
stays open. What was loaded is right but not all: sums and shares are of a part.
Threshold: none.
Saving: none; figures are incomplete.
Change: let the vendor's tool make the file again from the raw data.
"""

from __future__ import annotations

from collections.abc import Iterator

from npulift.findings import Finding, Severity
from npulift.messages import _, ngettext
from npulift.profilers.view import View, found

CODE = "ADV100"
NAME = "file-ends-early"


def find(view: View) -> Iterator[Finding]:
    """One finding a file."""
    for file in view.evidence.files:
        if not file.truncated:
            continue
        table = file.path.suffix.lower() == ".csv"
        ascend = not file.path.name.endswith((".pt.trace.json", ".gz")) and "ONNX" not in file.reader
        yield found(
            view, (CODE, NAME), Severity.WARNING,
            ngettext("{file} ends early: {n} complete record was loaded, what came after it is missing.", "{file} ends early: {n} complete records were loaded, what came after them is missing.",
                     file.records).format(file=file.path.name, n=file.records) if not table else
            ngettext("{file} ends early: its last line is cut and was left out; {n} complete row was loaded.", "{file} ends early: its last line is cut and was left out; {n} complete rows were loaded.",
                     file.records).format(file=file.path.name, n=file.records),
            (_("Rebuild it from the raw data: from torch_npu.profiler.profiler import analyse; analyse(\"DIR\") on the folder that ends in _ascend_pt (torch_npu.profiler.profiler.analyse). ")
             + _("Let the run end by itself: call prof.stop() or leave the with block before the process exits, with room on the disk.")) if ascend else
            _("Record it again, and let the export finish before the process ends."),
            details={"file": str(file.path), "complete_records": file.records, "bytes": file.bytes},
        )
