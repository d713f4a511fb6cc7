"""The engine: a PyTorch module trained on libzero's units.

A unit's parameters are the library's memory. At stages 0 to 2 they are there at all times; at stage 3 a
module's forward hook gathers its units and gives them back, backward gathers what it needs again, and a
parameter that is given back shows its shape over one element, NaN. What autograd saves of a gathered parameter,
a transposed view or a slice, is remembered by its place in the parameter, and comes back as the parameter
gathered anew.

Gradients go to the library as autograd completes them. Units are reduced over the ranks in one order, the
same on all ranks, whatever order they are completed in.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import math
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import _c, _options, _torch_optimizer
from ._c import ArgumentError, StateError, UnsupportedError, byref, c_bool, c_char, c_void_p, check, lib
from .exchange import model_of, names_in, saved_names
from .pretrained import Weights, give_places
from .stash import MAX_TRANSFERS, UNIT_BYTES, Stash, View
from .units import UnitPlan, check_params, plan_units

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_POISON = "LIBZERO_POISON" in os.environ  # what is given back is overwritten, to find who still uses it
_BUFFERS_MOST_BYTES = 16 << 20
_WRITTEN_ELEMS = 1 << 22  # at a time


def _tensor_at(pointer: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """A tensor on memory of the library's."""
    n_elems = math.prod(shape)
    if n_elems == 0:
        return torch.empty(shape, dtype=dtype)
    memory = (c_char * (n_elems * dtype.itemsize)).from_address(pointer)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class _Param:
    """A parameter, and what stands for it while its unit is not gathered."""

    __slots__ = ("tensor", "name", "handle", "unit", "shape", "is_frozen", "absent", "key", "version")

    def __init__(self, tensor: nn.Parameter, name: str, unit: _Unit) -> None:
        self.tensor, self.name, self.unit = tensor, name, unit
        self.handle = c_void_p()
        self.shape, self.is_frozen = tensor.shape, not tensor.requires_grad
        self.absent: torch.Tensor | None = None
        self.key = 0  # address of what it holds now
        self.version = 0  # of it, as autograd counts changes in place


class _Unit:
    """A unit, and what the engine holds of it."""

    __slots__ = ("name", "handle", "params", "n_held", "holds_grads", "n_awaited", "completed", "reduced", "kept", "keeps_grads")

    def __init__(self, name: str) -> None:
        self.name, self.handle = name, c_void_p()
        self.params: list[_Param] = []
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


class _Saved:
    """What autograd has saved of a parameter."""

    __slots__ = ("param", "size", "stride", "offset", "dtype")

    def __init__(self, param: _Param, tensor: torch.Tensor) -> None:
        self.param, self.dtype = param, tensor.dtype
        self.size, self.stride, self.offset = tensor.size(), tensor.stride(), tensor.storage_offset()


class _Parameters(dict):
    """A module's parameters: one that is used outside its module's forward is gathered when it is looked up."""

    def __init__(self, engine: Engine, params: Mapping[str, Any]) -> None:
        super().__init__(params)
        self._engine = engine

    def __getitem__(self, name: str) -> Any:
        tensor = super().__getitem__(name)
        engine = self._engine
        if engine._phase != _OUTSIDE and tensor is not None:
            engine._look_up(tensor)
        return tensor

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


_OUTSIDE, _IN_FORWARD, _IN_BACKWARD = "outside", "forward", "backward"


