"""Workbench: variants become programs that run in worker processes, each compiled once however often it is asked for."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from npulift import graphs
from npulift.changes import Variant
from npulift.files import save_program
from npulift.measured import Kind
from npulift.targets.base import Placement, Score, Target, find_target
from npulift.targets.calibration import samples_of, write_calibration
from npulift.verify import Arrays
from npulift.worker import RemoteError, Worker, WorkerError

_RUNNER = "npulift.targets.runner"


@dataclass(frozen=True)
class Built:
    """A variant and its compiled program on disk. source: the .pt2 that it was compiled from; facts: what the target told; bytes: its size."""

    variant: Variant
    source: Path
    folder: Path
    facts: dict[str, Any]
    bytes: int


class Workbench:
    """Compiles and runs variants. folder: where .pt2 files and programs are kept. Use as a context manager."""

    def __init__(self, folder: Path, *, compile_limit: float = 600.0, run_limit: float = 300.0) -> None:
        self._folder = folder
        self._compile_limit, self._run_limit = compile_limit, run_limit
        self._compiler: Worker | None = None
        self._runners: dict[str, Worker] = {}
        self._sources: list[tuple[torch.nn.Module, Path]] = []
        for part in ("sources", "programs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        self._calibration: Path | None = None

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """Where everything is kept."""
        return self._folder

    def close(self) -> None:
        """End the workers."""
        for worker in (self._compiler, *self._runners.values()):
            if worker is not None:
                worker.close()
        self._compiler, self._runners = None, {}

    def source(self, variant: Variant) -> Path:
        """The variant's module as a .pt2, exported when it was not before. Raises what torch.export raises."""
        for module, path in self._sources:
            if module is variant.module:
                return path
        program = graphs.export(variant.spec)
        path = self._folder / "sources" / f"{_digest(program)}.pt2"
        save_program(program, path)
        self._sources.append((variant.module, path))
        return path

    def restore(self, source: str) -> torch.nn.Module:
        """The module of a .pt2 that an earlier run left here (path relative to the folder). Raises FileNotFoundError."""
        path = self._folder / source
        module = torch.export.load(path).module(check_guards=False)
        self._sources.append((module, path))
        return module

    def relative(self, path: Path) -> str:
        """A path under the folder, as `restore` takes it."""
        return str(path.relative_to(self._folder))

    def build(self, variant: Variant) -> Built:
        """Compile. Raises WorkerError (of which RemoteError) when the compiler fails, and what torch.export raises."""
        source = self.source(variant)
        target = find_target(variant.target)
        options = {k: v for k, v in variant.options.items() if k not in target.load_only}
        if (target.calibrates or options.get("precision", "").startswith("int")) and "calibration" not in options:
            options["calibration"] = str(self._samples(variant))
        key = hashlib.sha256(json.dumps([source.stem, target.name, {k: v for k, v in options.items() if k != "calibration"}], sort_keys=True).encode())
        folder = self._folder / "programs" / key.hexdigest()[:20]
        facts_file = folder.with_suffix(".json")
        if not facts_file.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                facts = self._compile_worker().call(f"{_RUNNER}:compile", target.name, source, options, folder, time_limit=self._compile_limit)
            except WorkerError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            facts_file.write_text(json.dumps(facts))
        facts = json.loads(facts_file.read_text())
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        return Built(replace(variant, options=dict(variant.options)), source, folder, facts, size)

    def open(self, built: Built) -> Running:
        """Load a built variant into its target's worker."""
        return Running(self, built)

    def placement(self, variant: Variant) -> Placement | None:
        """Where the variant's operators go; None when the target does not say or its compiler failed."""
        target = find_target(variant.target)
        if type(target).placement is Target.placement:
            return None
        try:
            found = self._compile_worker().call(f"{_RUNNER}:placement", target.name, self.source(variant), dict(variant.options), time_limit=self._compile_limit)
        except WorkerError:
            return None
        return found if isinstance(found, Placement) else None

    def score(self, built: Built) -> Score | None:
        """The vendor's estimate of a program."""
        found = self._compile_worker().call(f"{_RUNNER}:score", built.variant.target, built.folder, time_limit=self._compile_limit)
        return found if isinstance(found, Score) else None

    def runner(self, target: str) -> Worker:
        """The worker that runs this target's programs; a new one when the last one died."""
        worker = self._runners.get(target)
        if worker is None or not worker.alive:
            worker = self._runners[target] = Worker(time_limit=self._run_limit)
        return worker

    def _compile_worker(self) -> Worker:
        if self._compiler is None or not self._compiler.alive:
            self._compiler = Worker(time_limit=self._compile_limit)
        return self._compiler

    def _samples(self, variant: Variant) -> Path:
        if self._calibration is None:
            path = self._folder / "calibration.npz"
            write_calibration(path, samples_of(variant.spec))
            self._calibration = path
        return self._calibration


