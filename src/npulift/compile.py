"""compile: one bundle for a target, with the sizes that are needed; the nearest is chosen at run time."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npulift import __version__, bundle, timing, verify
from npulift.changes import Variant
from npulift.errors import NpuliftError
from npulift.files import atomic_folder
from npulift.findings import Finding, Severity
from npulift.loading import load_model
from npulift.measured import Kind
from npulift.messages import _
from npulift.model import ModelSpec
from npulift.report.document import Facts, Report, Section, Table
from npulift.rules import unbounded_dim
from npulift.shapes.choose import Choice, choose
from npulift.shapes.latency import Latency, measured_latency, predicted_latency, varying
from npulift.shapes.observed import Observed
from npulift.shapes.padding import Sizes, batch_dims, dim_names, divergence, input_axes, is_image, output_axes, padding_finding, resized, with_dims
from npulift.targets.base import Target, find_target
from npulift.workbench import Built, Workbench
from npulift.worker import WorkerError

FITS = ("auto", "pad", "letterbox")
Say = Callable[[str, float | None], None]


def compile(
    model: str | ModelSpec | tuple[Any, Any],
    target: str = "openvino",
    *,
    buckets: str | list[Sizes] = "",
    shapes: Observed | Path | str | None = None,
    most: int = 4,
    fit: str = "auto",
    precision: str = "",
    out: Path | str | None = None,
    say: Say = lambda text, done: None,
) -> Report:
    """Compile a model; the bundle is in `out` afterwards.

    buckets: '' for the model as it is, 'auto' to choose them for `shapes`, '224,320' or '16x128,4x512' or a list of sizes by dim.
    fit: 'pad' pads with zeros, 'letterbox' scales images; 'auto' pads where that is seen not to change the answer, letterboxes images otherwise,
    and refuses the rest. precision: 'int8' and kin, as the target has them.
    Raises NpuliftError for anything that cannot be; what a user should know before is in the report's findings.
    """
    if fit not in FITS:
        raise NpuliftError(_("There is no fit {fit}; there are {fits}.").format(fit=fit, fits=", ".join(FITS)))
    spec = load_model(model)
    chosen = find_target(target)
    folder = Path(out) if out is not None else Path("npulift-out") / f"{spec.name}-{target.replace(':', '-')}"
    options: dict[str, Any] = {}
    if precision:
        options = {"float": precision} if target.startswith("openvino") and precision in ("f32", "f16", "bf16") else {"precision": precision}
    if not buckets:
        return _as_it_is(spec, chosen, options, folder, say)
    spec = with_dims(spec)
    if not dim_names(spec):
        raise NpuliftError(_("{model} has no dim that could vary; name it in ModelSpec.dynamic_dims.").format(model=spec.name))
    missing = chosen.missing()
    if missing:
        raise NpuliftError(missing, exit_code=1)
    verify.reference(replace(spec, metric=None, evaluation=(), calibration=()))
    work = folder.parent / f".{folder.name}.work"
    with Workbench(work) as bench:
        latency = choice = None
        if buckets == "auto":
            observed = _observed(shapes, spec)
            latency, choice = choose_for(spec, chosen, observed, most, bench, options, say)
            boxes = [dict(zip(observed.dims, b, strict=True)) for b in choice.buckets]
        else:
            boxes = parse_buckets(buckets, spec) if isinstance(buckets, str) else buckets
        boxes = sorted(_complete(boxes, spec), key=lambda b: (int(np.prod(list(b.values()))), sorted(b.items())))
        _within(boxes, spec)
        fit, findings = _decide_fit(spec, boxes, fit, say)
        if any(f.severity is Severity.ERROR for f in findings):
            return _refused(spec, target, findings)
        programs = _build(spec, chosen, boxes, options, bench, say)
        costs = _costs(bench, programs, spec, boxes, chosen, say)
        manifest = _manifest(spec, target, options, boxes, programs, costs, fit)
        _save(folder, manifest, programs, bench)
        say(_("checking the bundle from disk"), None)
        rows = _verified(folder, spec, boxes, fit)
    shutil.rmtree(work, ignore_errors=True)
    return _report(spec, target, folder, manifest, rows, findings, latency, choice)


def parse_buckets(text: str, spec: ModelSpec) -> list[Sizes]:
    """'224,320': all dims but the batch at these sizes; '224x320,416x416': dim by dim, in order of appearance (with or without the batch)."""
    names = dim_names(spec)
    inner = tuple(n for n in names if n not in batch_dims(spec)) or names
    boxes = []
    for entry in text.split(","):
        if not re.fullmatch(r"\s*\d+(\s*x\s*\d+)*\s*", entry):
            raise NpuliftError(_("{text} is not a list of sizes; write 224,320,416 or 224x320,416x416 (or auto with --shapes).").format(text=text))
        sizes = [int(s) for s in entry.split("x")]
        if min(sizes) < 1:
            raise NpuliftError(_("Sizes must be at least 1."))
        if len(sizes) == 1:
            boxes.append(dict.fromkeys(inner, sizes[0]))
        elif len(sizes) in (len(inner), len(names)):
            boxes.append(dict(zip(inner if len(sizes) == len(inner) else names, sizes, strict=True)))
        else:
            raise NpuliftError(_("{entry} has {n} sizes; the dims are {names}.").format(entry=entry.strip(), n=len(sizes), names=", ".join(names)))
    unique = {tuple(sorted(b.items())): b for b in boxes}
    return list(unique.values())


def _complete(boxes: list[Sizes], spec: ModelSpec) -> list[Sizes]:
    """Each box with every dim, in order; a dim that is not named takes its bound, or else the example's size; a batch the example's."""
    example: dict[str, int] = {}
    for value, axes in zip(spec.inputs, input_axes(spec), strict=True):
        for axis, name in axes.items():
            high = next(d.high for a in spec.dynamic_dims.values() for d in a.values() if d.name == name)
            bounded = high if high is not None and high < 1024 and name not in batch_dims(spec) else int(value.shape[axis])
            example.setdefault(name, bounded)
    return [{name: box.get(name, example[name]) for name in dim_names(spec)} for box in boxes]


def _within(boxes: list[Sizes], spec: ModelSpec) -> None:
    for axes in spec.dynamic_dims.values():
        for dim in axes.values():
            for box in boxes:
                if box[dim.name] < dim.low or (dim.high is not None and box[dim.name] > dim.high):
                    raise NpuliftError(_("{name}={size} is outside the range {low}..{high} of this dim.").format(
                        name=dim.name, size=box[dim.name], low=dim.low, high=dim.high if dim.high is not None else ""))


def _observed(shapes: Observed | Path | str | None, spec: ModelSpec) -> Observed:
    if shapes is None:
        raise NpuliftError(_("Buckets can be chosen only for shapes that were seen: give --shapes FILE.csv (npulift record writes one)."))
    observed = shapes if isinstance(shapes, Observed) else Observed.read(shapes)
    names = dim_names(spec)
    if set(observed.dims) - set(names):
        raise NpuliftError(_("The shapes are of {columns}; the model's dims are {names}.").format(columns=", ".join(observed.dims), names=", ".join(names)))
    return observed


def choose_for(
    spec: ModelSpec, target: Target, observed: Observed, most: int, bench: Workbench, options: dict[str, Any], say: Say,
) -> tuple[Latency, Choice]:
    """Latency by size on the target, and the best buckets by it."""
    say(_("finding out what each size costs on {target}").format(target=target.name), None)
    latency = None
    if target.reshapes and target.run_kind is Kind.MEASURED and not target.missing():
        full = _complete([dict(zip(observed.dims, observed.largest, strict=True))], spec)
        try:
            built = bench.build(varying(spec, target.name, full, options))
            latency = measured_latency(bench, built, spec, observed, target)
        except (WorkerError, RuntimeError, ValueError, NpuliftError):
            latency = None  # the model cannot keep its dims open: the work decides
    latency = latency or predicted_latency(spec, observed, target)
    return latency, choose(observed, most, latency)


def _decide_fit(spec: ModelSpec, boxes: list[Sizes], fit: str, say: Say) -> tuple[str, list[Finding]]:
    if fit == "letterbox":
        if not is_image(spec):
            raise NpuliftError(_("Only images (4-D inputs whose height and width vary) can be letterboxed."))
        return fit, []
    say(_("looking whether padding changes the answer"), None)
    found = divergence(spec, boxes)
    if found is None:
        return "pad", []
    finding = padding_finding(found)
    if fit == "pad":
        return fit, [replace(finding, severity=Severity.WARNING)]
    if is_image(spec):
        message = _("Padding would change the answer ({relative:.2g} of the largest value), so images are scaled to fit and letterboxed. "
                    "A size that is a bucket gives eager's answer; another size gives the answer for the scaled image.").format(relative=found.relative)
        return "letterbox", [replace(finding, name="letterboxed", code="NPU236", severity=Severity.INFO, message=message, fix="")]
    return fit, [finding]


def _build(spec: ModelSpec, target: Target, boxes: list[Sizes], options: dict[str, Any], bench: Workbench, say: Say) -> list[Built]:
    """A program for each box: the same one, with the size fixed when it is loaded, where the target can do that; else one compilation each."""
    if target.reshapes:
        say(_("compiling once for all sizes"), None)
        try:
            variant = varying(spec, target.name, boxes, options)
            built = bench.build(variant)
            programs = []
            for box in boxes:
                sizes = [list(v.shape) for v in resized(spec, box) if isinstance(v, torch.Tensor)]
                programs.append(replace(built, variant=variant.with_options(sizes=sizes)))
            bench.open(programs[0]).close()
            return programs
        except Exception as error:  # torch.export says in many ways that a dim cannot stay open
            say(_("one program for all sizes is not possible ({error})").format(error=type(error).__name__), None)
    variants = []
    for box in boxes:
        calibration = tuple(resized(replace(spec, inputs=c), box) for c in spec.calibration)
        fixed = replace(spec, inputs=resized(spec, box), dynamic_dims={}, calibration=calibration)
        variants.append(Variant(fixed, target.name, options))
    benches = [Workbench(bench.folder / f"size-{i}") for i in range(len(boxes))]
    try:
        for own, variant in zip(benches, variants, strict=True):
            own.source(variant)  # exported one after another: torch.export is not made for threads

        def one(index: int) -> Built:
            say(_("compiling {box}").format(box=", ".join(f"{k}={v}" for k, v in boxes[index].items())), None)
            return benches[index].build(variants[index])

        with ThreadPoolExecutor(min(len(boxes), os.cpu_count() or 1)) as pool:
            return list(pool.map(one, range(len(boxes))))
    except WorkerError as error:
        raise NpuliftError(_("The compiler of {target} failed: {error}").format(target=target.name, error=str(error).splitlines()[0][:500]), exit_code=1) from error
    finally:
        for own in benches:
            own.close()


def _costs(bench: Workbench, programs: list[Built], spec: ModelSpec, boxes: list[Sizes], target: Target, say: Say) -> list[float | None]:
    """Seconds of each bucket, measured where the target runs here; the vendor's estimate in seconds where it has one; else None."""
    if target.run_kind is not Kind.MEASURED:
        scores = [bench.score(p) for p in programs]
        return [s.value if s is not None and s.unit == "s" else None for s in scores]
    say(_("timing each size"), None)
    timers = {}
    for index, (program, box) in enumerate(zip(programs, boxes, strict=True)):
        timers[str(index)] = bench.open(program).timer(verify.arrays(resized(spec, box)), "latency")
    times = timing.interleaved(timers, 7)
    return [statistics.median(times[str(i)]) for i in range(len(boxes))]


