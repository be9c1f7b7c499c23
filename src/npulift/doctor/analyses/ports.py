"""Ports that cannot be bound: over 65535, or taken by another job."""

from __future__ import annotations

import re
from collections.abc import Iterator

from npulift.doctor.diagnose import Found
from npulift.doctor.records import Cause, Line
from npulift.findings import Severity
from npulift.messages import _

_PORT = re.compile(r"\bport[\s:=\[]{1,3}(\d{1,7})", re.IGNORECASE)
_PHYSICAL = re.compile(r"physical (?:device|card|id)[ :=]{0,3}(\d{1,4})", re.IGNORECASE)
_HIGHEST = 65535
_DEFAULT_BASE = 60000  # HCCL's default of HCCL_IF_BASE_PORT; 16666 is the device side's


class Ports:
    """Collects port numbers from lines that speak of binding or listening."""

    literals = ("port", "Port", "physical device", "physical card", "HCCL_IF_BASE_PORT")
    limit = 20_000

    def __init__(self) -> None:
        self.ports: dict[int, Line] = {}
        self.physical: tuple[int, Line] | None = None
        self.other_job: Line | None = None

    def line(self, line: Line) -> None:
        """Take one line."""
        text = line.text
        lower = text.lower()
        if any(word in lower for word in ("bind", "listen", "bound", "ej0003", "ei0019", "ei0020", "address already", "eaddrinuse", "socket")):
            for port in _PORT.findall(text):
                if len(self.ports) < 100:
                    self.ports.setdefault(int(port), line)
        if found := _PHYSICAL.search(text):
            self.physical = (int(found.group(1)), line)

    def causes(self, found: Found) -> Iterator[Cause]:
        """Invalid, or shared."""
        bind = [*(m.evidence[0] for i in ("hccl-bind-port", "hccl-rootinfo-port", "address-in-use") if (m := found.matches.get(i)))]
        base_text = found.facts.value("HCCL_IF_BASE_PORT") or ""
        base = int(base_text) if base_text.isdigit() else None
        invalid = {p: line for p, line in self.ports.items() if p > _HIGHEST}
        if not invalid and base is not None and self.physical is not None and base + self.physical[0] > _HIGHEST:
            invalid = {base + self.physical[0]: self.physical[1]}
        if invalid:
            port, line = next(iter(invalid.items()))
            found.take("hccl-bind-port", "address-in-use", "hccl-rootinfo-port")
            sum_text = _(" It is the base {base} plus the physical device number {device}.").format(base=base, device=port - base) if base is not None and 0 <= port - base < 4096 else ""
            yield Cause(
                "port-over-65535", Severity.ERROR, "high",
                _("The port {port} is above {highest}, the highest that exists, so it can never be bound.").format(port=port, highest=_HIGHEST) + sum_text,
                (
                    _("Lower the base on all ranks: export HCCL_IF_BASE_PORT=55000 (base + highest physical device number + 1 must stay below {highest}).").format(highest=_HIGHEST + 1),
                    _("Keep the range out of the system's own ports: sysctl net.ipv4.ip_local_reserved_ports=55000-55127"),
                ),
                tuple(dict.fromkeys([line, *found.facts.lines("HCCL_IF_BASE_PORT"), *([self.physical[1]] if self.physical else [])])),
                source="vllm-project/vllm-ascend#12318", details={"port": port, "base": base})
            return
        lines = found.take("hccl-bind-port", "hccl-rootinfo-port", "address-in-use") if bind else []
        if not lines:
            return
        if not any(i in found.replaced for i in ("hccl-bind-port", "hccl-rootinfo-port")) and not self._hccl(lines):
            found.replaced.discard("address-in-use")
            return
        if not found.has("hccl-bind-port", "hccl-rootinfo-port"):
            found.replaced.discard("address-in-use")
            return
        named = next(iter(self.ports), None)
        port_text = _("port {port}").format(port=named) if named else _("HCCL's default port {port}").format(port=_DEFAULT_BASE)
        devices = found.facts.value("ASCEND_RT_VISIBLE_DEVICES")
        cards = _(" This job's own cards ({devices}) do not matter for it: the port belongs to the host.").format(devices=devices) if devices else ""
        device_side = named is not None and (16600 <= named < 16800)
        steps = [
            _("Give each job on this server a base port of its own: export HCCL_IF_BASE_PORT={other} (the same on all ranks of one job, at least as many ports apart as there are devices).").format(
                other=61000 if (named or _DEFAULT_BASE) < 61000 else 50000),
            _("Several processes on one NPU: export HCCL_HOST_SOCKET_PORT_RANGE=auto and HCCL_NPU_SOCKET_PORT_RANGE=auto."),
            _("A run that was killed may still hold it: look with `ss -ltnp | grep {port}`, stop what is left over, wait ten seconds.").format(port=named or _DEFAULT_BASE),
        ]
        if device_side:
            steps = [steps[1], steps[0], steps[2]]
        yield Cause(
            "hccl-port-taken", Severity.ERROR, "high" if named else "medium",
            _("Two jobs (or a job and the rest of an earlier one) on this server share {port}: HCCL cannot listen there because it is bound already.").format(port=port_text) + cards,
            tuple(steps), tuple(dict.fromkeys([*lines, *found.facts.lines("ASCEND_RT_VISIBLE_DEVICES", "HCCL_IF_BASE_PORT")])),
            more=_("`ss -ltnp` on the host (not in the container), and the environment of both jobs."),
            source="vllm-project/vllm-ascend#405; vllm-project/vllm-ascend#1253; hicann EI0019, EI0020", details={"port": named})

    @staticmethod
    def _hccl(lines: list[Line]) -> bool:
        return any("hccl" in line.text.lower() for line in lines)


def new() -> Ports:
    """A fresh one."""
    return Ports()
