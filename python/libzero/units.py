"""Units of a module: which parameters are gathered, reduced and released together, and which modules need them; and what an engine
holds of a unit.

A repeated block, an element of a ModuleList or Sequential of several, is a unit with all parameters below it.
Each other module that has parameters of its own is a unit with these. A parameter that several modules
use, a tied one, belongs to the unit that comes first in named_modules(), and every module that uses it gathers that unit.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from torch.multiprocessing.reductions import StorageWeakRef

from ._c import ArgumentError, UnsupportedError, c_char, c_void_p
from .parameters import checksum, data_of, known


@dataclass
class UnitPlan:
    """A unit to be: its name and its parameters, by name."""

    name: str
    params: list[tuple[str, nn.Parameter]] = field(default_factory=list)


def _has_params(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def find_blocks(model: nn.Module, named: list[str] | None) -> dict[str, nn.Module]:
    """Modules that are units with all that is below them, by name.

    named: names or patterns ("model.layers.*"); None: the elements of the outermost lists
    """
    modules = dict(model.named_modules())
    blocks: dict[str, nn.Module] = {}
    if named is None:
        for name, module in modules.items():
            is_list = isinstance(module, (nn.ModuleList, nn.Sequential))
            if not is_list or any(name == b or name.startswith(b + ".") for b in blocks):
                continue
            children = [(f"{name}.{child}".lstrip("."), m) for child, m in module.named_children()]
            children = [(child, m) for child, m in children if _has_params(m)]
            if len(children) > 1:
                blocks.update(children)
        return blocks
    for pattern in named:
        matching = {n: m for n, m in modules.items() if n and fnmatch.fnmatchcase(n, pattern) and _has_params(m)}
        if not matching:
            raise ArgumentError(f"units: no module with parameters has the name {pattern!r}")
        # `*` matches dots: "layers.*" means the layers, not also what is in them.
        found = {n: m for n, m in matching.items() if not any(n.startswith(other + ".") for other in matching)}
        blocks.update(found)
    for name in blocks:
        above = next((b for b in blocks if name.startswith(b + ".")), None)
        if above is not None:
            raise ArgumentError(f"units: {name!r} is part of {above!r}, which is also a unit")
    return blocks


def plan_units(
    model: nn.Module, named: list[str] | None
) -> tuple[list[UnitPlan], dict[nn.Module, list[nn.Parameter]]]:
    """The units, in the order of named_modules(), and of each module that needs some what it needs."""
    blocks = find_blocks(model, named)
    names = {id(p): n for n, p in model.named_parameters()}
    units: list[UnitPlan] = []
    needs: dict[nn.Module, list[nn.Parameter]] = {}
    owned: set[int] = set()

    def add(name: str, module: nn.Module, params: list[nn.Parameter]) -> None:
        if not params:
            return
        needs[module] = params
        own = [p for p in params if id(p) not in owned]
        if own:
            units.append(UnitPlan(name or "(root)", [(names[id(p)], p) for p in own]))
            owned.update(id(p) for p in own)

    for name, module in model.named_modules():
        if name in blocks:
            add(name, module, list(module.parameters()))
        elif not any(name.startswith(b + ".") for b in blocks):
            add(name, module, list(module.parameters(recurse=False)))
    return units, needs


def library_dims(shape: torch.Size) -> list[int]:
    """A shape for the library, which has up to four dimensions."""
    dims = list(shape)
    return [*dims[:3], math.prod(dims[3:])] if len(dims) > 4 else dims


def tensor_at(pointer: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """A tensor on memory of the library's."""
    n_elems = math.prod(shape)
    if n_elems == 0:
        return torch.empty(shape, dtype=dtype)
    memory = (c_char * (n_elems * dtype.itemsize)).from_address(pointer)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class Param:
    """A parameter, and what the engine has of it."""

    __slots__ = ("tensor", "name", "handle", "unit", "owner", "kind", "shape", "is_frozen", "absent", "key", "version", "references", "touched",
                 "has_grad", "is_pending", "shows_grad", "kept_grad")

    def __init__(self, tensor: nn.Parameter, name: str, unit: Unit, owner: Callable[[], Any], is_frozen: bool) -> None:
        self.tensor, self.name, self.unit, self.owner = tensor, name, unit, owner
        self.kind = type(tensor)
        self.handle = c_void_p()
        self.shape, self.is_frozen = tensor.shape, is_frozen  # since the engine was made
        self.absent: torch.Tensor | None = None
        self.key = 0  # address of its values; 0: they are not there
        self.version = 0  # of them, as autograd counts changes in place
        self.references: list[StorageWeakRef] = []  # to its memory
        self.touched: int | None = None  # a checksum from before other code had `data`, whose changes are not counted
        self.has_grad = False  # in this step
        self.is_pending = False  # it is in the library, and PyTorch has none of it
        self.shows_grad = False  # `grad` is the library's memory
        self.kept_grad: torch.Tensor | None = None  # that memory

    def note_access(self) -> None:
        if self.touched is None and self.tensor.numel() and not self.owner().memory_is_master(self):
            self.touched = checksum(self.tensor)

    @property
    def has_changed(self) -> bool:
        """Other code has given it values, or another memory, since it was accepted."""
        tensor = self.tensor
        return bool(self.key) and (
            data_of(tensor).data_ptr() != self.key or tensor._version != self.version
            or (self.touched is not None and checksum(tensor) != self.touched))

    def accept(self) -> None:
        """Its values are those of the library now."""
        self.version, self.touched = self.tensor._version, None


