"""Several cards in one process: this process is rank 0 of N, and stands for the others as well (hollow/collectives.c carries collectives out)."""

from __future__ import annotations

import os
import sys
from typing import Any


def install(world: int, notes: list[str], *, fake: bool) -> None:
    """Make torch.distributed believe in `world` ranks. Variables that launchers set are set as for rank 0."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", str(world)), ("LOCAL_WORLD_SIZE", str(world)), ("GROUP_RANK", "0"),
                        ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500"), ("TORCHELASTIC_RUN_ID", "npulift")):
        os.environ[name] = value
    start = c10d.init_process_group

    def init_process_group(backend: Any = None, init_method: Any = None, timeout: Any = None, world_size: int = -1, rank: int = -1,
                           store: Any = None, group_name: str = "", **more: Any) -> None:
        backend = "hccl" if backend in (None, "nccl", "npu:hccl,cpu:gloo", "cpu:gloo,npu:hccl") else backend
        if backend == "gloo":
            backend = "hccl"
            notes.append("gloo-as-hccl")
        if timeout is not None:
            more["timeout"] = timeout
        start(backend=backend, store=dist.HashStore(), rank=0, world_size=world, group_name=group_name, **more)

    for module in (c10d, dist):
        module.init_process_group = init_process_group  # type: ignore[attr-defined]

    def same_everywhere(objects: list[Any], value: Any, group: Any = None) -> None:
        for i in range(len(objects)):
            objects[i] = value

    def scatter_object_list(out: list[Any], objects: list[Any] | None = None, src: Any = None, group: Any = None, **_more: Any) -> None:
        out[0] = objects[0] if objects else None

    def nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    replaced = {
        "all_gather_object": same_everywhere,
        "gather_object": lambda value, objects=None, *_a, **_k: same_everywhere(objects or [], value),
        "broadcast_object_list": nothing,
        "scatter_object_list": scatter_object_list,
        "monitored_barrier": nothing,
    }
    for name, function in replaced.items():
        setattr(c10d, name, function)
        setattr(dist, name, function)
    if fake:
        import torch.distributed.utils
        from torch.nn.parallel import distributed as ddp

        # the shapes are compared across ranks by value, and hollow memory holds none; one process cannot disagree with itself
        torch.distributed.utils._verify_param_shape_across_processes = nothing
        ddp._verify_param_shape_across_processes = nothing


def one_process(notes: list[str]) -> None:
    """torch.multiprocessing.spawn and launch of N workers become one call for rank 0 here."""
    import importlib

    import torch.multiprocessing as mp

    module = importlib.import_module("torch.multiprocessing.spawn")

    def spawn(fn: Any, args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, daemon: bool = False, start_method: str = "spawn") -> Any:
        notes.append(f"spawn-{nprocs}")
        if nprocs > 1 and os.environ.get("WORLD_SIZE", "1") == "1":
            install(nprocs, notes, fake=os.environ.get("NPULIFT_HOLLOW_MODE") == "fake")
        print(f"npulift: spawn of {nprocs} processes: rank 0 runs here and stands for all", file=sys.stderr)
        fn(0, *args)

    for place in (mp, module):
        place.spawn = spawn  # type: ignore[attr-defined]