def _manifest(
    spec: ModelSpec, target: str, options: dict[str, Any], boxes: list[Sizes], programs: list[Built], costs: list[float | None], fit: str,
) -> dict[str, Any]:
    with torch.inference_mode():
        result = spec.module(*spec.inputs)
    signature = bundle.signature_of(replace(spec, dynamic_dims={}), result)
    axes_in = [a for v, a in zip(spec.inputs, input_axes(spec), strict=True) if isinstance(v, torch.Tensor)]
    for entry, axes in zip(signature["inputs"], axes_in, strict=True):
        entry["axes"] = {str(a): n for a, n in axes.items()}
    for entry, axes in zip(signature["outputs"], output_axes(spec), strict=True):
        entry["axes"] = {str(a): n for a, n in axes.items()}
    folders = list(dict.fromkeys(p.folder for p in programs))
    entries = []
    for box, program, cost in zip(boxes, programs, costs, strict=True):
        own = {"sizes": program.variant.options["sizes"]} if "sizes" in program.variant.options else {}
        entries.append({"sizes": box, "program": f"program/{folders.index(program.folder)}", "options": own, "cost": cost})
    return {
        "format": bundle.FORMAT, "npulift_version": __version__, "target": target, "options": {k: v for k, v in options.items() if k != "calibration"},
        "signature": signature, "buckets": entries, "dims": list(dim_names(spec)), "batch_dims": sorted(batch_dims(spec)), "fit": fit, "model": spec.name,
    }


