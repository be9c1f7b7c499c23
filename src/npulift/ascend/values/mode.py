"""RealValues: every operator on `npu` runs on torch_npu as it would, and its values are computed on the CPU.

A TorchDispatchMode, so it stands below autograd and autocast. For each operator: its values are computed from host tensors over the same memory (by the
CPU's kernel, or by a reference from families/), then torch_npu runs it (dispatch, allocation, launches, its own CPU fallback), then the values are
written where torch_npu put the results. Views, strides, in-place and out= variants come out right because the memory is shared.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from npulift.ascend.values import arithmetic, memory
from npulift.ascend.values.registry import reference
from npulift.errors import NpuliftError
from npulift.messages import _

# Nothing is computed by these: they make memory, or tell something about a tensor.
_NATIVE = frozenset((
    "aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided", "aten::resize_", "aten::set_",
    "aten::record_stream", "aten::is_pinned", "aten::_pin_memory", "aten::pin_memory", "npu::empty_with_format",
    "npu::unsafe_empty_with_format", "npu::get_npu_format", "npu::get_storage_size", "npu::npu_change_data_ptr", "npu::_npu_silent_check",
    "npu::_npu_silent_check_v2", "npu::_npu_silent_check_v3", "aten::_has_compatible_shallow_copy_type", "aten::_nnpack_available",
    "aten::is_same_size", "prim::device",
))
_PLAIN = {torch.Tensor, torch.nn.Parameter, torch.nn.parameter.Buffer}


class RealValues(TorchDispatchMode):
    """The mode. Enter it once, after `import torch_npu`, in a process on hollow CANN in mode 'real'.

    soc: name of the chip, for its arithmetic; by default that of the running device.
    Raises NpuliftError from an operator that the CPU has no kernel for and that has no reference.
    """

    def __init__(self, soc: str | None = None) -> None:
        super().__init__()
        self._soc = soc
        self._saturates: bool | None = None
        self._drawn: tuple[int, int] | None = None  # where the generator stood at the last draw
        self._generator: torch.Generator | None = None
        self._stays = False  # torch_npu left it there
        self._repeats = 0

    def __enter__(self) -> RealValues:
        torch.set_flush_denormal(True)
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        torch.set_flush_denormal(False)
        super().__exit__(*exc)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(t not in _PLAIN for t in types):
            return NotImplemented
        leaves, _spec = tree_flatten((args, kwargs))
        if not any(_on_npu(x) for x in leaves):
            return func(*args, **kwargs)
        name = func._schema.name
        if name in _NATIVE or _is_view(func):
            return func(*args, **kwargs)
        if name.startswith(("c10d::", "_c10d_functional::")):
            return _collective(func, name, args, kwargs)
        return self._fill(func, name, args, kwargs)

    def _fill(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        mutated, copies = _written(func, args, kwargs)
        with _unseen():
            flat_args, flat_kwargs = tree_map(lambda x: _host(x, copies), (args, kwargs))
            values = self._values(func, name, flat_args, flat_kwargs, args, kwargs)
        try:
            native = func(*args, **kwargs)
        except Exception:
            if torch.Tag.dynamic_output_shape not in func.tags:  # sizes that a hollow kernel left undefined may end in an error
                raise
            native = None
        with _unseen():
            _drain()
            if self._drawn is not None:
                self._stays = _position(self._generator) == self._drawn
            if self._saturates is None:
                self._saturates = arithmetic.saturates(self._soc if self._soc is not None else _soc_name())
            if self._saturates and arithmetic.computes(name):
                for x in (*tree_flatten(values)[0], *copies.values()):
                    if isinstance(x, torch.Tensor):
                        arithmetic.saturate(x)
            for key, tensor in mutated.items():
                _write(tensor, copies[key])
            return _results(func, native, values, set(mutated))

    def _values(self, func: Any, name: str, args: Any, kwargs: Any, given: Any, given_kwargs: Any) -> Any:
        ours = reference(func.name())
        compute = _taking_out(ours, func) if ours is not None else func
        generators = [x for x in tree_flatten((given, given_kwargs))[0] if isinstance(x, torch.Generator)]
        random = bool(generators) or torch.Tag.nondeterministic_seeded in func.tags or name in _DRAWS
        with self._random(generators[0] if generators else None) if random else contextlib.nullcontext():
            try:
                return compute(*args, **kwargs)
            except TypeError as error:
                if ours is None:
                    raise
                raise NpuliftError(_("Real mode has no values for this form of {operator} ({error}).").format(operator=func.name(), error=error),
                                   exit_code=1) from error
            except (NotImplementedError, RuntimeError) as error:
                text = str(error)
                if "not implemented for" in text and _low(args, kwargs):
                    return _in_float32(compute, args, kwargs)
                if "not implemented for" in text and ours is None and not func._schema.is_mutable:
                    return _in_float64(compute, args, kwargs)
                if isinstance(error, NotImplementedError) and "Could not run" in text:
                    raise NpuliftError(
                        _("Real mode has no values for {operator}: the CPU has no kernel for it, and npulift no reference. Run with --mode fake, which needs "
                          "none; the operators that have one are listed in docs/ascend_operators.md.").format(operator=func.name()), exit_code=1) from error
                if isinstance(error, NotImplementedError) and ours is not None:
                    raise NpuliftError(_("Real mode has no values for this use of an operator: {use}.").format(use=error), exit_code=1) from error
                raise

    @contextlib.contextmanager
    def _random(self, generator: torch.Generator | None) -> Any:
        """The CPU's default generator stands in for that of the device, started from the device generator's seed and offset.

        So numbers repeat when the user sets a seed or a saved state again. torch_npu moves the offset at each draw; where it does not, we count.
        """
        device = generator if generator is not None else _default_generator()
        key = _position(device)
        self._repeats = self._repeats + 1 if key == self._drawn and self._stays else 0
        self._drawn, self._generator = key, device
        before = torch.random.get_rng_state()
        torch.random.manual_seed(hash((*key, self._repeats)) & 0x7FFF_FFFF_FFFF_FFFF)
        try:
            yield
        finally:
            torch.random.set_rng_state(before)


_DRAWS = frozenset((
    "npu::_npu_dropout", "npu::npu_fusion_attention", "npu::npu_fusion_attention_v2", "npu::npu_fusion_attention_v3",
    "npu::_npu_dropout_gen_mask", "npu::npu_dropout_gen_mask", "npu::npu_dropout_with_add_softmax", "npu::_dropout_with_byte_mask",
    "npu::npu_multi_head_attention", "npu::npu_sim_exponential_",
))


def _on_npu(x: Any) -> bool:
    if isinstance(x, torch.Tensor):
        return x.device.type == "npu"
    return isinstance(x, torch.device) and x.type == "npu"


def _is_view(func: Any) -> bool:
    """Views move nothing: some return aliases an argument that is not written."""
    if getattr(func, "is_view", False):
        return True
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns) and not func._schema.is_mutable


def _written(func: Any, args: Any, kwargs: Any) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """Tensors that the operator writes, and host copies to compute on, both by identity."""
    mutated: dict[int, torch.Tensor] = {}
    copies: dict[int, torch.Tensor] = {}
    if not func._schema.is_mutable:
        return mutated, copies
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) and not argument.kwarg_only else kwargs.get(argument.name)
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(tensor, torch.Tensor) and id(tensor) not in mutated:
                mutated[id(tensor)] = tensor
                with _unseen():
                    copies[id(tensor)] = (memory.over(tensor) if tensor.device.type == "npu" else tensor).clone()
    return mutated, copies


def _host(x: Any, copies: dict[int, torch.Tensor]) -> Any:
    if isinstance(x, torch.Tensor):
        if id(x) in copies:
            return copies[id(x)]
        return memory.over(x) if x.device.type == "npu" else x
    if isinstance(x, torch.device) and x.type == "npu":
        return torch.device("cpu")
    if isinstance(x, torch.Generator):
        return None
    return x


def _collective(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Collectives are carried out by hollow CANN on the memory itself; only what torch_npu copies by a kernel afterwards is left to do."""
    made = func(*args, **kwargs)
    with _unseen():
        _drain()
        if name == "c10d::allgather_":  # rank 0 stands for all, so each gets its part
            for outputs, part in zip(args[0], args[1], strict=True):
                for output in outputs:
                    _write(output, memory.over(part))
    return made


