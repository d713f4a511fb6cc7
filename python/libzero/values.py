"""Parameters' values, on any tier: read, changed, and as a state_dict."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ._c import ArgumentError, StateError, UnsupportedError, check, lib
from .checkpoints import buffers_of
from .hooks import OUTSIDE
from .parameters import checksum, data_of
from .units import Param, tensor_at

_WRITTEN_ELEMS = 1 << 22  # at a time


class Values:
    """A part of Engine."""

    @contextlib.contextmanager
    def gathered(
        self, params: Iterable[nn.Parameter] | nn.Parameter | None = None, modifier_rank: int | None = None
    ) -> Iterator[None]:
        """Make whole parameters accessible, as at stage 0. All ranks must call it with the same parameters.

        params: parameters of the module; None: all
        modifier_rank: the rank that may change them, between steps: when the context ends, all ranks have its values.
            None: nobody may; a change is an error, as it would be lost
        """
        self._check("gathered")
        if self._phase != OUTSIDE:
            raise StateError(f"gathered within {self._phase}")
        if modifier_rank is not None:
            self._check_between_steps("gathered with modifier_rank")
        tensors = [params] if isinstance(params, nn.Parameter) else params
        wanted = list(self._params.values()) if tensors is None else [self._find(t) for t in tensors]
        units = [u for u in self._units if any(p.unit is u for p in wanted)]
        n_held = 0
        try:
            for unit in units if self._moves else []:
                self._hold(unit)
                n_held += 1
            may_change = {id(p) for p in wanted} if modifier_rank is not None else set()
            fixed = [p for u in units for p in u.params if id(p) not in may_change]
            before = [checksum(p.tensor) for p in fixed]
            masters = {id(p): self._read_master(p, modifier_rank) for p in wanted} if modifier_rank is not None else {}
            yield
            changed = next((p for p, was in zip(fixed, before) if checksum(p.tensor) != was), None)
            if changed is not None:
                for p in fixed:
                    p.accept()
            elif modifier_rank is not None:
                for p in wanted:
                    self._write_back(p, modifier_rank, masters[id(p)])
        except BaseException:
            for p in [p for u in units[:n_held] for p in u.params]:
                self._accept(p)  # what is given back is dropped
            raise
        finally:
            for unit in units[:n_held]:
                self._give_back(unit)
        if changed is not None:
            raise UnsupportedError(
                f"gathered: parameter {changed.name} was changed: give modifier_rank, the rank whose change is kept, and list the parameter in params"
            )

    def _read_master(self, param: Param, root: int) -> torch.Tensor | None:
        """On the rank that may change the parameter, where this is less precise. Its bits may be the master's upper half."""
        if self.dtype == torch.float32 or param.is_frozen or not param.tensor.numel():
            return None
        master = torch.empty(param.shape)
        check(lib.zr_param_read(param.handle, 0, master.numel(), master.data_ptr()))
        return master if self.rank == root else None

    def _write_back(self, param: Param, root: int, master: torch.Tensor | None) -> None:
        """What a rank has made of a parameter, to all. Elements of which it changed nothing keep the rest of their
        master's precision."""
        tensor = data_of(param.tensor)
        if tensor.shape != param.shape:
            raise ArgumentError(f"gathered: parameter {param.name} has shape {tuple(tensor.shape)} now, had {tuple(param.shape)}")
        if not tensor.numel():
            return
        if master is not None:
            tensor = torch.where(master.to(self.dtype) == tensor, master, tensor.float())
        self._write(param, tensor, root)
        self._accept(param)

    def _accept(self, param: Param) -> None:
        """The parameter is the library's memory, as it is now."""
        if param.tensor.numel() and data_of(param.tensor).data_ptr() != param.key:
            self._show(param)
        param.accept()

    # ---- changes between steps ----

    def memory_is_master(self, param: Param) -> bool:
        """What is written to its memory counts, without more."""
        return self.world_size == 1 and not self._moves and (param.is_frozen or self._has_masters)

    def _follow_changes(self) -> None:
        """What other code has made of parameters that are there at all times."""
        self._check_replaced()
        if self._moves:
            return
        for p in self._params.values():
            if p.has_changed:
                self._take_change(p, "a change of")

    def _check_replaced(self) -> None:
        for module, name, tensor in self._places:
            if module._parameters.get(name) is not tensor:
                param = self._params[id(tensor)]
                raise UnsupportedError(
                    f"parameter {param.name} of the module was replaced by another object after the engine was made, and would not be "
                    "trained: copy values into it (`with engine.gathered(parameter, modifier_rank=0):`), or make a new engine")

    def _take_change(self, param: Param, what: str) -> None:
        """Keep what the only rank has made of a parameter, wherever it lives."""
        tensor, is_master = data_of(param.tensor), self.memory_is_master(param)
        if self.world_size > 1 or not (is_master or self._is_between_steps()):
            raise UnsupportedError(
                f"{what} parameter {param.name} {'on one of several ranks' if self.world_size > 1 else 'within a step'} would be lost, or "
                "differ between ranks: change it after step(), in `with engine.gathered(parameter, modifier_rank=0):`, or by load_state_dict()")
        if tensor.data_ptr() == param.key and is_master:
            param.accept()
        elif is_master:
            self._show(param)
            with torch.no_grad():
                data_of(param.tensor).copy_(tensor)
            param.accept()
        else:  # all of it: a master whose upper half it is does not say which elements were changed
            self._write_back(param, 0, None)

    def _write(self, param: Param, value: torch.Tensor, root: int = 0) -> None:
        """New values, of one rank, wherever the parameter lives."""
        flat = value.detach().reshape(-1)
        for first in range(0, flat.numel(), _WRITTEN_ELEMS):
            part = flat[first : first + _WRITTEN_ELEMS]
            if self.rank == root:
                part = part.to("cpu", torch.float32).contiguous()
            pointer = part.data_ptr() if self.rank == root else None
            check(lib.zr_param_write(param.handle, first, part.numel(), pointer, root))

    def _check_between_steps(self, call: str) -> None:
        if not self._is_between_steps():
            raise StateError(f"{call} within a step: call it after step(), or drop the step by zero_grad()")

    def _is_between_steps(self) -> bool:
        """A micro-batch that was begun by a forward alone is dropped: its backward begins it again."""
        if self._n_done == 0 and self._is_open and self._phase == OUTSIDE:
            self._drop_open()
        return self._n_done == 0 and not self._is_open

    def _find(self, tensor: nn.Parameter) -> Param:
        if id(tensor) not in self._params:
            raise ArgumentError("gathered: a tensor is not a parameter of the engine's module")
        return self._params[id(tensor)]

    def state_dict(
        self, rank: int | None = None, exclude_frozen_parameters: bool = False,
        names: Container[str] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Parameters at full precision, fp32, and buffers, as the module's state_dict names them. All ranks
        call it, outside of micro-batches, and each gets a copy of everything.

        rank: the only rank that gets it; the others get an empty one; None: all get it
        exclude_frozen_parameters: leave out frozen parameters
        names: the parameters to return; None: all
        """
        self._check("state_dict")
        if self._is_between_steps():
            self._follow_changes()
        values: dict[int, torch.Tensor] = {}
        found = self.module.named_parameters(remove_duplicate=False)
        named = [(name, tensor) for name, tensor in found if names is None or name in names]
        wanted = {id(tensor) for _, tensor in named}
        for unit in self._units:
            for p in unit.params:
                if id(p.tensor) not in wanted or (exclude_frozen_parameters and p.is_frozen):
                    continue
                value = torch.empty(p.shape, dtype=torch.float32)
                check(lib.zr_param_read(p.handle, 0, value.numel(), value.data_ptr()))
                if rank in (None, self.rank):
                    values[id(p.tensor)] = value
        if rank not in (None, self.rank):
            return {}
        state = {name: values[id(tensor)] for name, tensor in named if id(tensor) in values}
        state.update(buffers_of(self.module))
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Set parameters, at full precision, and buffers, as the module's load_state_dict does, which may be called
        instead. All ranks call it, between steps. All get rank 0's parameters; the optimizer's moments stay."""
        self._check("load_state_dict")
        self._check_between_steps("load_state_dict")
        return self.module.load_state_dict(state_dict, strict=strict)

    def _load_values(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        """Before a module's load_state_dict: its values go to the library, and it finds what it has already."""
        self._check("load_state_dict")
        self._check_between_steps("load_state_dict")
        for name, tensor in module._parameters.items():
            value, param = state_dict.get(prefix + name), self._params.get(id(tensor))
            if param is None or not isinstance(value, torch.Tensor) or value is tensor:
                continue
            if not self._moves and param.key and value.device == tensor.device and data_of(value).data_ptr() == param.key:
                state_dict[prefix + name] = tensor  # it is what the parameter has
                continue
            if value.shape == param.shape or (not param.shape and value.shape == (1,)):
                self._write(param, value)
                state_dict[prefix + name] = tensor

    def _note_loaded(self, module: nn.Module, _keys: Any) -> None:
        for param in (self._params.get(id(t)) for t in module._parameters.values()):
            if param is not None and param.key and data_of(param.tensor).data_ptr() == param.key:
                param.accept()