def _save(folder: Path, manifest: dict[str, Any], programs: list[Built], bench: Workbench) -> None:
    """Write the bundle; files that are the same in several buckets are stored once (hard links)."""
    with atomic_folder(folder) as new:
        by_digest: dict[str, Path] = {}
        files = {}
        for index, source in enumerate(dict.fromkeys(p.folder for p in programs)):
            for file in sorted(source.rglob("*")):
                if not file.is_file():
                    continue
                place = new / "program" / str(index) / file.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                digest = bundle.digest(file)
                if digest in by_digest:
                    os.link(by_digest[digest], place)
                else:
                    shutil.copyfile(file, place)
                    by_digest[digest] = place
                files[place.relative_to(new).as_posix()] = {"sha256": digest, "bytes": file.stat().st_size}
        manifest["files"] = files
        (new / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _verified(folder: Path, spec: ModelSpec, boxes: list[Sizes], fit: str) -> list[tuple[str, float, float | None]]:
    """(bucket, error at its own size, error one size smaller) against eager, relative to the largest value; None for what is letterboxed."""
    opened = bundle.load(folder)
    rows = []
    for box in boxes:
        label = ", ".join(f"{k}={v}" for k, v in box.items())
        errors: list[float | None] = []
        inner = [n for n in box if n not in batch_dims(spec)] or list(box)
        for smaller in (0, 1):
            sizes = {k: max(1, v - smaller) if k in inner else v for k, v in box.items()}
            if smaller and (fit == "letterbox" or sizes == box):
                errors.append(None)
                continue
            inputs = resized(spec, sizes)
            with torch.inference_mode():
                wanted = [v for v in torch.utils._pytree.tree_leaves(spec.module(*inputs)) if isinstance(v, torch.Tensor)]
            got = opened.run(verify.arrays(inputs))
            errors.append(max(verify.difference(g, w.numpy())[1] for g, w in zip(got, wanted, strict=True)))
        rows.append((label, errors[0] or 0.0, errors[1]))
    return rows


def _as_it_is(spec: ModelSpec, target: Target, options: dict[str, Any], folder: Path, say: Say) -> Report:
    findings = list(unbounded_dim.find(_without_capture(spec), target))
    if any(f.severity is Severity.ERROR for f in findings):
        return _refused(spec, target.name, findings)
    if spec.dynamic_dims and not target.reshapes:
        names = ", ".join(dim_names(spec))
        return _refused(spec, target.name, [Finding(
            "NPU237", "static-shapes-needed", Severity.ERROR,
            _("{target} compiles fixed sizes only, and {names} may vary.").format(target=target.name, names=names),
            fix=_("Compile the sizes that you need: npulift compile --bucket 128,256 (or --bucket auto --shapes FILE)."), details={"dims": names})])
    missing = target.missing()
    if missing:
        raise NpuliftError(missing, exit_code=1)
    wanted = verify.reference(spec)
    work = folder.parent / f".{folder.name}.work"
    with Workbench(work) as bench:
        say(_("compiling for {target}").format(target=target.name), None)
        try:
            built = bench.build(Variant(spec, target.name, options))
            check = verify.compare(bench.open(built).run, spec, wanted, edges=False)
        except WorkerError as error:
            raise NpuliftError(_("The compiler of {target} failed: {error}").format(target=target.name, error=str(error).splitlines()[0][:500]), exit_code=1) from error
        except torch._dynamo.exc.TorchDynamoException as error:
            raise NpuliftError(_("torch.export cannot take {model}: {reason}").format(model=spec.name, reason=str(error).splitlines()[0]), exit_code=1) from error
        bundle.save(folder, built.folder, target=target.name, options=options, signature=bundle.signature_of(spec, wanted.result), more={"model": spec.name})
    shutil.rmtree(work, ignore_errors=True)
    facts = Facts("", ((_("bundle"), str(folder)), (_("size"), f"{built.bytes / 1e6:.1f} MB"), (_("largest error"), f"{check.relative:.2g}")))
    return Report("compile", _("{model} compiled for {target}").format(model=spec.name, target=target.name), {"model": spec.origin or spec.name}, target.name,
                  data={"bundle": str(folder), "size_bytes": built.bytes, "max_abs_error": check.error, "relative_error": check.relative, "facts": built.facts},
                  sections=(facts,))


def _without_capture(spec: ModelSpec) -> Any:
    from npulift.capture import Capture

    return Capture(spec, None, "", (), (), "", ())


def _refused(spec: ModelSpec, target: str, findings: list[Finding]) -> Report:
    return Report("compile", _("{model} was not compiled for {target}").format(model=spec.name, target=target), {"model": spec.origin or spec.name}, target,
                  ok=False, findings=tuple(findings), data={"bundle": None})


def _report(
    spec: ModelSpec, target: str, folder: Path, manifest: dict[str, Any], rows: list[tuple[str, float, float | None]], findings: list[Finding],
    latency: Latency | None, choice: Choice | None,
) -> Report:
    size = sum({e["sha256"]: e["bytes"] for e in manifest["files"].values()}.values())
    table = Table(_("Buckets"), (_("sizes"), _("ms"), _("error at this size"), _("error padded")), tuple(
        (label, f"{e['cost'] * 1e3:.3f}" if e["cost"] else "-", f"{at:.1e}", f"{below:.1e}" if below is not None else "-")
        for (label, at, below), e in zip(rows, manifest["buckets"], strict=True)), _("Errors are of the largest value, against eager, from the bundle on disk."))
    facts = [(_("bundle"), str(folder)), (_("size"), f"{size / 1e6:.1f} MB"), (_("sizes that do not fit exactly are"), manifest["fit"])]
    if choice is not None and latency is not None:
        gap = _("proved best") if choice.gap == 0 else _("at most {gap:.1%} above the best").format(gap=choice.gap)
        facts.append((_("expected cost"), _("{ms:.3f} ms ({kind}), {gap}").format(ms=choice.expected * 1e3, kind=latency.kind, gap=gap)))
    sections: tuple[Section, ...] = (Facts("", tuple(facts)), table)
    data = {
        "bundle": str(folder), "size_bytes": size, "buckets": manifest["buckets"], "fit": manifest["fit"],
        "errors": [{"bucket": label, "exact": at, "padded": below} for label, at, below in rows],
        "choice": {"expected_s": choice.expected, "gap": choice.gap, "method": choice.method, "kind": latency.kind.value} if choice and latency else None,
    }
    return Report("compile", _("{model} compiled for {target} in {n} sizes").format(model=spec.name, target=target, n=len(rows)),
                  {"model": spec.origin or spec.name}, target, findings=tuple(findings), data=data, sections=sections)
