"""A plan of any module: an engine on a simulated rank, which takes the steps that the real one takes.

The library's simulated device stores nothing and counts everything, so model states are planned to the byte. The module computes one
micro-batch for each step, on the meta device, where tensors have shapes alone, or really; what its tensors
take is recorded meanwhile.
"""

from __future__ import annotations

import contextlib
import copy
import html
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import _c, _torch_optimizer, programs
from ._c import ArgumentError, byref, c_bool, c_void_p, check, lib
from .engine import Engine
from .hooks import tensors_of
from .parameters import set_data

_N_STEPS = 3  # parameters are prefetched from the second step on


class _Recorder(TorchDispatchMode):
    """Bytes of the tensors that are made in it, while they are there. A condition on values that there are not, on the
    meta device, is true: those of transformers' models ask whether something is as usual."""

    def __init__(self, known: Iterator[torch.Tensor]) -> None:
        super().__init__()
        self.live = self.peak = self.n_assumed = 0
        self._sizes: dict[int, int] = {}
        self._known = {t.untyped_storage()._cdata for t in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta and args[0].dtype == torch.bool:
            self.n_assumed += 1
            return True
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            self._note(tensor)
        return result

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known or key in self._sizes or storage.nbytes() == 0:
            return
        self._sizes[key] = storage.nbytes()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)


class _PlannedEngine(Engine):
    """An engine on a simulated rank. Parameters are gathered and given back as ever; their values are the module's."""

    def __init__(self, model: nn.Module, config: Any, n_ranks: int, hardware: str | None, keywords: dict[str, Any]) -> None:
        self._simulated = _simulated_rank(n_ranks, hardware)
        self._values = {id(p): p.data for p in model.parameters()}  # the module's
        self._shown: dict[int, torch.Tensor] = {}  # the same, in the engine's dtype
        try:
            super().__init__(model, config, **keywords)
        except BaseException:
            self._restore(model)
            raise

    def _open_rank(self) -> Any:
        return self._simulated

    def _build(self, plans: Any, checkpoint: Any) -> None:
        lib.zr_config_simulate(byref(self._config))
        super()._build(plans, checkpoint)

    def _check_params(self) -> None:
        self._shown = {key: value.to(self.dtype) for key, value in self._values.items()}

    def _share_initial_values(self, rank: Any) -> None:
        pass

    @staticmethod
    def _address(tensor: torch.Tensor) -> int:
        return tensor.untyped_storage()._cdata

    def _show(self, p: Any) -> None:
        set_data(p, self._shown[id(p.tensor)])
        p.key = self._address(self._shown[id(p.tensor)])
        p.accept()

    def _hide(self, unit: Any) -> list[Any]:
        for p in unit.params:
            if p.tensor.numel():
                del self._live[p.key]
                p.key = 0
                set_data(p, p.absent, is_absent=True)
        return []

    def _has_whole_gradient(self, p: Any) -> bool:
        return False

    def _follow_changes(self) -> None:
        pass

    def _leave_out(self) -> None:
        pass

    def _share(self, value: float) -> list[float]:
        return [value]

    def _check_unchanged(self, params: Any) -> None:
        pass

    def _put(self, gradient: torch.Tensor, p: Any, lookup: Any) -> None:
        check(lib.zr_param_grad(p.handle, byref(c_void_p()), byref(c_bool())))

    def close(self) -> None:
        super().close()
        self._restore(self.module)

    def _restore(self, model: nn.Module) -> None:
        for p in model.parameters():
            p.data, p.grad = self._values[id(p)], None
        lib.zr_comm_destroy(byref(self._simulated.comm))
        lib.zr_device_close(byref(self._simulated.device))

    def drives(self) -> int:
        """Bytes on drives."""
        store = lib.zr_runtime_store(self._runtime)
        return lib.zr_store_info(store).contents.reserved_bytes if store else 0


def _simulated_rank(n_ranks: int, hardware: str | None) -> Any:
    options = lib.zr_run_options_default()
    options.device_options.log = options.comm_options.log = _c.LOG
    described = _c.Hardware()
    if hardware is not None:
        path = programs.hardware_path(hardware)
        check(lib.zr_hardware_read_json(str(path).encode(), byref(_c.LOG), byref(described)))
        options.device_options.hardware = _c.ctypes.addressof(described)
    rank = types.SimpleNamespace(rank=0, n_ranks=n_ranks, comm=c_void_p(), device=c_void_p())
    check(lib.zr_device_open(b"sim", byref(options.device_options), byref(rank.device)))
    check(lib.zr_comm_create_sim(0, n_ranks, byref(options.comm_options), byref(rank.comm)))
    return rank