class Engine:
    """Trains a module, as DeepSpeed's engine does: forward, backward(loss), step.

    model: an nn.Module on the CPU, in fp32 (or bf16 where the configuration says so). It is used in place: its
        parameters become the library's memory.
    config: DeepSpeed's JSON, a file or a dictionary; None: the defaults
    optimizer: the name of one of the library's; or a torch AdamW or SGD without state, that says kind, numbers and groups.
        Its rates and weight decays are followed, so that schedulers of torch's work on it
    lr_scheduler: one of it, or a function that makes one of it: step() steps it
    model_parameters: parameter groups as of torch.optim: dictionaries with `params`, and `weight_decay` and
        `lr` where they differ. What is in none has the configuration's. None: one group
    pretrained: a folder of Hugging Face's with safetensors, or such a file: values of all parameters, of which each rank
        reads what it keeps. The model may have been built in libzero.init(), without values
    offload_activations: "nvme": what autograd saves for backward is on the drives of nvme_path meanwhile, up to
        activations_capacity bytes ("8GiB") of it, but for what is small. "cpu": it is in host memory, as without
    units: names of modules, or patterns such as "model.layers.*", that are gathered as a whole; None: the
        elements of module lists
    checkpoint_sign: "write": checkpoints are signed with the ranks' secret; "require": and only such are loaded
    comm_secret: a file with the secret, at least 16 bytes; None: what the variable ZR_COMM_SECRET has
    Other keywords are options; libzero.options() lists them, and they go over the file's.

    One thread, that which made it, may use it.
    """

    def __init__(
        self,
        model: nn.Module,
        config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        *,
        model_parameters: Iterable[Any] | None = None,
        units: Iterable[str] | None = None,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        pretrained: str | os.PathLike[str] | None = None,
        offload_activations: str = "none",
        activations_capacity: int | str | None = None,
        checkpoint_sign: str = "off",
        comm_secret: str | os.PathLike[str] | None = None,
        **keywords: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentError(f"model is {type(model).__name__}, has to be a torch.nn.Module")
        if hasattr(model, "_orig_mod"):
            raise UnsupportedError("model: what torch.compile has made is not supported yet; give the module itself")
        if isinstance(config, Mapping):
            config = dict(config)
        self.optimizer, self.lr_scheduler = None, None
        if isinstance(optimizer, str):
            keywords["optimizer"] = optimizer
        elif optimizer is not None:
            self._take_optimizer(optimizer, model_parameters, keywords)
            model_parameters = optimizer.param_groups
        self._runtime = c_void_p()
        self._signs, self._secret = checkpoint_sign, _read_secret(checkpoint_sign, comm_secret)
        rank = self._open_rank()
        self.rank, self.world_size = rank.rank, rank.n_ranks
        notes: list[str] = []
        self._config = _options.configure(config, keywords, rank.n_ranks, offload_activations == "nvme", notes)
        for note in notes if rank.rank == 0 else []:
            _c.logger.warning("%s", note)
        self._stash: Stash | None = None  # of activations on drives
        self._stash_bytes = self._read_activations(offload_activations, activations_capacity)
        self.module = model
        self.stage = int(self._get("stage"))
        self.dtype = _DTYPES[self._get("dtype")]
        self._take_scheduler(lr_scheduler)
        self._n_micro_batches = int(self._get("grad_accum"))
        # Whether parameters come and go.
        is_offloaded = self._get("offload_params") != "none"
        n_shards = lib.zr_config_n_shards(byref(self._config), rank.n_ranks)
        self._moves = self.stage == 3 and (n_shards > 1 or is_offloaded)
        self._gathers = self.stage == 3 and n_shards > 1  # with other ranks
        self._hooks_saving = self._moves or self._stash_bytes > 0
        if pretrained is not None:
            give_places(model, self.dtype)
        self._check_params()
        self._weights = Weights(pretrained, model) if pretrained is not None else None
        self._groups = _read_groups(model, model_parameters, self.optimizer is not None)
        self._saved_names = saved_names(model)  # of parameters, in checkpoints
        self._saved_model: dict[str, Any] | None = None  # what they say of the model, once it was asked for
        plans, self._needs = plan_units(model, list(units) if units is not None else None)
        if not plans:
            raise ArgumentError("model has no parameters")
        self._phase = _OUTSIDE
        self._failed = ""
        self._is_mixed = False  # some parameters are of the next step already, and the step was given up
        self._syncs = True
        self._is_open = False  # a micro-batch was begun, and its backward has not ended
        self._n_open = 0  # as how many it counts
        self._is_last = False  # the next one ends the step
        self._n_done = 0  # micro-batches of this step
        self._knows_order = False  # in which backward completes units
        self._n_gradients = 0  # of the first backward so far
        self._report = _c.StepReport()
        self._kept: list[_Unit] = []
        self._held_by_use: list[_Unit] = []
        self._shared_hooks: list[Any] = []  # of this backward
        self._live: dict[int, _Param] = {}  # by address: parameters that are gathered
        self._absent: dict[int, _Param] = {}  # by address: what stands for those that are not
        self._own: set[int] = set()  # addresses of parameters that are always there
        try:
            self._build(plans, None)
        except BaseException:
            lib.zr_runtime_destroy(byref(self._runtime))
            raise
        self._add_hooks()
        _c._runtimes.append(self)

    def _read_activations(self, where: str, capacity: int | str | None) -> int:
        """Bytes of activations that may be on drives."""
        if where not in ("none", "cpu", "nvme"):
            raise ArgumentError(f"offload_activations={where!r}: activations may stay ('none', 'cpu': in host memory) or be on drives ('nvme')")
        if where != "nvme":
            if capacity is not None:
                raise ArgumentError("activations_capacity has no effect: it is room on drives, with offload_activations='nvme'")
            return 0
        if not self._get("nvme_path"):
            raise ArgumentError("offload_activations='nvme' requires nvme_path, a folder on a drive")
        if capacity is None:
            raise ArgumentError("offload_activations='nvme' requires activations_capacity, how much of the drive they may take, such as '8GiB'")
        size = _options.size_of("activations_capacity", capacity) // UNIT_BYTES * UNIT_BYTES
        if not size:
            raise ArgumentError(f"activations_capacity is {capacity}; at least {UNIT_BYTES} bytes are needed")
        return size

    # ---- what a plan of it does otherwise (planning.py) ----

    def _open_rank(self) -> Any:
        return _c.open_rank()

    def _check_params(self) -> None:
        check_params(self.module, self.dtype)

    @staticmethod
    def _address(tensor: torch.Tensor) -> int:
        """Of its storage, by which a parameter is known again."""
        try:
            return tensor.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # a tensor without storage
            return 0

    def _show(self, p: _Param) -> None:
        """Let a parameter be the library's memory."""
        p.tensor.data = _tensor_at(lib.zr_param_data(p.handle), self.dtype, p.shape)
        p.key, p.version = p.tensor.data_ptr(), p.tensor._version

    def _put(self, gradient: torch.Tensor, p: _Param) -> None:
        """Move a gradient to the library's memory."""
        pointer, adds = c_void_p(), c_bool()
        check(lib.zr_param_grad(p.handle, byref(pointer), byref(adds)))
        target = _tensor_at(pointer.value, self.dtype, p.shape)
        target.add_(gradient) if adds else target.copy_(gradient)

    # ---- beginning ----

    def _take_optimizer(self, optimizer: Any, model_parameters: Any, keywords: dict[str, Any]) -> None:
        """One of torch's says what to do. It does nothing itself."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(f"optimizer is {type(optimizer).__name__}, has to be a torch.optim.Optimizer, or a name")
        own = {**_torch_optimizer.options_of(optimizer), "lr": 1.0, "weight_decay": None, "schedule": None}
        twice = [k for k in own if keywords.get(k) is not None]
        if model_parameters is not None:
            twice.append("model_parameters")
        if twice:
            raise ArgumentError(f"{twice[0]} is said by the optimizer that was given; remove one of both")
        keywords.update(own)
        self.optimizer = optimizer

    def _take_scheduler(self, scheduler: Any) -> None:
        if self.optimizer is not None and self._get("schedule") != "constant":
            raise ArgumentError("the configuration has a scheduler, and the optimizer that was given its own rates: remove one of both")
        if scheduler is None:
            return
        if self.optimizer is None:
            raise ArgumentError("lr_scheduler needs an optimizer of torch's, whose rates it changes; or write the configuration's scheduler")
        self.lr_scheduler = scheduler if hasattr(scheduler, "step") else scheduler(self.optimizer)
        if getattr(self.lr_scheduler, "optimizer", self.optimizer) is not self.optimizer:
            raise ArgumentError("lr_scheduler is of another optimizer than the one that was given")

    # ---- what it is ----

    def _get(self, keyword: str) -> str:
        return _options.get(self._config, keyword)

    @property
    def global_steps(self) -> int:
        """Optimizer steps done, skipped ones included."""
        return self._report.step

    @property
    def skipped_steps(self) -> int:
        """Steps that changed nothing, because their gradients were not finite."""
        return self._report.n_skipped

    @property
    def clip(self) -> float:
        """Largest norm of all gradients together; 0: no clipping."""
        return float(self._get("clip"))

    def get_lr(self) -> list[float]:
        """The learning rate of the next step, of each group of a torch optimizer, or one."""
        if self.optimizer is not None:
            return [lr for _, lr in _torch_optimizer.rates_of(self.optimizer)]
        return [lib.zr_config_lr(byref(self._config), self.global_steps - self.skipped_steps)]

    def get_global_grad_norm(self) -> float:
        """Of the last step's averaged gradients, before clipping."""
        return self._report.gradient_norm

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return self._n_micro_batches

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether step() updates now: all micro-batches of the step are done."""
        return self._n_done == self._n_micro_batches

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Whether the next micro-batch is the last of its step, if the step has fewer than others. All ranks say the
        same, before its forward. Gradients are divided by the micro-batches of a whole step, as ever."""
        self._is_last = is_boundary

    def weights_xxh3(self) -> int:
        """A hash of all parameters at full precision: the same at every stage and placement. All ranks call it."""
        self._check("weights_xxh3")
        value = ctypes.c_uint64()
        check(lib.zr_runtime_weights_xxh3(self._runtime, byref(value)))
        return value.value

    def average(self, value: float) -> float:
        """A number, such as a loss, averaged over the ranks. All ranks call it."""
        self._check("average")
        result = ctypes.c_double()
        check(lib.zr_runtime_average(self._runtime, float(value), byref(result)))
        return result.value

    def memory(self) -> dict[str, dict[str, Any]]:
        """Bytes that the library holds on the device and in host memory, of this rank: now and at the peak, all and by
        what they are for. Activations are PyTorch's, and not in it."""
        self._check("memory")
        result: dict[str, dict[str, Any]] = {}
        for tier, name in enumerate(("device", "host")):
            seen = _c.TierStatistics()
            lib.zr_allocator_statistics(lib.zr_runtime_allocator(self._runtime), tier, byref(seen))
            tags = {lib.zr_tag_name(i).decode(): {"live": t.live, "peak": t.peak} for i, t in enumerate(seen.by_tag)}
            result[name] = {"live": seen.live.live, "peak": seen.live.peak, "reserved_peak": seen.reserved.peak, "tags": tags}
        return result

    def _check(self, call: str) -> None:
        if not self._runtime:
            raise StateError(f"{call}: the engine is closed")
        if self._is_mixed and call != "load_checkpoint":
            raise StateError(
                f"{call}: an exception in backward has left some parameters updated and others not (update_at='backward'): "
                "go on from a checkpoint with load_checkpoint(), or close the engine"
            )
        if self._failed:
            raise StateError(f"{call}: the engine has failed before ({self._failed}) and can only be closed")

    # ---- building ----

    def _build(self, plans: list[UnitPlan], checkpoint: c_void_p | None) -> None:
        rank = self._open_rank()
        log = _c.Log(_c.LOG.sink, None, _c.LOG.level, rank.rank)
        check(lib.zr_runtime_create(byref(self._config), rank.comm, rank.device, byref(log), byref(self._runtime)))
        if checkpoint is None and self._weights is not None:
            self._weights.load_buffers(self.module)
        elif checkpoint is None:
            self._share_initial_values(rank)
        else:
            check(lib.zr_runtime_restore(self._runtime, checkpoint))
        group_of = self._add_groups()
        fills: list[Any] = []  # until commit has returned
        self._units = [self._add_unit(plan, group_of, fills) for plan in plans]
        self._params = {id(p.tensor): p for u in self._units for p in u.params}
        extents = self._add_activations() if self._stash_bytes else None
        check(lib.zr_runtime_commit(self._runtime))
        if extents is not None:
            self._stash = Stash(lib.zr_runtime_store(self._runtime), extents.first, self._stash_bytes)
        self._weights = None  # its files are closed; what a checkpoint has comes next
        # Units that come last are completed first, or nearly so, until the first backward has shown it.
        self._order = [u for u in reversed(self._units) if u.is_trainable]
        with torch.no_grad():
            for unit in self._units:
                self._adopt(unit)

    def _add_activations(self) -> _c.Extents:
        """Reserve room on drives for them."""
        extent = _c.StoreExtent(b"activations", self._stash_bytes, 0)
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

    def _add_groups(self) -> dict[int, int]:
        group_of: dict[int, int] = {}
        self._numbers: list[int] = []
        self._rates = _torch_optimizer.rates_of(self.optimizer) if self.optimizer is not None else []
        for i, group in enumerate(self._groups):
            decay = group.get("weight_decay", float(self._get("weight_decay")))
            lr = float(self._get("lr"))
            scale = group["lr"] / lr if "lr" in group else 1.0
            if self._rates:
                decay, scale = self._rates[i]
            number = ctypes.c_int()
            check(lib.zr_runtime_add_group(self._runtime, byref(_c.Group(f"group {i}".encode(), decay, scale)), byref(number)))
            self._numbers.append(number.value)
            group_of.update((id(p), number.value) for p in group["params"])
        return group_of

    def _add_unit(self, plan: UnitPlan, group_of: dict[int, int], fills: list[Any]) -> _Unit:
        unit = _Unit(plan.name)
        check(lib.zr_runtime_add_unit(self._runtime, plan.name.encode(), byref(unit.handle)))
        for name, tensor in plan.params:
            param = _Param(tensor, name, unit)
            fill = _c.FILL(_filler(self._weights.filler(tensor) if self._weights is not None else _slices_of(tensor)))
            fills.append(fill)
            dims = list(tensor.shape)
            dims[3:] = [math.prod(dims[3:])] if len(dims) > 4 else dims[3:]
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

    def _adopt(self, unit: _Unit) -> None:
        """From now on the unit's parameters are the library's memory."""
        for p in unit.params:
            p.absent = torch.full((), float("nan"), dtype=self.dtype, device=p.tensor.device)
            self._absent[self._address(p.absent)] = p
            p.absent = p.absent.expand(p.shape)
            p.tensor.grad = None
        if self._moves:
            for p in unit.params:
                p.tensor.data = p.absent if p.tensor.numel() else torch.empty(p.shape, dtype=self.dtype, device=p.tensor.device)
            return
        check(lib.zr_unit_acquire(unit.handle, _c.FORWARD))
        for p in unit.params:
            self._show(p)
            self._own.add(p.key)
        check(lib.zr_unit_release(unit.handle))

    # ---- hooks ----

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

    def _load_values(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
        """Before a module's load_state_dict: its values go to the library, and it finds what it has already."""
        self._check("load_state_dict")
        self._check_between_steps("load_state_dict")
        for name, tensor in module._parameters.items():
            value, param = state_dict.get(prefix + name), self._params.get(id(tensor))
            if param is None or not isinstance(value, torch.Tensor) or value is tensor:
                continue
            if value.shape == param.shape or (not param.shape and value.shape == (1,)):
                self._write(param, value)
                state_dict[prefix + name] = tensor

    def _note_loaded(self, module: nn.Module, _keys: Any) -> None:
        for param in (self._params.get(id(t)) for t in module._parameters.values()):
            if param is not None and param.tensor.data_ptr() == param.key:
                param.version = param.tensor._version

    def _before(self, units: list[_Unit]) -> Any:
        def hook(_module: nn.Module, _inputs: Any) -> None:
            if self._phase == _OUTSIDE:
                return self._refuse_call(units)
            for unit in units:
                if self._phase == _IN_BACKWARD:  # recomputation: its backward follows
                    self._keep(unit)
                else:
                    self._hold(unit)

        return hook

    def _refuse_call(self, units: list[_Unit]) -> None:
        if any(u.n_held == 0 for u in units):
            raise StateError(
                "the module was called by itself, and its parameters are sharded: call the engine, or use "
                "`with engine.in_forward():` or `with engine.gathered():`"
            )

    def _after(self, units: list[_Unit]) -> Any:
        def hook(_module: nn.Module, _inputs: Any, outputs: Any) -> None:
            if self._phase != _IN_FORWARD:
                return
            for tensor in _tensors_of(outputs):
                param = self._live.get(self._address(tensor))
                if param is not None:  # the output is the parameter, or a view of it
                    self._keep(param.unit)
            for unit in units:
                self._give_back(unit)

        return hook

    # ---- parameters that come and go ----

    @torch.inference_mode(False)
    def _hold(self, unit: _Unit, grads: bool = False) -> None:
        check(lib.zr_unit_acquire(unit.handle, _c.BACKWARD if grads else _c.FORWARD))
        unit.n_held += 1
        if unit.n_held > 1:
            return
        for p in unit.params:
            if p.tensor.numel() == 0:
                continue
            self._show(p)
            self._live[p.key] = p

    def _check_unchanged(self, params: Iterable[_Param]) -> None:
        """A change would be lost: the optimizer's master does not have it."""
        for p in params:
            if p.tensor.numel() and (p.tensor.data_ptr() != p.key or p.tensor._version != p.version):
                raise UnsupportedError(
                    f"parameter {p.name} was changed, or replaced, by other code than the engine: change it in "
                    "`with engine.gathered(parameter, modifier_rank=0):`, or by load_state_dict"
                )

    def _give_back(self, unit: _Unit) -> None:
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

    def _keep(self, unit: _Unit) -> None:
        """Hold a unit until its gradients are reduced, or backward ends."""
        if unit.kept:
            return
        unit.kept = True
        self._kept.append(unit)
        unit.keeps_grads = self._phase == _IN_BACKWARD and self._is_open and unit.is_trainable and not unit.reduced
        self._hold(unit, grads=unit.keeps_grads)
        if unit.keeps_grads:
            self._release_gradients(unit)

    def _drop(self, unit: _Unit) -> None:
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
        if self._phase == _IN_BACKWARD:
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
            return _Saved(param, tensor)
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
        if type(saved) is View:
            return saved.kept.stash.restore(saved)
        param = saved.param
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

    # ---- forward ----

    def __call__(self, *inputs: Any, **keywords: Any) -> Any:
        return self.forward(*inputs, **keywords)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """The module's forward."""
        self._check("forward")
        if not self._moves:
            with self._saving():
                return self.module(*inputs, **keywords)
        with self.in_forward():
            return self.module(*inputs, **keywords)

    @contextlib.contextmanager
    def in_forward(self) -> Iterator[None]:
        """Code in it may call the module, or its parts, by themselves: parameters are gathered as they are used."""
        self._check("in_forward")
        if self._phase != _OUTSIDE or not self._moves:
            with self._saving():
                yield
            return
        if torch.is_grad_enabled() and self.module.training and self._syncs:
            self._begin("forward")
        elif self._n_done == 0 and not self._is_open:
            check(lib.zr_runtime_begin_evaluation(self._runtime))
        self._phase = _IN_FORWARD
        try:
            with self._saving():
                yield
            while self._held_by_use:
                self._give_back(self._held_by_use.pop())
        except BaseException:
            self._give_all_back()
            raise
        finally:
            self._phase = _OUTSIDE

    def _begin(self, call: str) -> None:
        if self._is_open:
            return
        if self._n_done == self._n_micro_batches:
            raise StateError(
                f"{call}: the step's {self._n_micro_batches} micro-batches are done; call step() (grad_accum, "
                "DeepSpeed's gradient_accumulation_steps, says how many it has)"
            )
        self._n_open = self._n_micro_batches - self._n_done if self._is_last else 1
        check(lib.zr_runtime_begin_micro_batches(self._runtime, self._n_open))
        self._is_open, self._is_last = True, False
        for unit in self._units:
            unit.reduced = False

    # ---- backward ----

    def backward(self, loss: torch.Tensor, gradient: torch.Tensor | None = None, retain_graph: bool = False) -> None:
        """The gradients of a micro-batch. They are averaged over its step's micro-batches and the ranks."""
        self._check("backward")
        if self._phase != _OUTSIDE:
            raise StateError(f"backward within {self._phase}")
        if not isinstance(loss, torch.Tensor):
            raise ArgumentError(f"loss is {type(loss).__name__}, has to be a tensor")
        if loss.grad_fn is None:
            raise ArgumentError("loss depends on no parameter: it has no grad_fn (was it made under torch.no_grad()?)")
        if self._syncs:
            self._begin("backward")
        self._phase = _IN_BACKWARD
        try:
            if self._syncs:
                self._expect(loss)
            with self._saving():
                loss.backward(gradient, retain_graph=retain_graph)
            if self._syncs:
                self._reduce_rest()
            for unit in list(self._kept):
                self._drop(unit)
        except BaseException as error:
            self._give_step_up(error)
            raise
        finally:
            self._phase = _OUTSIDE
            for handle in self._shared_hooks:
                handle.remove()
            self._shared_hooks.clear()
        if self._syncs:
            if not self._knows_order:
                self._learn_order()
            self._is_open = False
            self._n_done += self._n_open

    def _give_step_up(self, error: BaseException) -> None:
        """After an exception in backward: the micro-batches of this step are dropped, and the next backward begins it anew.

        Units are reduced to the last, so that ranks stay together whose exceptions came at other places.
        """
        try:
            if isinstance(error, _c.Error) and not isinstance(error, (StateError, UnsupportedError)):
                raise error  # the library's
            self._give_all_back()
            if self._syncs and self._is_open:
                for unit in self._order:
                    if not unit.reduced:
                        self._acquire_gradients(unit)
                        check(lib.zr_unit_reduce(unit.handle))
                        unit.reduced = True
                        self._drop(unit)
            try:
                check(lib.zr_runtime_drop_step(self._runtime))
            except StateError:
                self._is_mixed = self._get("update_at") == "backward"
                if not self._is_mixed:
                    raise
        except _c.Error:
            self._failed = f"{type(error).__name__} in backward"
        for p in self._params.values():
            p.tensor.grad = None
        self._is_open, self._n_done = False, 0

    def _expect(self, loss: torch.Tensor) -> None:
        """How many gradients each unit waits for: of the parameters that the loss depends on."""
        used, shared, is_whole = _leaves_of(loss)
        for leaf in used.values():
            param = self._params.get(id(leaf))
            if param.is_frozen if param is not None else isinstance(leaf, nn.Parameter):
                raise UnsupportedError(
                    f"parameter {param.name} was frozen when the engine was made" if param is not None else
                    f"a parameter of shape {tuple(leaf.shape)} is new: the model did not have it when the engine was made"
                )
        for unit in self._units:
            unit.n_awaited = sum(id(p.tensor) in used for p in unit.params) if is_whole else -1
        for key, uses in shared.items():
            if is_whole and key in self._params:
                self._take_apart(self._params[key], uses)
        self._n_reduced = 0
        self._reduce_complete()

    def _take_apart(self, param: _Param, uses: list[tuple[Any, int]]) -> None:
        """A parameter that several nodes use: what each adds to its gradient goes to the library at once, in the order in which autograd
        would add it, and only the last waits to be the gradient. Autograd would hold all, of a tied embedding's size each."""
        n_left = len(uses)

        def hook_of(places: list[int]) -> Any:
            def hook(gradients: tuple[Any, ...], _: Any) -> Any:
                nonlocal n_left
                kept = list(gradients)
                for i in places:
                    n_left -= 1
                    if n_left and kept[i] is not None:
                        self._bring(param, kept[i])
                        kept[i] = None
                return tuple(kept)

            return hook

        places_of: dict[Any, list[int]] = {}
        for node, i in uses:
            places_of.setdefault(node, []).append(i)
        self._shared_hooks += [node.register_hook(hook_of(places)) for node, places in places_of.items()]

    def _take_gradient(self, tensor: torch.Tensor) -> None:
        """Called by autograd when a parameter's gradient is complete."""
        if self._phase != _IN_BACKWARD:
            raise StateError("backward was called on the loss by itself; call engine.backward(loss)")
        if not self._syncs:
            return
        param = self._params[id(tensor)]
        self._bring(param)
        unit = param.unit
        if not self._knows_order:
            self._n_gradients += 1
            unit.completed = self._n_gradients
        unit.n_awaited -= 1
        if unit.n_awaited == 0:
            self._reduce_complete()

    def _bring(self, param: _Param, gradient: torch.Tensor | None = None) -> None:
        """Move a gradient to the library: what autograd has left in the parameter, or a part of it."""
        if gradient is None:
            gradient, param.tensor.grad = param.tensor.grad, None
        unit = param.unit
        if unit.reduced:
            raise StateError(
                f"parameter {param.name} has another gradient after those of its unit {unit.name!r} were complete"
            )
        if gradient.layout != torch.strided:
            raise UnsupportedError(f"parameter {param.name} has a gradient of layout {gradient.layout}: make it dense")
        if param.tensor.numel() == 0:
            return
        # Whether backward reads parameters depends on what this rank has used of the unit: gather them in
        # any case, since all ranks have to.
        if self._gathers and unit.n_held == 0:
            self._keep(unit)
        self._acquire_gradients(unit)
        self._put(gradient, param)

    def _acquire_gradients(self, unit: _Unit) -> None:
        """Once: a unit that is updated in backward has one user by then."""
        if not unit.holds_grads and not unit.keeps_grads:
            check(lib.zr_unit_acquire(unit.handle, _c.GRADIENTS))
            unit.holds_grads = True

    def _release_gradients(self, unit: _Unit) -> None:
        if unit.holds_grads:
            unit.holds_grads = False
            check(lib.zr_unit_release(unit.handle))

    def _learn_order(self) -> None:
        """After the first backward: units are reduced in the order in which they were completed, if that was the same on
        all ranks. No sum depends on it."""
        self._knows_order = True
        order = sorted(range(len(self._order)), key=lambda i: self._order[i].completed or self._n_gradients + 1)
        if self._is_the_same(zlib.crc32(repr(order).encode())):
            self._order = [self._order[i] for i in order]

    def _is_the_same(self, value: int) -> bool:
        """Whether a number is, on all ranks."""
        values = (_c.c_double * 1)(value)
        found = (_c.c_double * self.world_size)()
        check(lib.zr_runtime_share(self._runtime, values, 1, found))
        return all(other == value for other in found)

    def _reduce_complete(self) -> None:
        """Reduce, in order, what is complete."""
        while self._n_reduced < len(self._order) and self._order[self._n_reduced].n_awaited == 0:
            self._reduce(self._order[self._n_reduced])
            self._n_reduced += 1

    def _reduce(self, unit: _Unit) -> None:
        for p in unit.params:  # what no_sync has left
            if p.tensor.grad is not None:
                self._bring(p)
        self._acquire_gradients(unit)
        check(lib.zr_unit_reduce(unit.handle))
        unit.reduced = True
        self._drop(unit)

    def _reduce_rest(self) -> None:
        for unit in self._order[self._n_reduced :]:
            self._reduce(unit)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward in it add up in each rank's own memory, beyond the micro-batches of a step: the
        next backward outside of it reduces them with its own. They are added, not averaged."""
        self._check("no_sync")
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    # ---- step ----

    def step(self) -> bool:
        """Clip, update, and go on with the next step, when all micro-batches of the step are done; before, nothing.

        Returns whether it has updated: false also for a step whose gradients were not finite.
        """
        self._check("step")
        if self._n_done == 0 or self._is_open:
            raise StateError("step: no backward was called before it")
        if not self.is_gradient_accumulation_boundary():
            return False
        if not self._moves:
            self._check_unchanged(self._params.values())
        before = self._report.n_skipped
        if self.optimizer is not None:
            self._follow_rates()
        check(lib.zr_runtime_step(self._runtime, byref(self._report)))
        self._n_done = 0
        has_updated = self._report.n_skipped == before
        if self.optimizer is not None:
            self.optimizer._opt_called = True  # else schedulers warn that it was not called
        if self.lr_scheduler is not None and has_updated:
            self.lr_scheduler.step()
        return has_updated

    def _follow_rates(self) -> None:
        """What schedulers, or the script, have made of the optimizer's groups."""
        rates = _torch_optimizer.rates_of(self.optimizer)
        if len(rates) != len(self._rates):
            raise UnsupportedError("optimizer: a group was added after the engine was made")
        for number, before, (decay, lr) in zip(self._numbers, self._rates, rates):
            if before != (decay, lr):
                check(lib.zr_runtime_change_group(self._runtime, number, decay, lr))
        self._rates = rates

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: gradients are the library's, and begin at zero in each step."""

    # ---- looking at parameters ----

    @contextlib.contextmanager
    def gathered(
        self, params: Iterable[nn.Parameter] | nn.Parameter | None = None, modifier_rank: int | None = None
    ) -> Iterator[None]:
        """Whole parameters are there to be looked at, as at stage 0. All ranks call it with the same ones.

        params: some of the module's; None: all
        modifier_rank: the rank that may change them, between steps: what it has made of them is all ranks' when the
            context ends, in place of what others have. None: a change would be lost, and is an error
        """
        self._check("gathered")
        if self._phase != _OUTSIDE:
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
            before = [_checksum(p.tensor) for p in fixed]
            yield
            changed = next((p for p, was in zip(fixed, before) if _checksum(p.tensor) != was), None)
            if changed is None and modifier_rank is not None:
                for p in wanted:
                    self._write_back(p, modifier_rank)
        except BaseException:
            for p in [p for u in units[:n_held] for p in u.params]:
                self._accept(p)  # what is given back is dropped
            raise
        finally:
            for unit in units[:n_held]:
                self._give_back(unit)
        if changed is not None:
            raise UnsupportedError(
                f"gathered: parameter {changed.name} was changed: say by which rank (modifier_rank=0), and that it is one of params"
            )

    def _write_back(self, param: _Param, root: int) -> None:
        """What a rank has made of a parameter, to all. Elements of which it changed nothing keep the rest of their
        master's precision."""
        tensor = param.tensor.data
        if tensor.shape != param.shape:
            raise ArgumentError(f"gathered: parameter {param.name} has shape {tuple(tensor.shape)} now, had {tuple(param.shape)}")
        if not tensor.numel():
            return
        if self.dtype != torch.float32 and not param.is_frozen:
            master = torch.empty(param.shape)
            check(lib.zr_param_read(param.handle, 0, master.numel(), master.data_ptr()))
            tensor = torch.where(master.to(self.dtype) == tensor, master, tensor.float())
        self._write(param, tensor, root)
        self._accept(param)

    def _accept(self, param: _Param) -> None:
        """The parameter is the library's memory, as it is now."""
        if param.tensor.numel() and param.tensor.data_ptr() != param.key:
            param.tensor.data = _tensor_at(param.key, self.dtype, param.shape)
        param.version = param.tensor._version

    def _write(self, param: _Param, value: torch.Tensor, root: int = 0) -> None:
        """New values, of one rank, wherever the parameter lives."""
        flat = value.detach().reshape(-1)
        for first in range(0, flat.numel(), _WRITTEN_ELEMS):
            part = flat[first : first + _WRITTEN_ELEMS]
            if self.rank == root:
                part = part.to("cpu", torch.float32).contiguous()
            pointer = part.data_ptr() if self.rank == root else None
            check(lib.zr_param_write(param.handle, first, part.numel(), pointer, root))

    def _check_between_steps(self, call: str) -> None:
        if self._n_done or self._is_open:
            raise StateError(f"{call} within a step: call it after step(); a forward in training mode without backward begins one, too")

    def _find(self, tensor: nn.Parameter) -> _Param:
        if id(tensor) not in self._params:
            raise ArgumentError("gathered: a tensor is not a parameter of the engine's module")
        return self._params[id(tensor)]

    def state_dict(self, rank: int | None = None, exclude_frozen_parameters: bool = False) -> dict[str, torch.Tensor]:
        """Parameters at full precision, fp32, and buffers, as the module's state_dict names them. All ranks
        call it, outside of micro-batches, and each gets a copy of everything.

        rank: only this one gets it, and the others an empty one; None: all
        exclude_frozen_parameters: without those, as for adapters
        """
        self._check("state_dict")
        values: dict[int, torch.Tensor] = {}
        for unit in self._units:
            for p in unit.params:
                if exclude_frozen_parameters and p.is_frozen:
                    continue
                value = torch.empty(p.shape, dtype=torch.float32)
                check(lib.zr_param_read(p.handle, 0, value.numel(), value.data_ptr()))
                if rank in (None, self.rank):
                    values[id(p.tensor)] = value
        if rank not in (None, self.rank):
            return {}
        named = self.module.named_parameters(remove_duplicate=False)
        state = {name: values[id(tensor)] for name, tensor in named if id(tensor) in values}
        state.update(_buffers_of(self.module))
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Give parameters, in full precision, and buffers other values, as the module's load_state_dict does, which may
        be called as well. All ranks call it, between steps. Parameters become rank 0's; the optimizer's moments stay."""
        self._check("load_state_dict")
        self._check_between_steps("load_state_dict")
        return self.module.load_state_dict(state_dict, strict=strict)

    # ---- checkpoints ----

    def save_checkpoint(
        self, save_dir: str | os.PathLike[str], tag: None = None, client_state: Mapping[str, Any] | None = None,
        keep: int = 0,
    ) -> pathlib.Path:
        """Save parameters, optimizer state, buffers and what goes on with them. All ranks call it, after step().

        client_state: what can be written as JSON; load_checkpoint gives it back. Rank 0's is saved
        keep: so many of the newest checkpoints stay; 0: all
        Returns the checkpoint's folder, in save_dir.
        """
        self._check("save_checkpoint")
        if tag is not None:
            raise UnsupportedError("save_checkpoint: checkpoints are named for their step; tag has to be None")
        self._check_between_steps("save_checkpoint")
        if self._saved_model is None and self.rank == 0:
            self._saved_model = model_of(self.module) or {}
        state = {"client_state": dict(client_state or {}), "buffers": _encode_buffers(self.module)}
        if self._saved_model:
            state["model"] = self._saved_model  # for zero-train
        options = _c.SaveOptions(os.fsencode(save_dir), json.dumps(state).encode(), False, keep)
        options.secret = self._secret
        report = _c.SaveReport()
        check(lib.zr_runtime_save(self._runtime, byref(options), byref(report)))
        return pathlib.Path(save_dir) / report.name.decode()

    def load_checkpoint(self, load_dir: str | os.PathLike[str], tag: str | None = None) -> tuple[pathlib.Path, dict[str, Any]]:
        """Go on from a checkpoint, of any stage, placement and number of ranks. All ranks call it.

        It may be zero-train's, of the same architecture. What was saved here of a GPT-2 or Llama, zero-train goes on from.

        load_dir: a folder of checkpoints, of which the newest complete one is taken, or one of them
        tag: its name in the folder, "step-00000060"; None: the newest
        Returns its folder and the client_state that was saved.
        """
        self._check("load_checkpoint")
        self._check_between_steps("load_checkpoint")
        checkpoint = c_void_p()
        path = pathlib.Path(load_dir) / (tag or "")
        secret = self._secret if self._signs == "require" else None
        check(lib.zr_checkpoint_open_signed(os.fsencode(path), secret, byref(_c.LOG), byref(checkpoint)))
        try:
            info = _c.CheckpointInfo()
            lib.zr_checkpoint_info(checkpoint, byref(info))
            path = pathlib.Path(os.fsdecode(info.path))
            state = json.loads(lib.zr_checkpoint_trainer_json(checkpoint) or b"{}")
            saved = [lib.zr_checkpoint_tensor(checkpoint, i).contents.name.decode() for i in range(info.n_tensors)]
            self._saved_names = names_in(saved, self._saved_names)
            self._saved_model = state.get("model", self._saved_model)
            self._load(checkpoint)
            self._report.step, self._report.n_skipped = info.step, info.step - info.n_updates
        finally:
            lib.zr_checkpoint_close(byref(checkpoint))
        _decode_buffers(self.module, state.get("buffers", {}), path)
        return path, state.get("client_state", {})

    def _load(self, checkpoint: c_void_p) -> None:
        """With a new runtime: one begins with what a checkpoint has, or its first values."""
        plans = [UnitPlan(u.name, [(p.name, p.tensor) for p in u.params]) for u in self._units]
        self._remove_hooks()
        self._close_stash()
        lib.zr_runtime_destroy(byref(self._runtime))
        self._live.clear()
        self._absent.clear()
        self._own.clear()
        try:
            self._build(plans, checkpoint)
            self._add_hooks()
            self._is_mixed = False
        except BaseException as error:
            self._failed = f"{type(error).__name__} in load_checkpoint"
            raise

    # ---- the module's ----

    def train(self, mode: bool = True) -> Engine:
        """The module's train(mode)."""
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        """The module's eval()."""
        return self.train(False)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The module's parameters; at stage 3 see gathered()."""
        return self.module.parameters()

    def close(self) -> None:
        """Give back everything. The module's parameters are left without values."""
        if not self._runtime:
            return
        self._remove_hooks()
        for p in self._params.values():
            p.tensor.data = p.absent
        self._close_stash()
        lib.zr_runtime_destroy(byref(self._runtime))
        if self in _c._runtimes:
            _c._runtimes.remove(self)

    def _close_stash(self) -> None:
        stash, self._stash = self._stash, None
        if stash is not None:
            stash.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# ---- helpers -----------------------------------------------------------------------------------


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from _tensors_of(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors_of(v)


def _leaves_of(loss: torch.Tensor) -> tuple[dict[int, torch.Tensor], dict[int, list[tuple[Any, int]]], bool]:
    """The leaves that a loss depends on, by id; of those that several nodes use, these and which of their inputs they are; and
    whether these are all: a node may begin a backward of its own, as reentrant checkpointing does."""
    leaves: dict[int, torch.Tensor] = {}
    uses: dict[Any, list[tuple[Any, int]]] = {}
    is_whole = True
    seen = {loss.grad_fn}
    nodes = [loss.grad_fn] if loss.grad_fn is not None else []
    while nodes:
        node = nodes.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves[id(variable)] = variable
        elif node.name() == "CheckpointFunctionBackward":
            is_whole = False
        for i, (below, _) in enumerate(node.next_functions):
            if below is None:
                continue
            if hasattr(below, "variable"):
                uses.setdefault(below, []).append((node, i))
            if below not in seen:
                seen.add(below)
                nodes.append(below)
    return leaves, {id(leaf.variable): found for leaf, found in uses.items() if len(found) > 1}, is_whole


def _slices_of(tensor: nn.Parameter) -> Any:
    flat = tensor.data.reshape(-1)
    return lambda first, n_elems: flat[first : first + n_elems]


def _filler(values_of: Any) -> Any:
    """Initial values of a parameter, as the library asks for them."""

    def fill(_context: int, first: int, n_elems: int, values: Any) -> None:
        memory = (ctypes.c_float * n_elems).from_address(ctypes.addressof(values.contents))
        torch.frombuffer(memory, dtype=torch.float32).copy_(values_of(first, n_elems))

    return fill


def _checksum(tensor: torch.Tensor) -> int:
    """Changes with any element, or nearly so."""
    data = tensor.data.contiguous()
    size = data.numel() * data.itemsize
    return zlib.crc32((c_char * size).from_address(data.data_ptr())) if size else 0


def _read_groups(model: nn.Module, groups: Iterable[Any] | None, is_optimizer: bool) -> list[dict[str, Any]]:
    """model_parameters as dictionaries; what is in none is of the library's own group, 0."""
    if groups is None:
        return []
    groups = list(groups)
    if groups and not isinstance(groups[0], Mapping):
        groups = [{"params": groups}]
    known = {id(p) for p in model.parameters()}
    seen: set[int] = set()
    result = []
    for group in groups:
        group = dict(group)
        params = group["params"] if not isinstance(group.get("params"), torch.Tensor) else [group["params"]]
        group["params"] = list(params)
        for key in group:
            if key not in ("params", "weight_decay", "lr", "name") and not is_optimizer:
                raise UnsupportedError(f"model_parameters: a group's {key!r} is not supported; groups have params, weight_decay and lr")
        for p in group["params"]:
            if id(p) not in known or id(p) in seen:
                raise ArgumentError("model_parameters: a tensor is not a parameter of the model, or is in two groups")
            seen.add(id(p))
        result.append(group)
    missing = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in seen]
    if missing:
        raise ArgumentError(f"the parameter groups lack {len(missing)} that require gradients, such as {missing[0]}: add them, or set requires_grad to False")
    return result


def _read_secret(sign: str, path: str | os.PathLike[str] | None) -> Any:
    """A pointer to what checkpoints are signed with; None: they are not."""
    if sign not in ("off", "write", "require"):
        raise ArgumentError(f"checkpoint_sign={sign!r}: allowed are 'off', 'write' and 'require'")
    if sign == "off":
        if path is not None:
            raise ArgumentError("comm_secret has no effect without checkpoint_sign='write' or 'require'; ranks take theirs from ZR_COMM_SECRET")
        return None
    launch, is_launched = _c.Launch(), c_bool()
    if path is not None:
        check(lib.zr_secret_read(byref(_c.LOG), os.fsencode(path), byref(launch.secret)))
    else:
        check(lib.zr_launch_from_environment(byref(_c.LOG), byref(launch), byref(is_launched)))
    if not launch.secret.is_given:
        raise ArgumentError(f"checkpoint_sign={sign!r}: there is no secret to sign with; give comm_secret=FILE, or the variable ZR_COMM_SECRET")
    return ctypes.pointer(launch.secret)


# ---- buffers -----------------------------------------------------------------------------------


def _buffers_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Those that a state_dict has."""
    found = {}
    for prefix, m in module.named_modules(remove_duplicate=False):
        for name, buffer in m._buffers.items():
            if buffer is not None and name not in m._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


def _encode_buffers(module: nn.Module) -> dict[str, Any]:
    buffers = _buffers_of(module)
    size = sum(b.numel() * b.itemsize for b in buffers.values())
    if size > _BUFFERS_MOST_BYTES:
        raise UnsupportedError(f"save_checkpoint: the module's buffers have {size} bytes; up to {_BUFFERS_MOST_BYTES} can be saved")
    return {
        name: [str(b.dtype).removeprefix("torch."), list(b.shape),
               base64.b64encode(bytes(b.detach().contiguous().view(-1).view(torch.uint8).tolist())).decode()]
        for name, b in buffers.items()
    }


def _decode_buffers(module: nn.Module, saved: Mapping[str, Any], path: pathlib.Path) -> None:
    buffers = _buffers_of(module)
    for name, (dtype, shape, text) in saved.items():
        if name not in buffers or list(buffers[name].shape) != shape:
            raise ArgumentError(f"{path}: the module has no buffer {name} of shape {shape}")
        data = bytearray(base64.b64decode(text))
        value = torch.frombuffer(data, dtype=getattr(torch, dtype)).view(shape) if data else torch.empty(shape)
        buffers[name].data.copy_(value)
