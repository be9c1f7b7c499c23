"""MODEL strings: `file.py:factory`, `package.module:factory`, a saved `.pt2`. No pickle is ever loaded."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from npulift.errors import NpuliftError
from npulift.messages import _
from npulift.model import Dim, ModelSpec

_PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"}


def load_model(model: str | ModelSpec | tuple[Any, Any]) -> ModelSpec:
    """The ModelSpec that a MODEL string (or a ModelSpec, or a pair of module and inputs) stands for.

    Raises NpuliftError with the next step for everything that can be wrong with it.
    """
    if isinstance(model, ModelSpec):
        return replace(model, name=model.name or type(model.module).__name__)
    if isinstance(model, tuple):
        return _spec_of(model, "", _("The pair given"))
    path, separator, attribute = _split(model)
    if path.endswith(".pt2"):
        return _load_pt2(Path(path), model)
    if Path(path).suffix in _PICKLES:
        raise NpuliftError(
            _("{path} is a pickle, and npulift loads none (it could run any code). Save the model with torch.export.save as .pt2, "
              "or write a factory that builds the module and loads the weights with weights_only=True.").format(path=path)
        )
    module = _import(path, model)
    return _spec_of(_call(module, attribute, model), model, model)


def load_script_module(path: Path) -> ModuleType:
    """Import a Python file by its path, with its folder on sys.path (as `python file.py` would). Raises what the file raises."""
    name = f"_npulift_model_{path.stem}"
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _split(model: str) -> tuple[str, str, str]:
    if not model.strip():
        raise NpuliftError(_("MODEL is empty; expected file.py:factory, package.module:factory or a .pt2 file."))
    path, separator, attribute = model.rpartition(":")
    if not separator or (len(path) == 1 and path.isalpha()) or "/" in attribute or "\\" in attribute:  # 'C:\...' has no factory
        path, attribute = model, ""
    return path, separator, attribute


def _import(path: str, model: str) -> ModuleType:
    file = Path(path)
    looks_like_file = path.endswith(".py") or "/" in path or "\\" in path
    try:
        if looks_like_file:
            if file.is_dir() or not file.exists():
                raise NpuliftError(_("There is no file {path}. MODEL is file.py:factory, package.module:factory or a .pt2 file.").format(path=path))
            if file.suffix != ".py":
                raise NpuliftError(_("{path} is not a Python file. MODEL is file.py:factory, package.module:factory or a .pt2 file.").format(path=path))
            return load_script_module(file)
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(path)
    except NpuliftError:
        raise
    except ModuleNotFoundError as error:
        if not looks_like_file and error.name and path.split(".", maxsplit=1)[0] == error.name.split(".")[0]:
            raise NpuliftError(
                _("There is no module {path}. MODEL is file.py:factory, package.module:factory or a .pt2 file.").format(path=path)
            ) from error
        raise NpuliftError(_("{path} needs the package {name}, which is not installed here.").format(path=path, name=error.name)) from error
    except SystemExit as error:
        raise NpuliftError(_("{path} called exit while it was imported; keep script code under if __name__ == '__main__'.").format(path=path)) from error
    except Exception as error:
        raise NpuliftError(_raised(path, error, None)) from error


def _call(module: ModuleType, attribute: str, model: str) -> Any:
    wanted = attribute or "model"
    factory: Any = module
    for part in wanted.split("."):
        factory = getattr(factory, part, None)
    if factory is None:
        offers = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__ and not n.startswith("_")]
        raise NpuliftError(
            _("{model} has no factory named {name}. It defines: {offers}.").format(model=model, name=wanted, offers=", ".join(offers) or "-")
        )
    if isinstance(factory, torch.nn.Module | ModelSpec | tuple):
        return _with_example_inputs(factory, module) if isinstance(factory, torch.nn.Module) else factory
    if not callable(factory):
        raise NpuliftError(_("{model} is a {kind}; expected a function that returns (module, example_inputs).").format(model=model, kind=type(factory).__name__))
    try:
        if inspect.isclass(factory) and issubclass(factory, torch.nn.Module):
            return _with_example_inputs(factory(), module)
        return factory()
    except SystemExit as error:
        raise NpuliftError(_("{model} called exit instead of returning a model.").format(model=model)) from error
    except Exception as error:
        raise NpuliftError(_raised(model, error, factory)) from error


def _with_example_inputs(module: torch.nn.Module, namespace: ModuleType) -> Any:
    """A bare module class or object, beside functions example_inputs() and, if wanted, dynamic_shapes() in the same file."""
    make = getattr(namespace, "example_inputs", None)
    if make is None:
        return module  # _spec_of explains what is missing
    inputs = make() if callable(make) else make
    shapes = getattr(namespace, "dynamic_shapes", None)
    shapes = shapes() if callable(shapes) else shapes
    return ModelSpec(module, inputs, dynamic_dims=_dims_of(shapes) if shapes else {})


def _dims_of(shapes: Any) -> dict[int, dict[int, Dim]]:
    """torch.export's dynamic_shapes (a tuple with {axis: Dim} for each input) as Dims of ours."""
    values = shapes.values() if isinstance(shapes, dict) else shapes
    dims: dict[int, dict[int, Dim]] = {}
    for position, axes in enumerate(values):
        entries = axes.items() if isinstance(axes, dict) else enumerate(axes or ())
        for axis, dim in entries:
            if dim is None or isinstance(dim, int):
                continue
            name = getattr(dim, "__name__", None) or f"d{position}_{axis}"
            high = getattr(dim, "max", None)
            bounded = isinstance(high, int) and high < 2**31
            low = getattr(dim, "min", None)
            dims.setdefault(position, {})[axis] = Dim(name, low if isinstance(low, int) and low >= 0 else 1, high if bounded else None)
    return dims


