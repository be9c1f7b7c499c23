"""An operator that does not take a dtype: which one, and what it does take, read out of the message."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

_REFUSED = re.compile(r"(?:(?P<what>\w{1,60}) )?not implemented for (?P<dtype>DT_\w{1,24}),? should be in dtype support list\s{0,2}\[(?P<list>[^\]]{0,600})\]?")
_EZ1007 = re.compile(r"Operator (?P<what>\w{1,60}) does not support data type (?P<dtype>\w{1,24})\. The supported data type range is (?P<list>[^.]{0,600})")
_CALL = re.compile(r"call (aclnn\w{1,80}) failed")
_OLD = ("310P", "310B", "910A", "910ProB")


class Dtypes:
    """Collects refusals."""

    literals = ("should be in dtype support list", "does not support data type", "failed, detail:")
    limit = 5000

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, tuple[str, ...], Line]] = []
        self.call: str = ""

    def line(self, line: Line) -> None:
        """Take one line."""
        call = _CALL.search(line.text)
        if call:
            self.call = call.group(1)
        found = _REFUSED.search(line.text) or _EZ1007.search(line.text)
        if found and len(self.seen) < 50:
            types = tuple(t.strip() for t in re.split(r"[,\s]+", found.group("list")) if t.strip())
            self.seen.append((self.call or found.group("what") or "?", found.group("dtype"), types, line))

    def causes(self, found: Found) -> Iterator[Cause]:
        """Old chip without bfloat16, or an operator with a short list."""
        if not self.seen:
            return
        found.replaced.update(("aclnn-parameter", "aclnn-dtype"))
        call, dtype, types, line = self.seen[0]
        names = ", ".join(_plain(t) for t in types) or "?"
        old = next((c for c in found.facts.chips if c.startswith(_OLD)), None)
        evidence = (line, *([found.facts.chips[old]] if old else []))
        details = {"operator": call, "dtype": _plain(dtype), "supported": [_plain(t) for t in types]}
        if dtype.endswith("BFLOAT16") and not any(t.endswith("BFLOAT16") for t in types):
            who = _("This chip ({chip}) lacks bfloat16").format(chip=old) if old else _("This chip lacks bfloat16")
            yield Cause(
                "chip-lacks-bfloat16", Severity.ERROR, "high" if old or "Cast" in call else "medium",
                _("{who}: {call} takes {names} only, and the model asks for bfloat16 (its config says so). The first generation (910A, 910ProB) and 310P have none.").format(who=who, call=call, names=names),
                (
                    _("Use float16: torch_dtype=torch.float16 (vLLM: --dtype float16; LLaMA-Factory: fp16: true, bf16: false); for training with a loss scale (GradScaler(init_scale=2**10))."),
                    _("Where float16 overflows, keep those layers in float32."),
                ),
                evidence, source="hiyouga/LlamaFactory#4165; hiyouga/LlamaFactory#4339; hiyouga/LlamaFactory#7522", details=details)
            return
        yield Cause(
            "operator-dtype", Severity.ERROR, "high",
            _("{call} does not take {dtype} on this chip; it takes {names}.").format(call=call, dtype=_plain(dtype), names=names),
            (
                _("Cast the input to a dtype of that list just before the call (float64 to float32, int64 to int32 where the values fit), and back after it if it must be."),
                _("Look for the place that makes the wide type: numpy arrays (float64), Python floats in torch.tensor, arange and linspace without dtype."),
                _("Do this one operator on the host: x.cpu() there, .npu() after."),
            ),
            evidence, more=_("ASCEND_LAUNCH_BLOCKING=1 makes the Python traceback point at the real line."), source="hicann/opbase EZ1001, EZ1007", details=details)


def _plain(name: str) -> str:
    name = name.removeprefix("DT_").lower()
    return {"float": "float32", "double": "float64", "bf16": "bfloat16"}.get(name, name)


def new() -> Dtypes:
    """A fresh one."""
    return Dtypes()