class Running:
    """A program loaded in a worker. It is loaded again by itself when the worker died in between."""

    def __init__(self, bench: Workbench, built: Built) -> None:
        self._bench, self.built = bench, built
        self._worker: Worker | None = None
        self._number = 0
        self._load()

    @property
    def kind(self) -> Kind | None:
        """Kind of the times that `time` gives."""
        return find_target(self.built.variant.target).run_kind

    def _load(self) -> None:
        variant = self.built.variant
        self._worker = self._bench.runner(variant.target)
        options = {k: v for k, v in variant.options.items() if k != "calibration"}
        self._number = self._worker.call(f"{_RUNNER}:load", variant.target, self.built.folder, options)

    def _call(self, function: str, *args: Any) -> Any:
        if self._worker is None or not self._worker.alive:
            self._load()
        assert self._worker is not None
        return self._worker.call(f"{_RUNNER}:{function}", self._number, *args)

    def run(self, inputs: Arrays) -> Arrays:
        """Outputs for inputs."""
        found: Arrays = self._call("run", inputs)
        return found

    def timer(self, inputs: Arrays, goal: str) -> Any:
        """A timing.Timer: seconds an inference, for latency or at full load."""
        if goal == "throughput":
            return lambda calls: self._call("throughput", inputs, max(0.05, calls * 1e-3))
        return lambda calls: self._call("timing", inputs, calls)

    def profile(self, inputs: Arrays, runs: int, path: Path) -> bool:
        """Write the profile; False when the target cannot tell."""
        return bool(self._call("profile", inputs, runs, path))

    def close(self) -> None:
        """Forget the program."""
        if self._worker is not None and self._worker.alive:
            try:
                self._worker.call(f"{_RUNNER}:unload", self._number)
            except WorkerError:
                pass


def plain_variants(target: Target, variant: Variant) -> dict[str, Variant]:
    """The untuned contestants by name: the target as it comes and, where the target is this machine's CPU, its other runtimes.

    Where OpenVINO lowers precision by itself, OpenVINO told to stay in float32 is a contestant of its own.
    """
    if not is_host(target):
        plain = {target.name: replace(variant, target=target.name, options={})}
        return plain | {name: replace(variant, target=target.name, options=dict(options)) for name, options in target.baselines().items()}
    from npulift.targets.openvino import default_float

    plain = {"openvino": replace(variant, target="openvino", options={}), "onnxruntime": replace(variant, target="onnxruntime", options={})}
    if default_float() != "f32":
        plain["openvino-f32"] = replace(variant, target="openvino", options={"float": "f32"})
    return plain


def is_host(target: Target) -> bool:
    """True when the target runs on this machine's CPU, so that another runtime may take its place."""
    return target.name in ("openvino", "openvino:CPU", "onnxruntime", "cpu")


def _digest(program: torch.export.ExportedProgram) -> str:
    """The same for programs with the same graph and the same weights."""
    state = hashlib.sha256(str(program.graph_module.code).encode())
    state.update(str(program.range_constraints).encode())
    for name, value in sorted({**program.state_dict, **program.constants}.items()):
        if isinstance(value, torch.Tensor):
            state.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
            data = value.detach().cpu().contiguous()
            state.update(data.view(torch.uint8).numpy().tobytes() if data.numel() and data.ndim else str(data.tolist()).encode())
    return state.hexdigest()[:20]


__all__ = ["Built", "RemoteError", "Running", "Workbench", "is_host", "plain_variants"]