class Unit:
    """A unit, and what the engine holds of it."""

    __slots__ = ("name", "handle", "params", "n_held", "holds_grads", "n_awaited", "completed", "reduced", "kept", "keeps_grads", "n_saved")

    def __init__(self, name: str) -> None:
        self.name, self.handle = name, c_void_p()
        self.params: list[Param] = []
        self.n_held = 0  # acquires with parameters
        self.holds_grads = False  # acquired for gradients alone
        self.n_awaited = 0  # parameters whose gradients are still to come in this backward
        self.completed = 0  # which of the first backward's gradients was its last; 0: it had none
        self.n_saved = 0  # views of its parameters that autograd will read in backward
        self.reduced = False
        self.kept = False  # held until backward has ended, or reduced
        self.keeps_grads = False  # and this for gradients, too

    @property
    def is_trainable(self) -> bool:
        return any(not p.is_frozen and p.tensor.numel() for p in self.params)


def check_params(model: nn.Module, dtype: torch.dtype, needs_values: bool) -> None:
    """Refuse parameters and modules that the library cannot hold or train."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError("model is a module of torch.jit.script, whose parameters cannot be managed: give the module that it was made "
                               "of (torch.compile of its blocks is possible elsewhere)")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise UnsupportedError(f"module {name or '(root)'} has sparse gradients (sparse=True), which ranks cannot add up: set sparse=False")
    for name, p in model.named_parameters():
        _check_param(name, p, dtype, needs_values)
    _check_storages(model)


def _check_param(name: str, p: nn.Parameter, dtype: torch.dtype, needs_values: bool) -> None:
    if known(p) is not None:
        raise ArgumentError(f"parameter {name} belongs to an engine that is open: call its close() first, or go on with it")
    if isinstance(p, nn.parameter.UninitializedParameter):
        raise ArgumentError(f"parameter {name} has no shape yet (a lazy module): run a forward first")
    if p.device.type == "meta":
        raise ArgumentError(f"parameter {name} has no values (device meta): give pretrained=, a folder with safetensors")
    if p.device.type != "cpu":
        raise ArgumentError(f"parameter {name} is on {p.device}: the device is the host, move the model with .cpu()")
    if type(p.data) is not torch.Tensor or p.layout != torch.strided:
        raise ArgumentError(f"parameter {name} is a {type(p.data).__name__} of layout {p.layout}: plain dense tensors are supported")
    if needs_values and not _has_values(p):
        raise ArgumentError(f"parameter {name} has no values: the module's engine was closed, or could not be made; load them again")
    if p.dtype == dtype or (dtype == torch.bfloat16 and p.dtype == torch.float32):
        return
    way_out = "convert the model, or set dtype ('fp32' or 'bf16'; DeepSpeed: bf16.enabled)"
    if p.is_complex():
        way_out = "hold it as real numbers, torch.view_as_real(parameter), and make it complex in forward"
    raise ArgumentError(f"parameter {name} is {p.dtype}, the configuration says {dtype}: {way_out}")


def _has_values(p: nn.Parameter) -> bool:
    if p.numel() > 1 and not any(p.stride()):
        return False
    try:
        p.data_ptr()
    except RuntimeError:  # sealed
        return False
    return True


def _check_storages(model: nn.Module) -> None:
    """Two parameters that are not one object, and have memory in common, would become two."""
    places = []
    for name, p in model.named_parameters():
        if p.device.type == "cpu" and p.numel() and any(p.stride()):
            last = sum((n - 1) * step for n, step in zip(p.shape, p.stride()))
            places.append((p.data_ptr(), p.data_ptr() + (last + 1) * p.itemsize, name))
    places.sort()
    for (_, end, name), (begin, _, other) in zip(places, places[1:]):
        if begin < end:
            raise ArgumentError(
                f"parameters {name} and {other} share memory and are two nn.Parameters: they would be trained apart. To tie them, let both "
                "modules have one nn.Parameter (b.weight = a.weight), and transpose it where it is used; else give one a copy (clone())")
