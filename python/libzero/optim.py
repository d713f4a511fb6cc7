"""Optimizers of PyTorch whose state is the library's: in host memory within a budget, or on drives.

    optimizer = libzero.optim.AdamW(model.parameters(), lr=1e-4, offload="nvme", nvme_path="/drive", nvme_capacity="64GiB")

They are torch.optim.Optimizers: schedulers, gradient clipping, accumulation, several groups and state dictionaries work as
with torch.optim's own, whose numbers and states they have. Parameters and gradients stay PyTorch's. Of bf16 parameters the
state has an fp32 master, which torch.optim lacks. One process: nothing is sharded, and nothing reduced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import _c, _options
from ._c import ArgumentError, StateError, UnsupportedError, byref, c_size_t, c_void_p, check, lib
from ._torch_optimizer import NoState

__all__ = ["SGD", "AdamW", "Lion"]

_DTYPES = {torch.float32: _c.F32, torch.bfloat16: _c.BF16}
#: Options that say something of state elsewhere.
_OPTIONS = (
    "block_size", "files_per_path", "host_memory", "nvme_buffers", "nvme_capacity", "nvme_path", "nvme_verify",
    "pipeline_read", "pipeline_write", "queue_depth", "state_in_host", "sub_group", "submit_batch",
)  # fmt: skip


class _Library:
    """An updater of the library, and the device that it is on."""

    def __init__(self, config: _c.Config, dtype: torch.dtype, sizes: list[int]) -> None:
        options = lib.zr_device_options_default()
        options.log = _c.LOG
        self.device, self.updater = c_void_p(), c_void_p()
        check(lib.zr_device_open(b"host", byref(options), byref(self.device)))
        n_elems = (c_size_t * len(sizes))(*sizes)
        try:
            check(lib.zr_updater_create(byref(config), self.device, byref(_c.LOG), _DTYPES[dtype], n_elems, len(sizes), byref(self.updater)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        lib.zr_updater_destroy(byref(self.updater))
        lib.zr_device_close(byref(self.device))


class _Offloaded(torch.optim.Optimizer):
    """What all have in common."""

    _name: str  # of the library's optimizer
    _arrays: tuple[str, ...]  # of its state, behind the master

    def __init__(self, params: Any, defaults: dict[str, Any], offload: str, options: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self._open(offload, options)

    def _open(self, offload: str, options: dict[str, Any]) -> None:
        """Let the library have the state, which begins here."""
        options = _options.from_torch(options)
        self._made = (offload, options)
        self.state = NoState("state_dict() has it, and load_state_dict() changes it")
        self._index = {id(p): i for i, p in enumerate(self._trained())}  # in the library
        self._params = list(self._trained())
        if not self._params:
            raise ArgumentError("libzero.optim: no parameter requires gradients")
        self._check_params()
        self._dtype = self._params[0].dtype
        self._steps = [0] * len(self._params)
        if offload not in ("cpu", "nvme"):
            raise ArgumentError(f"offload={offload!r}: allowed: 'cpu' (the state in host memory) and 'nvme' (on drives)")
        for keyword in options:
            if keyword not in _OPTIONS:
                raise TypeError(f"libzero.optim.{type(self).__name__}: unknown option {keyword!r}; allowed: {', '.join(_OPTIONS)}")
        config = _options.configure(None, {"optimizer": self._name, "offload_optimizer": offload, **options}, 1)
        library = _Library(config, self._dtype, [p.numel() for p in self._params])
        self._library = library
        self.close: Callable[[], Any] = weakref.finalize(self, library.close)
        """Free the state: its memory, or its space on drives."""
        if self._dtype != torch.float32:
            for i, p in enumerate(self._params):
                self._write(i, 0, p.detach())

    def _trained(self) -> Iterable[torch.Tensor]:
        return (p for group in self.param_groups for p in group["params"] if p.requires_grad)

    def _check_params(self) -> None:
        for p in self._params:
            where = f"a parameter of shape {tuple(p.shape)}"
            if p.device.type != "cpu":
                raise UnsupportedError(f"libzero.optim: {where} is on {p.device}; the device is the host: move the model with .cpu()")
            if p.dtype not in _DTYPES:
                raise UnsupportedError(f"libzero.optim: {where} is {p.dtype}; allowed: float32 and bfloat16")
            if p.dtype != self._params[0].dtype:
                raise UnsupportedError(f"libzero.optim: parameters are {self._params[0].dtype} and {p.dtype}: make an optimizer for each")
            if p.layout != torch.strided or not p.is_contiguous():
                raise UnsupportedError(f"libzero.optim: {where} is not contiguous: its strides are {p.stride()}")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A group; before the optimizer is made."""
        if hasattr(self, "_library"):
            raise UnsupportedError("libzero.optim: groups cannot be added later: create the optimizer with all groups")
        super().add_param_group(param_group)

    # ---- steps ----

    def _hyper(self, group: dict[str, Any]) -> tuple[float, ...]:
        """The numbers of the library's rule, in its order."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates, held = [], []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    updates.append(self._update_of(p, group, held))
        updates.sort(key=lambda update: update.tensor)
        if updates:
            self._check_open()
            check(lib.zr_updater_update(self._library.updater, (_c.TensorUpdate * len(updates))(*updates), len(updates)))
        for update in updates:
            self._steps[update.tensor] = update.update.step
            torch.autograd.graph.increment_version(self._params[update.tensor])
        return loss

    def _update_of(self, p: torch.Tensor, group: dict[str, Any], held: list[torch.Tensor]) -> _c.TensorUpdate:
        index = self._index.get(id(p))
        if index is None:
            raise UnsupportedError(f"libzero.optim: a parameter of shape {tuple(p.shape)} did not require gradients when the optimizer was made")
        grad = p.grad
        if grad.layout != torch.strided:
            raise UnsupportedError(f"libzero.optim: a gradient of layout {grad.layout} for a parameter of shape {tuple(p.shape)}: make it dense")
        if p.dtype != self._dtype or not p.is_contiguous() or p.device.type != "cpu":
            raise UnsupportedError(f"libzero.optim: a parameter of shape {tuple(p.shape)} was moved or converted after the optimizer was made")
        if grad.dtype not in _DTYPES or not grad.is_contiguous():
            grad = grad.to(torch.float32).contiguous()
        held.append(grad)
        update = _c.Update(
            grad=grad.data_ptr(),
            param=p.data_ptr(),
            grad_dtype=_DTYPES[grad.dtype],
            grad_scale=1.0,
            lr=float(group["lr"]),
            weight_decay=float(group["weight_decay"]),
            step=self._steps[index] + 1,
        )
        for i, value in enumerate(self._hyper(group)):
            update.hyper[i] = float(value)
        return _c.TensorUpdate(index, update)

    def _check_open(self) -> None:
        if not self._library.updater:
            raise StateError("libzero.optim: the optimizer is closed")

    # ---- state ----

    def __getstate__(self) -> dict[str, Any]:
        """For copies, by copy.deepcopy or pickle: they have a state of their own."""
        self._check_open()
        states = [self._state_of(i) if steps else {} for i, steps in enumerate(self._steps)]
        own = {"made": self._made, "states": states}
        return {"defaults": self.defaults, "param_groups": self.param_groups, "state": {}, **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        made, states = state.get("made"), state.get("states", [])
        super().__setstate__({k: v for k, v in state.items() if k not in ("made", "states")})
        if made is not None:
            self._open(*made)
            for i, values in enumerate(states):
                self._set_state(i, values)

    def memory(self) -> dict[str, int]:
        """Bytes of host memory that the library holds for it: now, and at the peak."""
        self._check_open()
        seen = _c.TierStatistics()
        lib.zr_allocator_statistics(lib.zr_updater_allocator(self._library.updater), 1, byref(seen))
        return {"live": seen.live.live, "peak": seen.live.peak}

    def _names(self) -> list[tuple[int, str]]:
        """Arrays that the state has, by number."""
        arrays = list(enumerate(self._arrays, 1))
        return arrays if self._dtype == torch.float32 else [(0, "master"), *arrays]

    def _read(self, index: int, array: int) -> torch.Tensor:
        values = torch.empty(self._params[index].shape, dtype=torch.float32)
        check(lib.zr_updater_read(self._library.updater, index, array, values.data_ptr() or None))
        return values

    def _write(self, index: int, array: int, value: torch.Tensor) -> None:
        shape = self._params[index].shape
        if value.shape != shape:
            raise ArgumentError(f"libzero.optim: state of shape {tuple(value.shape)} for a parameter of shape {tuple(shape)}")
        value = value.to("cpu", torch.float32).contiguous()
        check(lib.zr_updater_write(self._library.updater, index, array, value.data_ptr() or None))

    def state_dict(self) -> dict[str, Any]:
        """As torch.optim's: the state as tensors in memory; for bf16 parameters with a "master"."""
        self._check_open()
        result = super().state_dict()
        ids = [i for group in result["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        result["state"] = {}
        for number, p in zip(ids, params):
            index = self._index.get(id(p))
            if index is not None and self._steps[index]:
                result["state"][number] = self._state_of(index)
        return result

    def _state_of(self, index: int) -> dict[str, Any]:
        arrays = {name: self._read(index, array) for array, name in self._names()}
        return {"step": torch.tensor(float(self._steps[index])), **arrays}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state_dict of this class or of torch.optim's."""
        self._check_open()
        empty = self.state
        super().load_state_dict({**state_dict, "state": {}})
        self.state = empty
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for number, p in zip(ids, params):
            index = self._index.get(id(p))
            if index is not None:
                self._set_state(index, state_dict["state"].get(number, {}))

    def _set_state(self, index: int, state: dict[str, Any]) -> None:
        p = self._params[index]
        for array, name in self._names():
            value = state.get(name)
            if value is None:
                value = p.detach() if name == "master" else torch.zeros(p.shape)
            self._write(index, array, value)
        # torch's SGD counts no steps, and needs none.
        self._steps[index] = int(state.get("step", 1 if state else 0))


class AdamW(_Offloaded):
    """torch.optim.AdamW, with its state elsewhere.

    offload: "cpu", host memory that the library holds within host_memory; or "nvme", files in nvme_path
    options: nvme_path, nvme_capacity, nvme_buffers, state_in_host, sub_group, host_memory: libzero.options() has them
    """

    _name, _arrays = "adamw", ("exp_avg", "exp_avg_sq")

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, *, offload: str = "cpu", **options: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, offload, options)

    def _hyper(self, group: dict[str, Any]) -> tuple[float, ...]:
        return (*group["betas"], group["eps"])


class Lion(_Offloaded):
    """Chen et al. 2023: the sign of a mean of gradients, and decoupled weight decay. Options are those of AdamW."""

    _name, _arrays = "lion", ("exp_avg",)

    def __init__(
        self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0,
        *, offload: str = "cpu", **options: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, offload, options)

    def _hyper(self, group: dict[str, Any]) -> tuple[float, ...]:
        return tuple(group["betas"])


class SGD(_Offloaded):
    """torch.optim.SGD without dampening, with its state elsewhere. Options are those of AdamW."""

    _name, _arrays = "sgd", ("momentum_buffer",)

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
        *, offload: str = "cpu", **options: Any,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
        super().__init__(params, defaults, offload, options)

    def _hyper(self, group: dict[str, Any]) -> tuple[float, ...]:
        return group["momentum"], float(group["nesterov"])