def _raised(model: str, error: BaseException, factory: Any) -> str:
    place = ""
    trace = error.__traceback__
    while trace is not None:
        if "/torch/" not in trace.tb_frame.f_code.co_filename and "importlib" not in trace.tb_frame.f_code.co_filename:
            place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if "cuda" in text.lower() or "nvidia" in text.lower():
        return _("{model} needs a CUDA GPU ({error}, at {place}). Build it on the CPU; npulift moves it where it has to go.").format(
            model=model, error=text, place=place
        )
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return _("{model} does not fit into this machine's memory ({error}). Build it on the meta device "
                 "(with torch.device('meta')) for check, or use a smaller configuration.").format(model=model, error=text)
    return _("{model} raised {error} (at {place}). Use --debug for the whole traceback.").format(model=model, error=text, place=place)


def _spec_of(value: Any, origin: str, what: str) -> ModelSpec:
    if isinstance(value, ModelSpec):
        spec = value
    elif isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], torch.nn.Module):
        module, inputs = value
        if isinstance(inputs, dict):
            raise NpuliftError(
                _("{what} gave the inputs as keywords; give them by position (wrap the module if it needs keywords).").format(what=what)
            )
        spec = ModelSpec(module, inputs)
    else:
        got = f"({', '.join(type(v).__name__ for v in value)})" if isinstance(value, tuple | list) else type(value).__name__
        raise NpuliftError(_("{what} returned {got}; expected (module, example_inputs) or a ModelSpec.").format(what=what, got=got))
    if not spec.inputs:
        raise NpuliftError(_("{what} gave no example inputs; npulift needs one call's worth of tensors.").format(what=what))
    for i, value in enumerate(spec.inputs):
        if not isinstance(value, torch.Tensor | int | float | bool | str | type(None)):
            raise NpuliftError(
                _("Input {i} of {what} is a {kind}; expected tensors (wrap the module if it takes something else).").format(
                    i=i, what=what, kind=type(value).__name__
                )
            )
    name = spec.name or (Path(origin.partition(":")[0]).stem if origin else type(spec.module).__name__)
    return replace(spec, name=name, origin=spec.origin or origin)


def _load_pt2(path: Path, model: str) -> ModelSpec:
    if not path.exists():
        raise NpuliftError(_("There is no file {path}.").format(path=path))
    if not zipfile.is_zipfile(path):
        raise NpuliftError(_("{path} is not a .pt2 archive (torch.export.save writes one); it may be cut short.").format(path=path))
    try:
        program = torch.export.load(path)
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise NpuliftError(_("{path} could not be read as a .pt2 program ({error}). It may be cut short or from another torch.").format(path=path, error=text)) from error
    if program.example_inputs is None:
        raise NpuliftError(_("{path} has no example inputs; save it with torch.export.export(module, inputs).").format(path=path))
    args, kwargs = program.example_inputs
    return ModelSpec(
        program.module(check_guards=False), (*args, *kwargs.values()), dynamic_dims=_dims_of_program(program), name=path.stem, origin=model,
    )


def _dims_of_program(program: torch.export.ExportedProgram) -> dict[int, dict[int, Dim]]:
    dims: dict[int, dict[int, Dim]] = {}
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    for position, name in enumerate(program.graph_signature.user_inputs):
        value = placeholders[str(name)].meta.get("val")
        for axis, size in enumerate(getattr(value, "shape", ())):
            if isinstance(size, torch.SymInt):
                symbol = size.node.expr
                bounds = program.range_constraints.get(symbol)
                high = int(bounds.upper) if bounds is not None and bounds.upper.is_finite and bounds.upper < 2**31 else None
                dims.setdefault(position, {})[axis] = Dim(str(symbol), max(int(bounds.lower), 0) if bounds is not None else 1, high)
    return dims
