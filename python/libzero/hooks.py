"""Parameters that come and go. At stages 0 to 2 they are there at all times; at stage 3 a module's forward hook gathers its units and
gives them back, backward gathers what it needs again, and a parameter that is given back shows its shape over one element, NaN. What autograd
saves of a gathered parameter, a transposed view or a slice, is remembered by its place in the parameter, and comes back as the parameter
gathered again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import _c
from ._c import StateError, UnsupportedError, check, lib
from .stash import View
from .units import Param, Unit

_POISON = "LIBZERO_POISON" in os.environ  # what is given back is overwritten, to find who still uses it
OUTSIDE, IN_FORWARD, IN_BACKWARD = "outside", "forward", "backward"


class _Parameters(dict):
    """A module's parameters: one that is used outside its module's forward is gathered when it is looked up."""

    def __init__(self, engine: Hooks, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self._engine = engine

    def __getitem__(self, name: str) -> Any:
        tensor = super().__getitem__(name)
        engine = self._engine
        if engine._phase != OUTSIDE and tensor is not None:
            engine._look_up(tensor)
        return tensor

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class Hooks:
    """A part of Engine."""

    def _add_hooks(self) -> None:
        self._handles: list[Any] = []
        for p in self._params.values():
            if p.tensor.requires_grad:
                self._handles.append(p.tensor.register_post_accumulate_grad_hook(self._take_gradient))
        for module in self.module.modules():
            if module._parameters:
                if hasattr(module, "register_load_state_dict_pre_hook"):  # from torch 2.5 on
                    self._handles.append(module.register_load_state_dict_pre_hook(self._load_values))
                else:
                    self._handles.append(module._register_load_state_dict_pre_hook(self._load_values, with_module=True))
                self._handles.append(module.register_load_state_dict_post_hook(self._note_loaded))
        if self._moves:
            for module, tensors in self._needs.items():
                units = list(dict.fromkeys(self._params[id(t)].unit for t in tensors))
                self._handles.append(module.register_forward_pre_hook(self._before(units)))
                self._handles.append(module.register_forward_hook(self._after(units), always_call=True))
            for module in self.module.modules():
                if module._parameters:
                    module._parameters = _Parameters(self, module._parameters)
            self._handles.append(self.module.register_state_dict_pre_hook(self._refuse_state_dict))

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        for module in self.module.modules():
            if isinstance(module._parameters, _Parameters):
                module._parameters = dict(module._parameters)

    def _refuse_state_dict(self, *_: Any) -> None:
        if any(p.unit.n_held == 0 for p in self._params.values()):
            raise StateError(
                "state_dict: parameters are sharded at stage 3; take engine.state_dict(), or call it in "
                "`with engine.gathered():`"
            )

    def _before(self, units: list[Unit]) -> Any:
        def hook(_module: nn.Module, _inputs: Any) -> None:
            if self._phase == OUTSIDE:
                return self._refuse_call(units)
            for unit in units:
                if self._phase == IN_BACKWARD:  # recomputation: its backward follows
                    self._keep(unit)
                else:
                    self._hold(unit)

        return hook

    def _refuse_call(self, units: list[Unit]) -> None:
        if any(u.n_held == 0 for u in units):
            raise StateError(
                "the module was called directly, but its parameters are sharded: call the engine, or use "
                "`with engine.in_forward():` or `with engine.gathered():`"
            )

    def _after(self, units: list[Unit]) -> Any:
        def hook(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
            if self._phase != IN_FORWARD:
                return
            for tensor in tensors_of(outputs):
                param = self._live.get(self._address(tensor))
                if param is not None:  # the output is the parameter, or a view of it
                    self._keep(param.unit)
            for unit in units:
                self._give_back(unit)

        return hook

    # ---- parameters that come and go ----

    @torch.inference_mode(False)
    def _hold(self, unit: Unit, grads: bool = False) -> None:
        check(lib.zr_unit_acquire(unit.handle, _c.BACKWARD if grads else _c.FORWARD))
        unit.n_held += 1
        if unit.n_held > 1:
            return
        for p in unit.params:
            if p.tensor.numel() == 0:
                continue
            self._show(p)
            self._live[p.key] = p

    def _check_unchanged(self, params: Iterable[Param]) -> None:
        """A change would be lost: the optimizer's master does not have it."""
        for p in params:
            if p.tensor.numel() and (p.tensor.data_ptr() != p.key or p.tensor._version != p.version):
                raise UnsupportedError(
                    f"parameter {p.name} was changed, or replaced, by other code than the engine: change it in "
                    "`with engine.gathered(parameter, modifier_rank=0):`, or by load_state_dict"
                )

    def _give_back(self, unit: Unit) -> None:
        if unit.n_held == 0:
            return  # an exception has given back all
        unit.n_held -= 1
        changed = None
        if unit.n_held == 0:
            try:
                self._check_unchanged(unit.params)
            except UnsupportedError as error:
                changed = error
            for p in unit.params:
                if p.tensor.numel() == 0:
                    continue
                if _POISON and p.tensor.data_ptr() == p.key:
                    p.tensor.data.fill_(float("nan"))
                del self._live[p.key]
                p.tensor.data = p.absent
        check(lib.zr_unit_release(unit.handle))
        if changed is not None:
            raise changed

    def _keep(self, unit: Unit) -> None:
        """Hold a unit until its gradients are reduced, or backward ends."""
        if unit.kept:
            return
        unit.kept = True
        self._kept.append(unit)
        unit.keeps_grads = self._phase == IN_BACKWARD and self._is_open and unit.is_trainable and not unit.reduced
        self._hold(unit, grads=unit.keeps_grads)
        if unit.keeps_grads:
            self._release_gradients(unit)

    def _drop(self, unit: Unit) -> None:
        """What was acquired for this backward."""
        if unit.kept:
            unit.kept = unit.keeps_grads = False
            self._kept.remove(unit)
            self._give_back(unit)
        self._release_gradients(unit)

    def _look_up(self, tensor: nn.Parameter) -> None:
        param = self._params.get(id(tensor))
        if param is None or param.unit.n_held:
            return
        if self._phase == IN_BACKWARD:
            self._keep(param.unit)
        else:
            self._hold(param.unit)
            self._held_by_use.append(param.unit)

    def _give_all_back(self) -> None:
        """After an exception: nothing is held."""
        for unit in self._units:
            unit.kept = unit.keeps_grads = False
            while unit.n_held:
                self._give_back(unit)
            self._release_gradients(unit)
        self._kept.clear()
        self._held_by_use.clear()

    # ---- what autograd saves ----

    def _pack(self, tensor: torch.Tensor) -> Any:
        address = self._address(tensor)
        param = self._live.get(address)
        if param is not None:
            return View(param, tensor)
        param = self._absent.get(address)
        if param is not None:
            raise StateError(
                f"parameter {param.name} is used while its unit {param.unit.name!r} is not gathered: use it in the "
                "forward of the engine's module, or in `with engine.gathered([parameter]):`"
            )
        if self._stash is not None and address not in self._own:
            view = self._stash.save(tensor)
            if view is not None:
                return view
        return (tensor.detach() if tensor.grad_fn is not None else tensor), tensor._version

    def _unpack(self, saved: Any) -> torch.Tensor:
        if type(saved) is tuple:
            tensor, version = saved
            if tensor._version != version:  # with hooks, autograd does not look
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
                    f"shape {tuple(tensor.shape)} is at version {tensor._version}, expected version {version}"
                )
            return tensor
        if type(saved.kept) is not Param:
            return saved.kept.stash.restore(saved)
        param = saved.kept
        if param.unit.n_held == 0:
            self._keep(param.unit)
        tensor = param.tensor.data
        if saved.dtype != tensor.dtype:
            tensor = tensor.view(saved.dtype)
        return tensor.as_strided(saved.size, saved.stride, saved.offset)

    def _saving(self) -> Any:
        if not self._hooks_saving:
            return contextlib.nullcontext()
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from tensors_of(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors_of(v)
