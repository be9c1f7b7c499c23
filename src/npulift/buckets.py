"""BucketBundle: one bundle with several fixed sizes; the one that fits is chosen at run time, inputs are padded, outputs cut back."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

import numpy as np

from npulift.bundle import as_array, assemble
from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.shapes.padding import Axes, Sizes, cut, pad
from npulift.targets.base import Program, Target

if TYPE_CHECKING:
    import torch

Arrays = tuple[np.ndarray[Any, Any], ...]
POLICIES = ("by-latency", "next-larger", "nearest")


@dataclass
class Statistics:
    """calls: how often each bucket ran. used, run: elements that were asked for and that were computed, over all dims that vary."""

    calls: dict[str, int]
    used: int = 0
    run: int = 0

    @property
    def waste(self) -> float:
        """Share of what was computed that was padding, 0 to 1."""
        return 1.0 - self.used / self.run if self.run else 0.0


class BucketBundle:
    """Call it with tensors or arrays of any size that fits a bucket. Safe to call from several threads.

    policy: 'by-latency' takes the bucket with the least latency (as estimated when it was compiled) that holds the input, 'next-larger' the
    one with the fewest elements; 'nearest' (letterboxed images only) the one nearest in size, scaling down where that is nearer.
    max_loaded: how many buckets stay loaded; the least recently used one goes. None keeps all.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], target: Target, *, policy: str = "by-latency", max_loaded: int | None = None) -> None:
        if policy not in POLICIES:
            raise NpuliftError(_("There is no policy {policy}; there are {policies}.").format(policy=policy, policies=", ".join(POLICIES)))
        self.path, self.manifest = path, manifest
        self._target, self._policy, self._max_loaded = target, policy, max_loaded
        signature = manifest["signature"]
        self._inputs: list[dict[str, Any]] = signature["inputs"]
        self._axes_in: list[Axes] = [{int(a): n for a, n in i["axes"].items()} for i in self._inputs]
        self._axes_out: list[Axes] = [{int(a): n for a, n in o["axes"].items()} for o in signature["outputs"]]
        self._dims: tuple[str, ...] = tuple(manifest["dims"])
        self._batch: frozenset[str] = frozenset(manifest["batch_dims"])
        self._fit = manifest["fit"]
        self._buckets: list[Sizes] = [b["sizes"] for b in manifest["buckets"]]
        self._costs: list[float] = [float(b.get("cost") or np.prod(list(b["sizes"].values()))) for b in manifest["buckets"]]
        self._places = [(i, axis, name) for i, axes in enumerate(self._axes_in) for axis, name in axes.items()]
        self._dtypes = [np.dtype(i["dtype"]) for i in self._inputs]
        self._fixed = [[(axis, size) for axis, size in enumerate(i["shape"]) if axis not in a] for i, a in zip(self._inputs, self._axes_in, strict=True)]
        self._chosen: dict[tuple[int, ...], int] = {}
        self._loaded: OrderedDict[int, tuple[Program, threading.Lock]] = OrderedDict()
        self._loading = threading.RLock()
        self.statistics = Statistics({self.name(i): 0 for i in range(len(self._buckets))})
        self._queue: Queue[_Request | None] | None = None
        self._server: threading.Thread | None = None

    @property
    def target(self) -> str:
        """Target that it was compiled for."""
        return str(self.manifest["target"])

    @property
    def buckets(self) -> list[Sizes]:
        """Sizes of each bucket."""
        return [dict(b) for b in self._buckets]

    def name(self, index: int) -> str:
        """A bucket's name, e.g. 'length=32'."""
        return ",".join(f"{k}={v}" for k, v in self._buckets[index].items())

    def __call__(self, *inputs: torch.Tensor | np.ndarray[Any, Any]) -> Any:
        """Run once. Raises NpuliftError when the inputs do not match or fit no bucket."""
        return assemble(self.run(tuple(as_array(i) for i in inputs if not isinstance(i, bool | int | float | str | type(None)))),
                        self.manifest["signature"]["structure"])

    def run(self, inputs: Arrays) -> Arrays:
        """Flat outputs for flat arrays, with the sizes that the unpadded model would give."""
        sizes = self._sizes(inputs)
        index = self._choose(sizes)
        if index < 0:
            return self._run_in_parts(inputs, sizes)
        bucket = self._buckets[index]
        if self._fit == "letterbox":
            inputs = tuple(_letterbox(v, a, bucket) for v, a in zip(inputs, self._axes_in, strict=True))
        elif tuple(bucket[d] for d in self._dims) != sizes:
            inputs = tuple(pad(v, a, bucket) for v, a in zip(inputs, self._axes_in, strict=True))
        outputs = self._execute(index, inputs)
        named = dict(zip(self._dims, sizes, strict=True))
        self._count(index, sizes)
        if self._fit == "letterbox":
            return tuple(_unletterbox(v, a, named, bucket) for v, a in zip(outputs, self._axes_out, strict=True))
        return tuple(cut(v, a, named) for v, a in zip(outputs, self._axes_out, strict=True))

    def _sizes(self, inputs: Arrays) -> tuple[int, ...]:
        if len(inputs) != len(self._inputs):
            raise NpuliftError(_("This bundle takes {n} inputs, not {m}.").format(n=len(self._inputs), m=len(inputs)))
        for value, dtype, entry, fixed in zip(inputs, self._dtypes, self._inputs, self._fixed, strict=True):
            if value.dtype != dtype:
                raise NpuliftError(_("Input {name} is {got}; the bundle was compiled for {wanted}.").format(name=entry["name"], got=value.dtype, wanted=dtype))
            if value.ndim != len(entry["shape"]) or any(value.shape[axis] != size for axis, size in fixed):
                raise NpuliftError(_("Input {name} has the shape {got}; the bundle was compiled for {wanted}.").format(
                    name=entry["name"], got=list(value.shape), wanted=entry["shape"]))
        sizes: dict[str, int] = {}
        for i, axis, name in self._places:
            size = inputs[i].shape[axis]
            if sizes.setdefault(name, size) != size:
                raise NpuliftError(_("The inputs do not agree on {name}: {a} and {b}.").format(name=name, a=sizes[name], b=size))
        return tuple(sizes[d] for d in self._dims)

    def _choose(self, sizes: tuple[int, ...]) -> int:
        """Number of the bucket; -1 when only the batch is too large, so that it is run in parts."""
        found = self._chosen.get(sizes)
        if found is not None:
            return found
        fitting = [i for i, b in enumerate(self._buckets) if all(b[d] >= s for d, s in zip(self._dims, sizes, strict=True))]
        exact = next((i for i in fitting if all(self._buckets[i][d] == s for d, s in zip(self._dims, sizes, strict=True))), None)
        if exact is not None:
            index = exact
        elif self._fit == "letterbox" and (self._policy == "nearest" or not fitting):
            index = min(range(len(self._buckets)), key=lambda i: sum(abs(np.log(self._buckets[i][d] / s)) for d, s in zip(self._dims, sizes, strict=True)))
        elif fitting:
            cost = self._costs if self._policy == "by-latency" else [float(np.prod(list(b.values()))) for b in self._buckets]
            index = min(fitting, key=lambda i: cost[i])
        elif self._batch and any(all(b[d] >= s for d, s in zip(self._dims, sizes, strict=True) if d not in self._batch) for b in self._buckets):
            index = -1
        else:
            raise NpuliftError(_("No bucket holds {sizes}; there are {buckets}. The nearest is {nearest}.").format(
                sizes=", ".join(f"{d}={s}" for d, s in zip(self._dims, sizes, strict=True)), buckets="; ".join(self.name(i) for i in range(len(self._buckets))),
                nearest=self.name(min(range(len(self._buckets)), key=lambda i: sum(max(0, s - self._buckets[i][d]) for d, s in zip(self._dims, sizes, strict=True))))))
        if len(self._chosen) < 100_000:
            self._chosen[sizes] = index
        return index

    def _run_in_parts(self, inputs: Arrays, sizes: tuple[int, ...]) -> Arrays:
        """A batch larger than every bucket: in parts of the largest batch that holds the other sizes."""
        (batch,) = self._batch
        others = [(d, s) for d, s in zip(self._dims, sizes, strict=True) if d != batch]
        step = max(b[batch] for b in self._buckets if all(b[d] >= s for d, s in others))
        total = dict(zip(self._dims, sizes, strict=True))[batch]
        parts = []
        for start in range(0, total, step):
            piece = tuple(v[start : start + step] if batch in a.values() else v for v, a in zip(inputs, self._axes_in, strict=True))
            parts.append(self.run(piece))
        return tuple(np.concatenate(p) if batch in a.values() else p[0] for p, a in zip(zip(*parts, strict=True), self._axes_out, strict=True))

    def _execute(self, index: int, inputs: Arrays) -> Arrays:
        program, lock = self._program(index)
        with lock:
            return program(*inputs)

    def _program(self, index: int) -> tuple[Program, threading.Lock]:
        found = self._loaded.get(index)
        if found is not None and self._max_loaded is None:
            return found
        with self._loading:
            if index in self._loaded:
                self._loaded.move_to_end(index)
                return self._loaded[index]
            entry = self.manifest["buckets"][index]
            shared = next((i for i in self._loaded if self.manifest["buckets"][i] is not entry and self._same_program(i, index)), None)
            if shared is not None:
                self._loaded[index] = self._loaded[shared]
            else:
                while self._max_loaded is not None and len(self._loaded) >= max(1, self._max_loaded):
                    self._loaded.popitem(last=False)
                program = self._target.load(self.path / entry["program"], {**self.manifest["options"], **entry.get("options", {})})
                self._loaded[index] = program, threading.Lock()
            return self._loaded[index]

    def _same_program(self, a: int, b: int) -> bool:
        x, y = self.manifest["buckets"][a], self.manifest["buckets"][b]
        return bool(x["program"] == y["program"] and x.get("options") == y.get("options"))

    @property
    def loaded(self) -> int:
        """Buckets that are loaded now."""
        return len(self._loaded)

    def _count(self, index: int, sizes: Sequence[int]) -> None:
        used = run = 1
        for size, most in zip(sizes, self._buckets[index].values(), strict=True):
            used, run = used * size, run * most
        self.statistics.calls[self.name(index)] += 1
        self.statistics.used += used
        self.statistics.run += run

    # --- requests in a queue ------------------------------------------------------------------------------------------------

    def submit(self, *inputs: torch.Tensor | np.ndarray[Any, Any], deadline: float = 0.005) -> Future[Any]:
        """Queue a request; requests of one bucket are run together, at the latest `deadline` seconds after the first came (s).

        Needs one dim that is the batch. The result of the Future is what a call would return.
        """
        if len(self._batch) != 1 or not all(self._batch & set(axes.values()) for axes in self._axes_in):
            raise NpuliftError(_("Requests can be batched only when the first axis of every input is a dim that varies."))
        arrays = tuple(as_array(i) for i in inputs)
        sizes = self._sizes(arrays)
        self._choose(sizes)
        future: Future[Any] = Future()
        with self._loading:
            if self._queue is None:
                self._queue = Queue(maxsize=100_000)
                self._server = threading.Thread(target=self._serve, args=(self._queue,), daemon=True, name="npulift-batching")
                self._server.start()
        self._queue.put(_Request(arrays, dict(zip(self._dims, sizes, strict=True)), future, time.monotonic() + deadline))
        return future

    def close(self) -> None:
        """Finish queued requests and end the batching thread."""
        if self._queue is not None and self._server is not None:
            self._queue.put(None)
            self._server.join()
            self._queue = self._server = None

    def _serve(self, queue: Queue[_Request | None]) -> None:
        (batch,) = self._batch
        most = max(b[batch] for b in self._buckets)
        waiting: list[_Request] = []
        ending = False
        while not ending or waiting:
            timeout = max(0.0, min(r.due for r in waiting) - time.monotonic()) if waiting else None
            try:
                request = None if ending else queue.get(timeout=timeout)
                if request is None:
                    ending = True
                else:
                    waiting.append(request)
            except Empty:
                pass
            while not ending and sum(r.sizes[batch] for r in waiting) < most * 2:
                try:
                    following = queue.get_nowait()
                except Empty:
                    break
                if following is None:
                    ending = True
                else:
                    waiting.append(following)
            now = time.monotonic()
            if waiting and (ending or min(r.due for r in waiting) <= now or sum(r.sizes[batch] for r in waiting) >= most):
                group = self._group(waiting, batch, most)
                waiting = [r for r in waiting if r not in group]
                self._run_group(group, batch)

    def _group(self, waiting: list[_Request], batch: str, most: int) -> list[_Request]:
        """The first request due and others that fit the same bucket without making it larger, up to the largest batch."""
        first = min(waiting, key=lambda r: r.due)
        home = self._choose(tuple(first.sizes[d] for d in self._dims))
        limits = self._buckets[home] if home >= 0 else {d: first.sizes[d] for d in self._dims}
        group, total = [first], first.sizes[batch]
        for request in sorted((r for r in waiting if r is not first), key=lambda r: r.due):
            fits = all(request.sizes[d] <= limits[d] for d in self._dims if d != batch)
            if fits and total + request.sizes[batch] <= most:
                group.append(request)
                total += request.sizes[batch]
        return group

    def _run_group(self, group: list[_Request], batch: str) -> None:
        group = [r for r in group if r.future.set_running_or_notify_cancel()]  # a cancelled request must not disturb the others
        if not group:
            return
        try:
            sizes = {d: max(r.sizes[d] for r in group) for d in self._dims if d != batch}
            joined = []
            for i, axes in enumerate(self._axes_in):
                inner = {a: n for a, n in axes.items() if n != batch}
                joined.append(np.concatenate([pad(r.arrays[i], inner, sizes) for r in group]) if batch in axes.values() else group[0].arrays[i])
            outputs = self.run(tuple(joined))
            start = 0
            for request in group:
                end = start + request.sizes[batch]
                mine = tuple(cut(o[start:end] if batch in a.values() else o, {x: n for x, n in a.items() if n != batch}, request.sizes)
                             for o, a in zip(outputs, self._axes_out, strict=True))
                start = end
                request.future.set_result(assemble(mine, self.manifest["signature"]["structure"]))
        except Exception as error:  # every caller of the group gets it
            for request in group:
                if not request.future.done():
                    request.future.set_exception(error)