# ---- a recording -------------------------------------------------------------------------------


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy without values."""
    memo: dict[int, Any] = {}
    for p in model.parameters():
        memo[id(p)] = nn.Parameter(p.data.to("meta"), requires_grad=p.requires_grad)
    for b in model.buffers():
        memo[id(b)] = b.data.to("meta")
    return copy.deepcopy(model, memo)


def _map(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {k: _map(v, change) for k, v in value.items()}
    return type(value)(_map(v, change) for v in value) if isinstance(value, (list, tuple)) else value


def _loss_of(outputs: Any, loss: Callable[[Any], torch.Tensor] | None) -> torch.Tensor:
    if loss is not None:
        return loss(outputs)
    found = outputs if isinstance(outputs, torch.Tensor) else getattr(outputs, "loss", None)
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise ArgumentError("plan: the model returns no loss, which is a tensor of one element or its `loss`: give loss=, a function of "
                            "what the model returns")
    return found


def _step(engine: Engine, batch: Any, loss: Any) -> None:
    for _ in range(engine.gradient_accumulation_steps()):
        outputs = engine(**batch) if isinstance(batch, Mapping) else engine(*batch)
        value = _loss_of(outputs, loss)
        del outputs
        engine.backward(value)
        del value
        engine.step()


@contextlib.contextmanager
def _undone(model: nn.Module) -> Iterator[None]:
    """Restore everything that a step changes, except parameters."""
    before = [(b, b.clone()) for b in model.buffers()]
    is_training = model.training
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            model.train(is_training)
            with torch.no_grad():
                for buffer, value in before:
                    buffer.copy_(value)


@contextlib.contextmanager
def _autocast_on_meta() -> Iterator[None]:
    """PyTorch has no autocast of the meta device; models (transformers 4) turn it off where they are: the CPU's is taken there."""
    begin = torch.autocast.__init__

    def of_cpu(self: Any, device_type: str, *args: Any, **keywords: Any) -> None:
        begin(self, "cpu" if device_type == "meta" else device_type, *args, **keywords)

    if not torch.amp.is_autocast_available("meta"):
        torch.autocast.__init__ = of_cpu  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = begin  # type: ignore[method-assign]


def _record(model: nn.Module, batch: Any, make: Callable[[nn.Module], _PlannedEngine], loss: Any) -> dict[str, Any]:
    with _undone(model), make(model) as engine:
        model.train()
        held = [*engine._shown.values(), *model.buffers(), *tensors_of(batch)]
        with _autocast_on_meta(), _Recorder(iter(held)) as recorder:
            for _ in range(_N_STEPS):
                recorder.peak, recorder.n_assumed = recorder.live, 0
                _step(engine, batch, loss)
        tiers = {tier: {"peak": t["peak"], "tags": {n: b["peak"] for n, b in t["tags"].items()}}
                 for tier, t in engine.memory().items()}
        if engine.drives():
            tiers["nvme"] = {"peak": engine.drives(), "tags": {}}
        return {"stage": engine.stage, "n_ranks": engine.world_size, "tiers": tiers, "activations": {"peak": recorder.peak, "n_assumed": recorder.n_assumed}}


# ---- the plan ----------------------------------------------------------------------------------