def _write(tensor: torch.Tensor, values: torch.Tensor) -> None:
    target = memory.over(tensor) if tensor.device.type == "npu" else tensor
    if target.shape != values.shape:
        tensor.resize_(values.shape)
        target = memory.over(tensor) if tensor.device.type == "npu" else tensor
    target.copy_(values)


def _results(func: Any, native: Any, values: Any, mutated: set[int]) -> Any:
    """What torch_npu returned, filled; a new tensor where its size depended on values."""
    if isinstance(native, (list, tuple)) and isinstance(values, (list, tuple)) and len(native) == len(values):
        made = [_results(func, n, v, mutated) for n, v in zip(native, values, strict=True)]
        return type(native)(made) if not hasattr(native, "_fields") else type(native)(*made)
    if isinstance(values, (list, tuple)):
        return type(values)(_results(func, None, v, mutated) for v in values)
    if not isinstance(values, torch.Tensor):
        return native if values is None else values
    if isinstance(native, torch.Tensor) and id(native) in mutated:
        return native
    if isinstance(native, torch.Tensor) and native.numel() == values.numel() and torch.Tag.dynamic_output_shape not in func.tags:
        values = values.reshape(native.shape)  # torch_npu's own shape, e.g. with a leading 1
    if not isinstance(native, torch.Tensor) or native.shape != values.shape:
        if isinstance(native, torch.Tensor) and native.device.type != "npu":
            return values
        made_here = torch.empty(values.shape, dtype=values.dtype, device="npu")
        memory.over(made_here).copy_(values)
        return made_here
    target = memory.over(native) if native.device.type == "npu" else native
    target.copy_(values)
    return native


