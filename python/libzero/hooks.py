"""Parameters that come and go. At stages 0 to 2 they are there at all times; at stage 3 a module's forward hook gathers its units and
gives them back, and backward gathers what it needs again. What autograd saves of a gathered parameter, a transposed view or a slice, is
remembered by its place in the parameter, and comes back as the parameter gathered again. What other code holds of its memory, without
autograd's hooks, lets that memory stay until it is gone.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from . import _c
from ._c import StateError, UnsupportedError, check, lib
from .parameters import (
    absence, absent_in, data_of, is_absent, known, param_of, replace_shadows, seal_alive, set_data, shadow_of,
)
from .stash import View
from .units import Param, Unit

_POISON = "LIBZERO_POISON" in os.environ  # what is given back is overwritten, to find who still uses it
OUTSIDE, IN_FORWARD, IN_BACKWARD = "outside", "forward", "backward"


class Hook:
    """A method of the engine as a module's or a parameter's hook. It does not keep the engine, and a copy of the module has none."""

    def __init__(self, engine: Any, method: str, *fixed: Any) -> None:
        self._engine, self._method, self._fixed = weakref.ref(engine), method, fixed

    def __call__(self, *arguments: Any) -> Any:
        engine = self._engine()
        return None if engine is None else getattr(engine, self._method)(*self._fixed, *arguments)

    def __deepcopy__(self, memo: Any) -> Any:
        return _nothing

    def __reduce__(self) -> Any:
        return _take_nothing, ()


def _nothing(*_: Any) -> None:
    """What a copy of a module has instead of an engine's hook."""


def _take_nothing() -> Any:
    return _nothing


def is_in_autograd() -> bool:
    """This thread computes gradients, whoever has asked for them."""
    return torch._C._current_graph_task_id() != -1


_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None)


