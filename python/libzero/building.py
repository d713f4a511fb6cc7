"""How an engine begins: parameters become the library's memory, and their first values those of the model, of published weights, or of a
checkpoint.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from . import _c, _torch_optimizer
from ._c import ArgumentError, UnsupportedError, byref, c_void_p, check, lib
from .parameters import owner_of, register, set_data, set_grad, without_values
from .pretrained import note_pretrained
from .stash import MAX_TRANSFERS, UNIT_BYTES, Stash
from .units import Param, Unit, UnitPlan, library_dims


class Building:
    """A part of Engine."""

    def _build(self, plans: list[UnitPlan], checkpoint: c_void_p | None) -> None:
        rank = self._open_rank()
        log = _c.Log(_c.LOG.sink, None, _c.LOG.level, rank.rank)
        check(lib.zr_runtime_create(byref(self._config), rank.comm, rank.device, byref(log), byref(self._runtime)))
        lib.zr_runtime_sum_micro_batches(self._runtime)  # backward divides the loss
        if checkpoint is None and self._weights is not None:
            self._weights.load_buffers(self.module)
        elif checkpoint is None:
            self._share_initial_values(rank)
        else:
            check(lib.zr_runtime_restore(self._runtime, checkpoint))
        group_of = self._rates.add_groups(self._runtime)
        fills: list[Any] = []  # until commit has returned
        self._units: list[Unit] = []
        self._n_filled = 0  # units of which the library has all values
        self._fill_error: BaseException | None = None  # of reading them, which the library cannot be told
        for plan in plans:
            self._units.append(self._add_unit(plan, group_of, fills))
        self._params = {id(p.tensor): p for u in self._units for p in u.params}
        self._trained = [p for p in self._params.values() if not p.is_frozen and p.tensor.numel()]
        lowers = self.dtype != torch.float32 and all(p.tensor.dtype == torch.float32 for p in self._params.values())
        extents = self._add_activations() if self._stash_bytes else None
        status = lib.zr_runtime_commit(self._runtime)
        if self._fill_error is not None:  # values that could not be read are not trained
            if self._weights is not None:
                note_pretrained(self.module, self._weights.path)  # initialize may be called again
            elif self._n_filled and hasattr(self._fill_error, "add_note"):
                self._fill_error.add_note("the module's values are with the library in part, and lost: build the module again")
            error, self._fill_error = self._fill_error, None
            raise error
        check(status)
        self._rates.begin(self.global_steps - self.skipped_steps)
        if extents is not None:
            self._stash = Stash(lib.zr_runtime_store(self._runtime), extents.first, self._stash_bytes)
        self._weights = None  # its files are closed; what a checkpoint has comes next
        self._has_masters = bool(lib.zr_runtime_params_are_masters(self._runtime))
        # Units that come last are completed first, or nearly so, until the first backward has shown it.
        self._order = [u for u in reversed(self._units) if u.is_trainable]
        with torch.no_grad():
            for unit in self._units:
                self._adopt(unit)
            if lowers:
                self._convert_buffers()

    def _convert_buffers(self) -> None:
        """Those that were of the parameters' dtype are again, as with module.to(dtype); but for what other modules than PyTorch's
        compute themselves, such as a rotary embedding's frequencies."""
        for module in self.module.modules():
            is_torch = isinstance(module, nn.modules.batchnorm._NormBase) or type(module).__module__.startswith("torch.nn.")
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.dtype == torch.float32 and (is_torch or name not in module._non_persistent_buffers_set):
                    module._buffers[name] = buffer.to(self.dtype)

    def _add_activations(self) -> _c.Extents:
        """Reserve room on drives for them."""
        extent = _c.StoreExtent(b"activations", self._stash_bytes, 0, True)
        desc = _c.ExtentsDesc(b"activations", ctypes.pointer(extent), 1, UNIT_BYTES, MAX_TRANSFERS, None)
        extents = _c.Extents()
        check(lib.zr_runtime_add_extents(self._runtime, byref(desc), byref(extents)))
        self._names = (desc.name, extent.name)  # until commit has returned, and longer
        return extents

    def _share_initial_values(self, rank: Any) -> None:
        """Everybody's parameters and buffers become those of rank 0."""
        if rank.n_ranks == 1:
            return
        for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
            data = tensor.data.contiguous()
            message = _c.Message(f"{name} of rank 0".encode(), _c.U8, 1, None)
            size = data.numel() * data.itemsize
            if size:
                check(lib.zr_comm_broadcast(rank.comm, byref(message), data.data_ptr(), size, 0,
                                            lib.zr_runtime_stream(self._runtime)))
            tensor.data.copy_(data)

    def _add_unit(self, plan: UnitPlan, group_of: dict[int, int], fills: list[Any]) -> Unit:
        unit, owner = Unit(plan.name), owner_of(self)
        check(lib.zr_runtime_add_unit(self._runtime, plan.name.encode(), byref(unit.handle)))
        for name, tensor in plan.params:
            param = Param(tensor, name, unit, owner, id(tensor) in self._frozen)
            values_of = self._weights.filler(tensor) if self._weights is not None else _slices_of(tensor)
            fill = _c.FILL(self._filler(len(self._units), values_of))
            fills.append(fill)
            dims = library_dims(tensor.shape)
            desc = _c.ParamDesc(
                name=self._saved_names[id(tensor)].encode(),
                n_dims=len(dims),
                dims=(_c.c_size_t * 4)(*dims),
                group=group_of.get(id(tensor), 0),
                frozen=param.is_frozen,
                fill=fill,
            )
            check(lib.zr_unit_add_param(unit.handle, byref(desc), byref(param.handle)))
            unit.params.append(param)
        return unit

    def _filler(self, number: int, values_of: Any) -> Any:
        """Initial values of a parameter of a unit, as the library asks for them, one unit after the other: PyTorch's memory of those
        before it is given back, so that no more than one is there twice."""

        def fill(_context: int, first: int, n_elems: int, values: Any) -> None:
            if self._fill_error is not None:
                return
            try:
                for unit in self._units[self._n_filled : number]:
                    for p in unit.params:
                        p.tensor.data = torch.full((), float("nan"), dtype=self.dtype).expand(p.shape)
                self._n_filled = max(self._n_filled, number)
                memory = (ctypes.c_float * n_elems).from_address(ctypes.addressof(values.contents))
                torch.frombuffer(memory, dtype=torch.float32).copy_(values_of(first, n_elems))
            except BaseException as error:  # Ctrl-C as well
                self._fill_error = error

        return fill

    def _adopt(self, unit: Unit) -> None:
        """From now on the unit's parameters are the library's memory."""
        for p in unit.params:
            set_grad(p.tensor, None)
            p.absent = without_values(p, self.dtype, f"libzero: parameter {p.name} is used while its unit {unit.name!r} is not gathered")
            p.shows_grad = self._has_whole_gradient(p)
            register(p)
        if not self._moves:
            check(lib.zr_unit_acquire(unit.handle, _c.FORWARD))
        for p in unit.params:
            if not p.tensor.numel():
                set_data(p, torch.empty(p.shape, dtype=self.dtype, device=p.tensor.device))
            elif self._moves:
                set_data(p, p.absent, is_absent=True)
            else:
                self._show(p)
                self._own.add(p.key)
        if not self._moves:
            check(lib.zr_unit_release(unit.handle))