def _taking_out(function: Callable[..., Any], func: Any) -> Callable[..., Any]:
    """A reference of the plain operator, for its variant that writes to out= tensors."""
    names = [a.name for a in func._schema.arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write]
    if not names or set(names) <= set(inspect.signature(function).parameters):
        return function

    def write_out(*args: Any, **kwargs: Any) -> Any:
        targets = [kwargs.pop(name) for name in names if name in kwargs]
        found = function(*args, **kwargs)
        for target, values in zip(targets, found if isinstance(found, (tuple, list)) else [found], strict=False):
            if values is not None:
                target.resize_(values.shape).copy_(values)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return write_out


def _low(args: Any, kwargs: Any) -> bool:
    return any(isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16) for x in tree_flatten((args, kwargs))[0])


def _in_float32(compute: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The CPU lacks this kernel in half precision: compute in float32 and round."""
    low = next(x.dtype for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16))
    wide: list[tuple[torch.Tensor, torch.Tensor]] = []

    def widen(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16):
            wide.append((x, x.float()))
            return wide[-1][1]
        return x

    args, kwargs = tree_map(widen, (args, kwargs))
    found = compute(*args, **kwargs)
    for narrow, x in wide:
        if not torch.equal(narrow.float(), x):
            narrow.copy_(x)
    return tree_map(lambda x: x.to(low) if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x, found)


def _in_float64(compute: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The CPU lacks this kernel for integers (histc): they are exact in float64 up to 2**53."""
    whole = next((x.dtype for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor) and not x.is_floating_point()), None)
    found = compute(*tree_map(lambda x: x.double() if isinstance(x, torch.Tensor) and not x.is_floating_point() else x, args), **kwargs)
    return tree_map(lambda x: x.to(whole) if isinstance(x, torch.Tensor) and x.dtype == torch.float64 and whole is not None else x, found)


def _npu() -> Any:
    return torch.npu  # type: ignore[attr-defined]  # torch_npu puts it there


def _soc_name() -> str:
    return os.environ.get("NPULIFT_HOLLOW_SOC") or str(_npu().get_device_name(0))


def _position(generator: torch.Generator | None) -> tuple[int, int]:
    """(seed, offset) of a device generator; its state ends with the two."""
    if generator is None:
        return torch.initial_seed(), 0
    words = generator.get_state().view(torch.int64)
    return int(words[-2]), int(words[-1])


def _default_generator() -> torch.Generator | None:
    try:
        found: torch.Generator = _npu().default_generators[_npu().current_device()]
    except (AttributeError, IndexError, RuntimeError):
        return None
    return found


def _unseen() -> Any:
    """Our own work on the host is not part of the trace."""
    from npulift.ascend import observing

    return observing.paused() if observing._libraries else contextlib.nullcontext()


def _drain() -> None:
    """Wait for what torch_npu has queued, since copies in its queue really happen."""
    _npu().synchronize()
