"""Target ascend: Huawei's NPUs through torch_npu. Without CANN, `check` runs the real torch_npu on hollow CANN; compiling and timing need the hardware."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npulift.errors import NpuliftError
from npulift.findings import Finding, Severity
from npulift.measured import Kind
from npulift.messages import _
from npulift.targets.base import Program, Target

if TYPE_CHECKING:
    from npulift.ascend.chips import Chip
    from npulift.ascend.simulation import Simulation
    from npulift.capture import Capture, Op


class Ascend(Target):
    """One Ascend chip. torch_npu: the version that `check` answers for, '' for the one that is installed."""

    families = ("ascend",)
    run_kind = Kind.MEASURED
    time_limit = 300.0

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.torch_npu = ""
        self.chip: Chip = _chip(name)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """One name a chip."""
        from npulift.ascend.chips import chips

        return tuple(chips())

    def missing(self) -> str:
        """Compiling and timing need CANN and a card; check and simulate do not."""
        from npulift.ascend.environment import real_cann

        if real_cann() is None:
            return _("Running and timing on {chip} need CANN and a card (source set_env.sh of the CANN toolkit). `npulift check` and `npulift simulate` work without "
                     "them.").format(chip=self.chip.soc)
        return ""

    def compile(self, source: Path, options: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Not without the hardware."""
        raise NpuliftError(self.missing() or _("Compiling for Ascend goes through torchair on the card; npulift has not been tried on one."), exit_code=1)

    def load(self, folder: Path, options: dict[str, Any]) -> Program:
        """Not without the hardware."""
        raise NpuliftError(self.missing() or _("Compiling for Ascend goes through torchair on the card; npulift has not been tried on one."), exit_code=1)

    def weight(self, op: Op) -> float | None:
        """Seconds of the kernel that torch_npu would launch, by the cost model."""
        from npulift.ascend.cost import weight

        return weight(op, self.chip)

    def findings(self, capture: Capture) -> Iterator[Finding]:
        """What running the eager model on the virtual chip shows, or what the support data say for another version."""
        from npulift.ascend import support

        if self.torch_npu:
            version = support.parse_version(self.torch_npu)
            yield from _by_table(capture, version, self.torch_npu, self)
            return
        yield from _by_running(capture, self)


def _chip(name: str) -> Chip:
    from npulift.ascend.chips import chip

    return chip(name)


def _by_table(capture: Capture, version: tuple[int, int], text: str, target: Ascend) -> Iterator[Finding]:
    """For another version: what falls back in the installed one, unless that version had a kernel, and what the table says it lacked."""
    from npulift.ascend import run_findings, support
    from npulift.ascend.run_findings import OTHER_WAY_OUT, WAYS_OUT

    groups: dict[Any, int] = {}
    for op in capture.eager_ops or capture.exported_ops:
        if not op.is_view and support.has_kernel(op.name, version) is False:
            key = (op.base, op.location, op.module)
            groups[key] = groups.get(key, 0) + 1
    try:
        done = _simulate(capture, target)
    except NpuliftError as error:
        yield Finding("NPU121", "not-run", Severity.WARNING, _("The model was not run on the virtual Ascend: {error}").format(error=error))
    else:
        for f in run_findings.fallbacks(done):
            if support.has_kernel(f.operator, version) is not True:
                groups.setdefault((f.operator.partition(".")[0], f.location, f.module), f.count)
        for op, place, module in _operators(done):
            if support.has_kernel(op, version) is False:
                groups.setdefault((op.partition(".")[0], place, module), 1)
    for (base, place, module), count in groups.items():
        yield Finding(
            "NPU110", "host-fallback", Severity.WARNING,
            _("{operator} has no kernel in torch_npu {version} and would run on the CPU ({n} calls): by the support data, this version was not run.").format(
                operator=base, version=text, n=count),
            place, module, _(WAYS_OUT.get(base, OTHER_WAY_OUT)), details={"operator": base, "count": count, "torch_npu": text, "source": "op_plugin_functions.yaml"},
        )


def _operators(simulation: Simulation) -> set[Any]:
    """(operator, line, module) of every outermost operator of the run that launched something."""
    from npulift.ascend import records

    return {(e.operator, e.location, e.module) for e in simulation.trace.events(records.LAUNCH) if e.operator}


def _by_running(capture: Capture, target: Ascend) -> Iterator[Finding]:
    from npulift.ascend import run_findings

    try:
        done = _simulate(capture, target)
    except NpuliftError as error:
        yield Finding("NPU121", "not-run", Severity.WARNING, _("The model was not run on the virtual Ascend: {error}").format(error=error))
        return
    wrong = done.error
    if wrong and not wrong.get("out_of_memory") and wrong.get("type") != "NotImplementedError" and capture.device != "meta":
        with contextlib.suppress(NpuliftError):  # zeros may have led it astray; with values it is what the card would do
            done = _simulate(capture, target, mode="real")
    found = list(run_findings.of_model(done))
    fast = [f for f in found if str(f.details.get("operator", "")).partition(".")[0] in
            ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")]
    if fast:
        found = [_verified(f, capture, target) if f in fast else f for f in found]
    yield from found


def _verified(finding: Finding, capture: Capture, target: Ascend) -> Finding:
    """The finding with its fix tried: the model run again without eager fast paths."""
    from npulift.ascend import run_findings

    try:
        again = _simulate(capture, target, fastpath=False)
    except NpuliftError:
        return finding
    left = {f.operator for f in run_findings.fallbacks(again)}
    gone = again.status == "finished" and finding.details["operator"] not in left
    text = _("Verified: run again with this, the fallback is gone ({n} kernels are launched instead).").format(n=again.trace.launches) if gone else _(
        "Tried: it does not remove the fallback here.")
    return replace(finding, fix=f"{finding.fix} {text}", details={**finding.details, "fix_verified": gone})


def _simulate(capture: Capture, target: Ascend, **more: Any) -> Simulation:
    from npulift.ascend.simulation import simulate

    spec = capture.spec
    if spec.origin:
        return simulate(spec.name, target.name, kind="model", model=spec.origin, time_limit=target.time_limit, **more)
    if capture.exported is None or capture.device == "meta":
        raise NpuliftError(_("Give the model as file.py:factory, so that another process can build it."))
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        torch.export.save(capture.exported, path)
        return simulate(spec.name, target.name, kind="model", model=str(path), time_limit=target.time_limit, **more)