@dataclass(eq=False)
class _Request:
    arrays: Arrays
    sizes: Sizes
    future: Future[Any]
    due: float


def _letterbox(value: np.ndarray[Any, Any], axes: Axes, bucket: Sizes) -> np.ndarray[Any, Any]:
    """An image (N, C, H, W) scaled to fit, its proportions kept, zeros to the right and below."""
    height, width = (bucket[axes[a]] if a in axes else value.shape[a] for a in (2, 3))
    if value.shape[2:] == (height, width):
        return value
    import torch

    scale = min(height / value.shape[2], width / value.shape[3])
    size = tuple(max(1, min(limit, round(n * scale))) for n, limit in zip(value.shape[2:], (height, width), strict=True))
    scaled = torch.nn.functional.interpolate(torch.from_numpy(np.ascontiguousarray(value)), size=size, mode="bilinear", antialias=scale < 1, align_corners=False)
    boxed = np.zeros((*value.shape[:2], height, width), dtype=value.dtype)
    boxed[:, :, : size[0], : size[1]] = scaled.numpy()
    return boxed


def _unletterbox(value: np.ndarray[Any, Any], axes: Axes, sizes: Sizes, bucket: Sizes) -> np.ndarray[Any, Any]:
    """A map (N, C, H, W) cut to the image's part and scaled back to its size; other outputs as they are."""
    if set(axes) != {2, 3} or value.ndim != 4:
        return value
    import torch

    height, width = sizes[axes[2]], sizes[axes[3]]
    scale = min(bucket[axes[2]] / height, bucket[axes[3]] / width)
    part = value[:, :, : max(1, round(height * scale)), : max(1, round(width * scale))]
    if part.shape[2:] == (height, width):
        return part
    return torch.nn.functional.interpolate(torch.from_numpy(np.ascontiguousarray(part)), size=(height, width), mode="bilinear", align_corners=False).numpy()