class _Parameters(dict):
    """A module's parameters: one that is used outside its module's forward is gathered when it is looked up."""

    def __init__(self, engine: Hooks, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self._engine = weakref.ref(engine)

    def __getitem__(self, name: str) -> Any:
        tensor = super().__getitem__(name)
        engine = self._engine()
        if engine is not None and engine._phase != OUTSIDE and is_absent(tensor):
            engine.look_up(param_of(tensor))
        return tensor

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class ParamView(View):
    """What autograd has saved of a parameter; its unit counts those that are there."""

    __slots__ = ()

    def __init__(self, param: Param, tensor: torch.Tensor) -> None:
        super().__init__(param, tensor)
        param.unit.n_saved += 1

    def __del__(self) -> None:
        self.kept.unit.n_saved -= 1


class Hooks:
    """A part of Engine."""

    def _add_hooks(self) -> None:
        self._handles: list[Any] = []
        for p in self._params.values():
            if not p.is_frozen:
                self._add_gradient_hook(p)
        for module in self.module.modules():
            if module._parameters:
                load, note = Hook(self, "_load_values"), Hook(self, "_note_loaded")
                if hasattr(module, "register_load_state_dict_pre_hook"):  # from torch 2.5 on
                    self._handles.append(module.register_load_state_dict_pre_hook(load))
                else:
                    self._handles.append(module._register_load_state_dict_pre_hook(load, with_module=True))
                self._handles.append(module.register_load_state_dict_post_hook(note))
            if isinstance(module, nn.Embedding):
                self._handles.append(module.register_forward_pre_hook(Hook(self, "_note_table")))
        if self._moves:
            for module, tensors in self._needs.items():
                units = list(dict.fromkeys(self._params[id(t)].unit for t in tensors))
                self._handles.append(module.register_forward_pre_hook(Hook(self, "_before", units)))
                self._handles.append(module.register_forward_hook(Hook(self, "_after", units), always_call=True))
            for module in self.module.modules():  # parts of units
                if module not in self._needs and any(not p.requires_grad for p in module._parameters.values() if p is not None):
                    self._handles.append(module.register_forward_pre_hook(Hook(self, "_begin_aliases")))
                    self._handles.append(module.register_forward_hook(Hook(self, "_end_aliases"), always_call=True))
            for module in self.module.modules():
                if module._parameters:
                    module._parameters = _Parameters(self, module._parameters)
            self._handles.append(self.module.register_state_dict_pre_hook(Hook(self, "_refuse_state_dict")))

    def _add_gradient_hook(self, param: Param) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            was_frozen = not param.tensor.requires_grad  # since the engine was made
            param.tensor.requires_grad_()
            hook = param.tensor.register_post_accumulate_grad_hook(Hook(self, "_take_gradient"))
            param.tensor.requires_grad_(not was_frozen)
        self._hook_of[id(param.tensor)] = hook

    def _remove_hooks(self) -> None:
        for handle in (*self._handles, *self._hook_of.values()):
            handle.remove()
        self._hook_of.clear()
        for module in self.module.modules():
            if isinstance(module._parameters, _Parameters):
                module._parameters = dict(module._parameters)

    def _refuse_state_dict(self, *_: Any) -> None:
        if any(p.unit.n_held == 0 for p in self._params.values()):
            raise StateError(
                "state_dict: parameters are sharded at stage 3; take engine.state_dict(), or call it in "
                "`with engine.gathered():`"
            )

    # ---- what others' hooks save ----
    #
    # Gradient checkpointing and tools that offload activations have hooks of their own, which may keep a parameter itself: absent, it has
    # no values in backward. They get a tensor on its memory, which then stays.

    def _begin_aliases(self, module: nn.Module, *_: Any) -> None:
        top = _top_hooks(True)
        is_own = top is None or top[0] == self._pack or any(top[0] is alias for _, alias in self._aliasing)
        if is_own or (self._phase == OUTSIDE and not is_in_autograd()):
            return
        pack = top[0]

        def alias(tensor: torch.Tensor) -> Any:
            param = known(tensor)
            return pack(tensor if param is None or not param.key else data_of(tensor))

        self._aliasing.append((module, alias))
        torch._C._autograd._push_saved_tensors_default_hooks(alias, top[1])

    def _note_table(self, module: nn.Module, *_: Any) -> None:
        """What an embedding has looked up can be asked for by autograd alone."""
        top = _top_hooks(True)
        if top is not None and top[0] != self._pack:
            self._tables.add(id(module.weight))

    def _end_aliases(self, module: nn.Module, *_: Any) -> None:
        if self._aliasing and self._aliasing[-1][0] is module:
            self._aliasing.pop()
            torch._C._autograd._pop_saved_tensors_default_hooks()

    def _before(self, units: list[Unit], module: nn.Module, _inputs: Any) -> None:
        self._begin_aliases(module)
        for unit in units:
            if self._phase == IN_FORWARD:
                self._hold(unit)
            elif self._phase == IN_BACKWARD or is_in_autograd():  # recomputation: its backward follows
                self._keep(unit)
            elif unit.n_held == 0:
                raise StateError(
                    "the module was called directly, but its parameters are sharded: call the engine, or use "
                    "`with engine.in_forward():` or `with engine.gathered():`"
                )

    def _after(self, units: list[Unit], module: nn.Module, _inputs: Any, outputs: Any) -> None:
        self._end_aliases(module)
        if self._phase != IN_FORWARD:
            return
        for tensor in tensors_of(outputs):  # the output is a parameter: its reader finds it
            param = known(tensor)
            if param is not None and param.unit.n_held:
                self._keep(param.unit)
        for unit in units:
            self._give_back(unit)

    # ---- parameters that come and go ----

    @torch.inference_mode(False)
    def _hold(self, unit: Unit, grads: bool = False) -> None:
        self._end_lingering()
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
            if p.has_changed:
                raise UnsupportedError(
                    f"parameter {p.name} was changed, or replaced, by other code than the engine: change it in "
                    "`with engine.gathered(parameter, modifier_rank=0):`, or by load_state_dict; what changes in forward should be a buffer"
                )

    @torch.inference_mode(False)
    def _give_back(self, unit: Unit) -> None:
        if unit.n_held == 0:
            return  # an exception has given back all
        unit.n_held -= 1
        changed, left = None, []
        if unit.n_held == 0:
            try:
                self._check_unchanged(unit.params)
            except UnsupportedError as error:
                changed = error
            left = self._hide(unit)
        if left:  # its memory stays as long as they are there
            self._lingering.append((unit, left))
        else:
            check(lib.zr_unit_release(unit.handle))
        if changed is not None:
            raise changed

    def _hide(self, unit: Unit) -> list[tuple[Param, StorageWeakRef]]:
        """Its parameters are absent from now on. Returns of which other code has tensors."""
        left = []
        for p in unit.params:
            if p.tensor.numel() == 0:
                continue
            values = data_of(p.tensor) if _POISON and data_of(p.tensor).data_ptr() == p.key else None
            del self._live[p.key]
            p.key, p.touched = 0, None
            set_data(p, p.absent, is_absent=True)
            references, p.references = p.references, []
            if values is not None and not self._is_used(values, references):
                values.fill_(float("nan"))
            del values
            left += [(p, r) for r in references if not r.expired()]
        return left

    @staticmethod
    def _is_used(values: torch.Tensor, references: list[StorageWeakRef]) -> bool:
        """Other code has tensors of a parameter's memory, but for the one given."""
        return any(torch._C._storage_Use_Count(r.cdata) > 1 for r in references if not r.expired())

    def _end_lingering(self, forced: Unit | None = None, is_forced: bool = False) -> None:
        """Release units of whose memory nobody has tensors any more; one of them, or all, anyway: its tensors cannot be read then."""
        if not self._lingering:
            return
        lingering, self._lingering = self._lingering, []
        for unit, left in lingering:
            left = [(p, r) for p, r in left if not r.expired()]
            if left and not is_forced and unit is not forced:
                self._lingering.append((unit, left))
                continue
            check(lib.zr_unit_release(unit.handle))
            for p, reference in left:
                if not seal_alive([reference], f"libzero: a tensor that was made of parameter {p.name} is used after the parameter was "
                                               "updated or given back: clone() what is needed longer, or set update_at='end'"):
                    raise StateError(f"other code holds a tensor of parameter {p.name} that outlives its step: clone() it")

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

    def look_up(self, param: Param) -> bool:
        """Gather an absent parameter that other code uses, if now is the time for it: until the forward, or the backward, has ended."""
        if self._phase == IN_FORWARD:
            if param.unit.n_held == 0:
                self._hold(param.unit)
                self._held_by_use.append(param.unit)
        elif self._phase == IN_BACKWARD or is_in_autograd():
            if param.unit.n_held == 0:
                self._keep(param.unit)
        return param.unit.n_held > 0

    def use(self, func: Callable[..., Any], args: Any, kwargs: Any, params: list[Param]) -> Any:
        """Call a function with absent parameters, or their shadows, among its arguments."""
        self._check("a use of a parameter")
        here = [self.look_up(p) for p in params]
        if all(here):
            return self._call(func, args, kwargs, params)[0]
        if self._gathers:  # the other ranks may not do the same
            raise absence(params, func)
        held: list[Unit] = []
        try:
            for unit in dict.fromkeys(p.unit for p in params):
                self._hold(unit)
                held.append(unit)
            with self._saving():
                result, changed = self._call(func, args, kwargs, params)
            for p in changed:
                self._take_change(p, f"{func.__name__} of")
        finally:
            for unit in held:
                self._give_back(unit)
        return result

    def _call(self, func: Callable[..., Any], args: Any, kwargs: Any, params: list[Param]) -> tuple[Any, list[Param]]:
        """Returns also which parameters the function has changed."""
        data = {id(p): data_of(p.tensor) for p in params}
        before = {key: value._version for key, value in data.items()}
        shadowed = [p for p in params if any(param_of(v) is p for v in absent_in((args, kwargs)) if is_absent(v))]
        result = func(*replace_shadows(args, data), **replace_shadows(kwargs, data))
        by_shadow = [p for p in shadowed if data[id(p)]._version != before[id(p)]]
        if by_shadow and self._phase != OUTSIDE:
            raise UnsupportedError(f"parameter {by_shadow[0].name} was changed through `data` in {self._phase}: change it between steps, in "
                                   "`with engine.gathered(parameter, modifier_rank=0):`")
        changed = [p for p in params if p in by_shadow or p.tensor._version != p.version]
        for p in params if self._phase == OUTSIDE else []:
            if result is data[id(p)]:
                result = shadow_of(p.tensor)
        return result, changed if self._phase == OUTSIDE else []

    def _give_all_back(self) -> None:
        """After an exception: nothing is held."""
        for unit in self._units:
            for p in unit.params if unit.n_held else ():
                p.accept()  # a change is lost, as everything of this step
            unit.kept = unit.keeps_grads = False
            while unit.n_held:
                self._give_back(unit)
            self._release_gradients(unit)
        self._kept.clear()
        self._held_by_use.clear()

    # ---- what autograd saves ----

    def _pack(self, tensor: torch.Tensor) -> Any:
        if is_absent(tensor):
            raise absence([param_of(tensor)], self._pack)
        address = self._address(tensor)
        param = self._live.get(address)
        if param is not None:
            return ParamView(param, tensor)
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
        tensor = data_of(param.tensor)
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
