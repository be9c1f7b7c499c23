"""Target: a family of hardware behind one interface. Program: what it compiled. Plug-ins in the entry-point group npulift.targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from npulift.errors import NpuliftError
from npulift.findings import Finding
from npulift.measured import Kind
from npulift.messages import _

if TYPE_CHECKING:
    import numpy as np

    from npulift.capture import Capture, Op
    from npulift.changes import Change, Variant
    from npulift.profile import Profile


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one operator goes.

    node: name of the vendor's node or of the exported node.   operator: its type, as the vendor calls it.
    device: 'NPU', 'CPU', 'AI_CPU', 'GPU', ...   accelerated: True when it runs on what the target is for.
    op: the operator of ours that it came from, where that can be told.   reason: why it was refused, in the vendor's words.
    """

    node: str
    operator: str
    device: str
    accelerated: bool
    op: Op | None = None
    reason: str = ""


@dataclass(frozen=True)
class Placement:
    """Where each operator goes, and what that costs at the borders.

    crossings: how often data goes between the accelerator and the CPU in one inference; None when unknown.
    inserted_transposes: layout conversions that the compiler added; None when unknown.
    source: who says so, e.g. 'query_model' or the compiler's own assignment.
    """

    placed: tuple[Placed, ...]
    source: str
    crossings: int | None = None
    inserted_transposes: int | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def accelerated(self) -> int:
        """Operators on the accelerator."""
        return sum(p.accelerated for p in self.placed)

    @property
    def on_cpu(self) -> int:
        """Operators elsewhere."""
        return len(self.placed) - self.accelerated


@dataclass(frozen=True, slots=True)
class Score:
    """What a compiled program costs, by a model of it; lower is better.

    unit: 's' for seconds an inference, else what it counts (say 'cycles').   parts: what it is made of.
    """

    value: float
    unit: str
    kind: Kind
    parts: dict[str, Any] = field(default_factory=dict)


class Program(ABC):
    """A compiled program, loaded and ready to run. Inputs and outputs are NumPy arrays by position."""

    device: str = "CPU"

    @abstractmethod
    def __call__(self, *inputs: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Run it once."""

    def profile(self, inputs: tuple[np.ndarray[Any, Any], ...], runs: int) -> Profile | None:
        """Time by operator over `runs` runs, or None when the target cannot tell."""
        return None

    def throughput(self, inputs: tuple[np.ndarray[Any, Any], ...], seconds: float) -> float:
        """Inferences a second, with as many in flight as the program was compiled for."""
        import time

        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self(*inputs)
            count += 1
        return count / (time.perf_counter() - start)


class Target(ABC):
    """A family of hardware.

    name: what the user typed, e.g. 'openvino:NPU' or 'ascend-910b2'.   families: the prefixes that this class answers to.
    run_kind: kind of the times that running a program gives; None when running gives no time that may be used.
    Methods that call vendor code (compile, load, placement_of, score) are called inside a worker process; they may be slow, and may raise.
    """

    families: ClassVar[tuple[str, ...]] = ()
    run_kind: ClassVar[Kind | None] = Kind.MEASURED
    load_only: ClassVar[frozenset[str]] = frozenset()  # options that `load` reads and `compile` does not, so that one compilation serves many

    calibrates: ClassVar[bool] = False  # every program is quantised, so `compile` always wants calibration samples
    reshapes: ClassVar[bool] = False  # a program compiled with open dims can be fixed to a size when it is loaded (option 'sizes') or run at any size

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that `npulift targets` lists for this class."""
        return cls.families

    @classmethod
    def accepts(cls, name: str) -> bool:
        """True when this class answers to the name."""
        return any(name == f or name.startswith((f + ":", f + "-")) for f in cls.families)

    def missing(self) -> str:
        """What has to be installed or plugged in before this target works, one sentence with the command; '' when nothing is missing."""
        return ""

    @property
    def device(self) -> str:
        """What programs run on here."""
        return self.name

    @abstractmethod
    def compile(self, source: Path, options: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Compile the .pt2 at `source` into `folder` (which exists and is empty); returns facts for the manifest (JSON types).

        options: each target documents its own; 'calibration' names an .npz with arrays 'i_j' (input j of sample i).
        """

    @abstractmethod
    def load(self, folder: Path, options: dict[str, Any]) -> Program:
        """Open what `compile` wrote."""

    def placement(self, source: Path, options: dict[str, Any]) -> Placement | None:
        """Where each operator of the .pt2 would go, by the vendor's own word; None when it does not say."""
        return None

    def score(self, folder: Path) -> Score | None:
        """The vendor's estimate of a compiled program, where there is one."""
        return None

    def weight(self, op: Op) -> float | None:
        """Predicted seconds of one operator, for ordering and cost shares only; None when its sizes are unknown.

        The default is a roofline of a generic edge NPU with 4 TFLOP/s and 25 GB/s, plus 5 us an operator that moves data: round numbers
        for ranking, not a statement about any chip. Targets with a calibrated model override it.
        """
        if op.flops is None or op.bytes_read is None or op.bytes_written is None:
            return None
        if op.is_view:
            return 0.0
        return max(op.flops / 4e12, (op.bytes_read + op.bytes_written) / 25e9) + 5e-6

    def baselines(self) -> dict[str, dict[str, Any]]:
        """Options, by name, of what else a user would get without npulift: untuned contestants beside the target's own defaults."""
        return {}

    def changes(self, capture: Capture, variant: Variant) -> Iterator[Change]:
        """Changes that only this target knows (precision, threads, form of the export); most valuable first."""
        yield from ()

    def findings(self, capture: Capture) -> Iterator[Finding]:
        """What this target has to say about a model before anything is compiled."""
        yield from ()


def target_classes() -> dict[str, type[Target]]:
    """Every plug-in by its entry-point name; one that cannot be imported is left out."""
    classes: dict[str, type[Target]] = {}
    for point in sorted(entry_points(group="npulift.targets"), key=lambda p: p.name):
        try:
            classes[point.name] = point.load()
        except ImportError:
            continue
    return classes


def find_target(name: str) -> Target:
    """The target that answers to the name. Raises NpuliftError with the list when none does."""
    classes = target_classes()
    for cls in classes.values():
        if cls.accepts(name):
            return cls(name)
    known = ", ".join(n for cls in classes.values() for n in cls.names())
    raise NpuliftError(_("There is no target {name}. There are: {known}.").format(name=name, known=known))