def _slices_of(tensor: nn.Parameter) -> Any:
    def slice_of(first: int, n_elems: int) -> torch.Tensor:
        tensor.data = tensor.data.contiguous()
        return tensor.data.view(-1)[first : first + n_elems]

    return slice_of


def read_groups(model: nn.Module, groups: Iterable[Any] | None, kind: str) -> list[dict[str, Any]]:
    """model_parameters as dictionaries. kind: the library's optimizer; "": they are torch's own."""
    if groups is None:
        return [{"params": list(model.parameters())}]
    groups = list(groups)
    if not groups or not isinstance(groups[0], Mapping):
        groups = [{"params": groups}]
    known = {id(p) for p in model.parameters()}
    seen: set[int] = set()
    result = []
    for group in groups:
        group = {**group, "params": _torch_optimizer.as_list(group["params"])}
        allowed = _torch_optimizer.group_keys(kind) if kind else group
        for key in group:
            if key not in allowed:
                raise UnsupportedError(
                    f"model_parameters: a group's {key!r} is not supported; groups have "
                    + ", ".join(allowed)
                )
        for p in group["params"]:
            if id(p) not in known or id(p) in seen:
                where = "model_parameters" if kind else "optimizer"
                raise ArgumentError(f"{where}: a tensor is not a parameter of the model, or is in two groups")
            seen.add(id(p))
        result.append(group)
    missing = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in seen]
    if missing:
        raise ArgumentError(f"the parameter groups lack {len(missing)} parameters that require gradients, such as {missing[0]}: add them, or set requires_grad to False")
    return result