class ModulePlan(Mapping[str, Any]):
    """What a step of a module takes, of one rank: as a mapping, a table, and a picture in a notebook."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def __getitem__(self, key: str) -> Any:
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def _rows(self) -> list[tuple[str, list[int]]]:
        """What for, and its peak in each tier; at last the peak of all, which is less than their sum."""
        tiers = self["tiers"]
        names = [n for n in tiers["device"]["tags"] if any(t["tags"].get(n) for t in tiers.values())]
        rows = [(name, [t["tags"].get(name, 0) for t in tiers.values()]) for name in names]
        return [*rows, ("peak", [t["peak"] for t in tiers.values()])]

    def _head(self) -> str:
        counts = self["parameters"]
        frozen = f", {counts['frozen']:,} of them frozen" if counts["frozen"] else ""
        return f"{counts['all']:,} parameters{frozen}; stage {self['stage']}, rank 0 of {self['n_ranks']}"

    def _foot(self) -> str:
        recorded = self["activations"]
        how = "recorded on the meta device" if recorded["recorded"] == "meta" else "recorded with real values"
        how += f" ({recorded['why']})" if recorded["why"] else ""
        how += f", where {recorded['n_assumed']} conditions on values are taken as true" if recorded["n_assumed"] else ""
        return f"activations and temporaries of one micro-batch: {_size(recorded['peak'])}, {how}"

    def __str__(self) -> str:
        lines = [self._head(), f"{'':22}" + "".join(f"{tier:>14}" for tier in self["tiers"])]
        for name, values in self._rows():
            lines.append(f"{name.replace('_', ' '):22}" + "".join(f"{_size(v) if v else '-':>14}" for v in values))
        return "\n".join([*lines, self._foot()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{tier}</th>" for tier in self["tiers"])
        body = ""
        for name, values in self._rows():
            cells = "".join(f"<td>{_size(v) if v else ''}</td>" for v in values)
            body += f"<tr><td>{html.escape(name.replace('_', ' '))}</td>{cells}</tr>"
        return (f"<p>{html.escape(self._head())}</p>{self._picture()}<table><tr><th></th>{head}</tr>{body}</table>"
                f"<p>{html.escape(self._foot())}</p>")

    def _picture(self) -> str:
        """A bar for each tier, of the peaks of what is in it, and one of activations, in SVG."""
        bars = [(tier, {n: b for n, b in found["tags"].items() if b}) for tier, found in self["tiers"].items()]
        bars = [(tier, parts) for tier, parts in bars if parts]
        bars.append(("torch", {"activations": self["activations"]["peak"]}))
        most = max(sum(parts.values()) for _, parts in bars) or 1
        names = list(dict.fromkeys(name for _, parts in bars for name in parts))
        drawn = []
        for i, (tier, parts) in enumerate(bars):
            x, y = 70.0, 8 + 30 * i
            drawn.append(f'<text x="0" y="{y + 15}">{tier}</text>')
            for name, size in parts.items():
                width = 480 * size / most
                drawn.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="22" fill="{_colour(names, name)}">'
                             f"<title>{name.replace('_', ' ')}: {_size(size)}</title></rect>")
                x += width
        y = 8 + 30 * len(bars)
        for i, name in enumerate(names):
            at, line = 70 + 165 * (i % 3), y + 18 * (i // 3)
            drawn.append(f'<rect x="{at}" y="{line}" width="10" height="10" fill="{_colour(names, name)}"/>'
                         f'<text x="{at + 14}" y="{line + 10}">{name.replace("_", " ")}</text>')
        height = y + 18 * ((len(names) + 2) // 3) + 8
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="570" height="{height}" font-size="12">{"".join(drawn)}</svg>'

    _repr_svg_ = _picture


def _colour(names: list[str], name: str) -> str:
    return f"hsl({360 * names.index(name) // len(names)},55%,60%)"


def _size(n_bytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes} B"


def _of_other(module: nn.Module, model: nn.Module, keywords: dict[str, Any]) -> dict[str, Any]:
    """The engine's keywords for the module's copy: groups have its parameters, and an optimizer is what it says."""
    keywords = dict(keywords)
    groups = keywords.pop("model_parameters", None)
    if isinstance(keywords.get("optimizer"), torch.optim.Optimizer):
        optimizer = keywords.pop("optimizer")
        keywords.update(_torch_optimizer.options_of(optimizer))
        groups = _torch_optimizer.groups_of(optimizer)
    if groups is not None:
        same = dict(zip(map(id, model.parameters()), module.parameters(), strict=True))
        groups = list(groups)
        groups = groups if groups and isinstance(groups[0], Mapping) else [{"params": groups}]
        keywords["model_parameters"] = [{**g, "params": [same[id(p)] for p in g["params"]]} for g in groups]
    return keywords


def plan_module(
    model: nn.Module, batch: Any, config: Any = None, *, ranks: int = 1, hardware: str | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None, record: str = "auto", **keywords: Any,
) -> ModulePlan:
    """See libzero.plan."""
    if batch is None:
        raise ArgumentError("plan: a module needs batch=, the inputs of one micro-batch: a dictionary, a tuple or a tensor")
    if record not in ("auto", "meta", "real"):
        raise ArgumentError(f"plan: record is {record!r}, must be 'auto', 'meta' or 'real'")
    batch = (batch,) if isinstance(batch, torch.Tensor) else batch
    has_values = all(p.device.type != "meta" for p in model.parameters())

    def make(module: nn.Module) -> _PlannedEngine:
        return _PlannedEngine(module, config, ranks, hardware, _of_other(module, model, keywords))

    why = None
    if record != "real":
        try:
            found = _record(_on_meta(model), _map(batch, lambda t: t.to("meta")), make, loss)
        except (AttributeError, NotImplementedError, RuntimeError) as error:  # torch.utils.checkpoint of PyTorch 2.4 has torch.meta
            if record == "meta" or not has_values or isinstance(error, _c.Error):
                raise
            why = f"it cannot be recorded on the meta device: {str(error).splitlines()[0]}"
    if record == "real" or why is not None:
        found = _record(model, batch, make, loss)
    found["activations"].update(recorded="real" if record == "real" or why is not None else "meta", why=why)
    found["parameters"] = {"all": sum(p.numel() for p in model.parameters()),
                           "frozen": sum(p.numel() for p in model.parameters() if not p.requires_grad)}
    return ModulePlan(found)
