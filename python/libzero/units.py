"""Units of a module: which parameters are gathered, reduced and released together, and which modules need them; and what an engine
holds of a unit.

A repeated block, an element of a ModuleList or Sequential of several, is a unit with all parameters below it.
Each other module that has parameters of its own is a unit with these. A parameter that several modules
use, a tied one, belongs to the unit that comes first in named_modules(), and every module that uses it gathers that unit.
"""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass, field

import torch
from torch import nn

from ._c import ArgumentError, c_char, c_void_p


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
        found = {n: m for n, m in modules.items() if n and fnmatch.fnmatchcase(n, pattern) and _has_params(m)}
        if not found:
            raise ArgumentError(f"units: no module with parameters has the name {pattern!r}")
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


def tensor_at(pointer: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """A tensor on memory of the library's."""
    n_elems = math.prod(shape)
    if n_elems == 0:
        return torch.empty(shape, dtype=dtype)
    memory = (c_char * (n_elems * dtype.itemsize)).from_address(pointer)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class Param:
    """A parameter, and what stands for it while its unit is not gathered."""

    __slots__ = ("tensor", "name", "handle", "unit", "shape", "is_frozen", "absent", "key", "version")

    def __init__(self, tensor: nn.Parameter, name: str, unit: Unit) -> None:
        self.tensor, self.name, self.unit = tensor, name, unit
        self.handle = c_void_p()
        self.shape, self.is_frozen = tensor.shape, not tensor.requires_grad
        self.absent: torch.Tensor | None = None
        self.key = 0  # address of what it holds now
        self.version = 0  # of it, as autograd counts changes in place


class Unit:
    """A unit, and what the engine holds of it."""

    __slots__ = ("name", "handle", "params", "n_held", "holds_grads", "n_awaited", "completed", "reduced", "kept", "keeps_grads")

    def __init__(self, name: str) -> None:
        self.name, self.handle = name, c_void_p()
        self.params: list[Param] = []
        self.n_held = 0  # acquires with parameters
        self.holds_grads = False  # acquired for gradients alone
        self.n_awaited = 0  # parameters whose gradients are still to come in this backward
        self.completed = 0  # which of the first backward's gradients was its last; 0: it had none
        self.reduced = False
        self.kept = False  # held until backward has ended, or reduced
        self.keeps_grads = False  # and this for gradients, too

    @property
    def is_trainable(self) -> bool:
        return any(not p.is_frozen and p.tensor.numel() for p in self.params)


def check_params(model: nn.Module, dtype: torch.dtype, needs_values: bool) -> None:
    """Refuse parameters that the library cannot hold."""
    for name, p in model.named_parameters():
        if p.device.type == "meta":
            raise ArgumentError(f"parameter {name} has no values (device meta): give pretrained=, a folder with safetensors")
        if p.device.type != "cpu":
            raise ArgumentError(f"parameter {name} is on {p.device}: the device is the host, move the model with .cpu()")
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise ArgumentError(f"parameter {name} has no shape yet (a lazy module): run a forward first")
        if needs_values and p.numel() > 1 and not any(p.stride()):
            raise ArgumentError(f"parameter {name} has no values: the module's engine was closed, or could not be made; load them again")
        if type(p.data) is not torch.Tensor or p.layout != torch.strided:
            raise ArgumentError(f"parameter {name} is a {type(p.data).__name__} of layout {p.layout}: plain dense tensors are supported")
        if p.dtype == dtype or (dtype == torch.bfloat16 and p.dtype == torch.float32):
            continue
        raise ArgumentError(
            f"parameter {name} is {p.dtype}, the configuration says {dtype}: convert the model, or set dtype "
            "('fp32' or 'bf16'; DeepSpeed: bf16.enabled)"
        )
