"""What to try when the compiler stops, in the order that vendor_errors.toml names for its error; each alone, on top of what was asked."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift.errors import NpuliftError
from npulift.messages import _, ngettext
from npulift.targets.qnn import socs
from npulift.targets.qnn.building import Attempt, Build, build, float_model
from npulift.targets.qnn.program import simulate, worth_simulating
from npulift.targets.qnn.vendor_errors import VendorError, codes, explain

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Tried:
    """A way out that was tried. name: as in vendor_errors.toml.   summary: for people.   error: why it did not help, '' when it did."""

    name: str
    summary: str
    error: str

    @property
    def worked(self) -> bool:
        """Whether it compiled."""
        return not self.error


@dataclass(frozen=True)
class Outcome:
    """build: what compiled.   first: the error of what was asked for, None when that compiled.   tried: the ways out, in order."""

    build: Build
    first: VendorError | None = None
    tried: tuple[Tried, ...] = ()


_worked: dict[tuple[int, int, str], str] = {}  # (SoC, error code, precision): the way out that worked last in this process; tried first the next time


def compile_somehow(
    program: torch.export.ExportedProgram, attempt: Attempt, folder: Path, samples: Sequence[Sequence[np.ndarray[Any, Any]]],
) -> Outcome:
    """Compile as asked, or by the first way out that works. Raises NpuliftError, with all that was tried, when none does."""
    try:
        return Outcome(build(program, attempt, folder, samples))
    except VendorError as error:
        first = error
    tried: list[Tried] = []
    key = (attempt.soc.number, first.code, attempt.precision)
    ways = list(_ways(attempt, first, samples))
    ways.sort(key=lambda way: way[0] != _worked.get(key))
    for name, summary, other in ways:
        _empty(folder)
        try:
            made = build(program, other, folder, samples)
            _judge(name, program, made, samples)
        except (VendorError, NpuliftError) as error:
            tried.append(Tried(name, summary, _short(error)))
            continue
        tried.append(Tried(name, summary, ""))
        _worked[key] = name
        return Outcome(made, first, tuple(tried))
    _empty(folder)
    raise NpuliftError("qnn: " + hopeless(program, attempt, first, tried, samples), exit_code=1)


def _judge(name: str, program: Any, made: Build, samples: Sequence[Sequence[np.ndarray[Any, Any]]]) -> None:
    """Raise VendorError when what compiled is no way out: on the CPU where all of it was to be on the NPU, or with other values than the float model."""
    on_cpu = sum(not p.accelerated for p in made.placed)
    if name == "split-npu" and on_cpu:
        raise VendorError(-1, ngettext("{n} operator would be on the CPU", "{n} operators would be on the CPU", on_cpu).format(n=on_cpu))
    if name not in ("int8", "int16", "split-npu", "split") or not worth_simulating(made) or not samples:
        return
    reference = float_model(program, made.attempt)
    for deviation in simulate(made.folder, samples[0], reference):
        if deviation.wrong:
            raise VendorError(-1, _("it compiles, but its values are not the float model's: cosine {cosine:.2f}").format(cosine=deviation.cosine))


def _ways(attempt: Attempt, error: VendorError, samples: Sequence[Any]) -> Iterator[tuple[str, str, Attempt]]:
    entry = codes().get(error.code)
    for name in entry.ways if entry is not None else ("faster-finalize", "split"):
        match name:
            case "named-soc" if attempt.soc.number == 0:
                soc = socs.default()
                yield name, _("name the SoC: {soc}").format(soc=soc.label), replace(attempt, soc=soc)
            case "faster-finalize" if not attempt.finalize:
                yield name, _("let the compiler optimise less (finalization mode 1)"), replace(attempt, finalize="1")
            case "gelu-form" if attempt.erf != "all":
                yield name, _("compute GELU by exponential and division: float Gelu has no form on Hexagon v68"), replace(attempt, erf="all")
            case "attention-per-head" if attempt.attention in ("whole", "exporter"):
                yield name, _("one attention head at a time"), replace(attempt, attention="per-head")
            case "attention-blocks" if attempt.attention != "blocks":
                yield name, _("attention by blocks of {n} queries").format(n=attempt.block), replace(attempt, attention="blocks")
            case ("int8" | "int16") if attempt.precision == "float" and samples:
                summary = ngettext("quantise to {precision}, calibrated on {n} sample", "quantise to {precision}, calibrated on {n} samples", len(samples))
                yield name, summary.format(precision=name, n=len(samples)), replace(attempt, precision=name)
            case "split-npu" if not attempt.split and attempt.soc.takes_float == "full":
                yield name, _("cut the graph into several NPU programs"), replace(attempt, split=True)
            case "split" if not attempt.split:
                yield name, _("cut the graph where it does not compile, and leave what never compiles on the CPU"), replace(attempt, split=True)


def hopeless(program: Any, attempt: Attempt, first: VendorError, tried: Sequence[Tried], samples: Sequence[Any]) -> str:
    """What to tell when nothing worked; says whether another chip would take the model."""
    lines = [explain(first)]
    lines += [_("Tried: {way}; it did not help ({reason}).").format(way=t.summary, reason=t.error) for t in tried]
    other = socs.default()
    if attempt.soc.number != other.number:
        with tempfile.TemporaryDirectory() as folder:
            try:
                build(program, replace(attempt, soc=other), Path(folder), samples)
                lines.append(_("For {soc} it does compile, so the chip is the limit.").format(soc=other.label))
            except (VendorError, NpuliftError) as error:
                lines.append(_("It does not compile for {soc} either ({reason}).").format(soc=other.label, reason=_short(error)))
    return " ".join(lines)


def _short(error: Exception) -> str:
    if isinstance(error, VendorError):
        entry = codes().get(error.code)
        if entry is not None:
            return f"{entry.name}, {entry.code}" if entry.code else entry.name
        return error.text.splitlines()[0][:160] if error.text else "?"
    return str(error).splitlines()[0][:160]


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
