"""The optimizer of an engine, as a torch.optim.Optimizer.

The update and its state are the library's. The object has what scripts and schedulers read and
change: groups, with their learning rates, weight decays, betas. An optimizer that a script gives
keeps its identity, and gets a class whose step is the engine's.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.optim import optimizer as _torch

from . import _c, _options
from ._c import ArgumentError, StateError, UnsupportedError, byref, check, lib

#: Numbers of the library's optimizers, and their places in a group: its key, the index in a list.
_HYPERS: dict[str, dict[str, tuple[str, int | None]]] = {
    "adamw": {"beta1": ("betas", 0), "beta2": ("betas", 1), "epsilon": ("eps", None)},
    "lion": {"beta1": ("betas", 0), "beta2": ("betas", 1)},
    "sgd": {"momentum": ("momentum", None), "nesterov": ("nesterov", None)},
}


class NoState(defaultdict[Any, Any]):
    """An optimizer's `state` when the library has it: empty. Other use raises, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self._reason = reason

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise StateError(f"optimizer.state cannot be read or changed here: {self._reason}")

    __missing__ = __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse


def _no_state() -> NoState:
    return NoState(
        "it belongs to the engine, and engine.save_checkpoint() saves it; to begin with a new one, "
        "close the engine and initialize again"
    )


class Followed(torch.optim.Optimizer):
    """An optimizer whose update is an engine's."""

    _of: Callable[[], Any] = staticmethod(lambda: None)  # the engine, while there is one

    def _engine(self, call: str) -> Any:
        engine = self._of()
        if engine is None or not engine._runtime:
            raise StateError(f"optimizer.{call}: its engine is closed")
        return engine

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The engine's step()."""
        engine, loss = self._engine("step"), None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        engine.step()
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # the engine's step calls hooks
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # and says that it was called

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The engine's zero_grad()."""
        engine = self._of()
        if engine is not None and engine._runtime:
            engine.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if self._of() is not None:
            raise UnsupportedError(
                "optimizer.add_param_group: groups cannot be added to an engine: initialize with "
                "all groups"
            )
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """The groups' values. A state is refused: it is the engine's."""
        if state_dict["state"]:
            raise UnsupportedError(
                f"optimizer.load_state_dict: the state of {len(state_dict['state'])} parameters "
                "would be lost, as the engine has its own: "
                "engine.load_checkpoint() loads that; for the groups' values alone, load "
                "{**state_dict, 'state': {}}"
            )
        for i, group in enumerate(state_dict["param_groups"]):
            numbers_of(self, group, i)
        super().load_state_dict(dict(state_dict))
        self.state = _no_state()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError(
            "the optimizer of an engine cannot be copied or pickled: optimizer.state_dict() has "
            "the groups' values, and "
            "engine.save_checkpoint() saves the state"
        )


class AdamW(Followed, torch.optim.AdamW):
    pass


class Adam(Followed, torch.optim.Adam):
    pass


class SGD(Followed, torch.optim.SGD):
    pass


class Lion(Followed):
    """torch.optim has none."""

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})


_CLASSES = {torch.optim.AdamW: AdamW, torch.optim.Adam: Adam, torch.optim.SGD: SGD}
_KINDS = {AdamW: "adamw", Adam: "adamw", SGD: "sgd", Lion: "lion"}


class Numbers(NamedTuple):
    """What the library has to know of a group."""

    weight_decay: float
    lr: float
    hypers: dict[str, float]


def _kind_of(optimizer: torch.optim.Optimizer) -> str:
    found = _KINDS.get(_CLASSES.get(type(optimizer), type(optimizer)))
    if found is None:
        raise UnsupportedError(
            f"optimizer: {type(optimizer).__name__} is not supported; allowed: AdamW, SGD, and "
            "Adam without weight decay"
        )
    return found


def numbers_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], index: int) -> Numbers:
    """A group's numbers, now. A value of it that the library's update does not have is refused."""
    kind, where = _kind_of(optimizer), f"group {index} of the optimizer"
    for key, (value, way_out) in _options.FIXED.items():
        if group.get(key, value) != value:
            raise UnsupportedError(
                f"{where}: {key}={group[key]} is not supported, only {value}: {way_out}"
            )
    is_adam = isinstance(optimizer, torch.optim.Adam) and not isinstance(
        optimizer, torch.optim.AdamW
    )
    if is_adam and group["weight_decay"] and not group.get("decoupled_weight_decay"):
        raise UnsupportedError(
            f"{where}: torch's Adam adds weight decay to the gradient, which is not supported; use "
            "AdamW"
        )
    try:
        hypers = {
            name: float(group[key] if i is None else group[key][i])
            for name, (key, i) in _HYPERS[kind].items()
        }
        numbers = Numbers(float(group["weight_decay"]), float(group["lr"]), hypers)
        _options.pair(group.get("betas", (0, 0)), "betas")
    except KeyError as error:
        raise ArgumentError(
            f"{where} has no {error}: is it of another optimizer than {type(optimizer).__name__}?"
        ) from None
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ArgumentError(
            f"{where} has a value that is not a number: lr={group['lr']}, "
            f"weight_decay={group['weight_decay']}, "
            + ", ".join(
                f"{k}={group[k]}" for k in dict.fromkeys(k for k, _ in _HYPERS[kind].values())
            )
            + f" ({error})"
        ) from None
    for key in ("lr", "weight_decay"):
        if not 0 <= getattr(numbers, key) < math.inf:
            raise ArgumentError(f"{where}: {key} is {group[key]}, must be at least 0 and finite")
    return numbers


def check_section(kind: str, source: Any) -> None:
    """Refuse a configuration whose optimizer differs from the one that was given."""
    section = _options.section_of(source, "optimizer")
    params = {k: v for k, v in (section.get("params") or {}).items() if v != "auto"}
    name = str(section.get("type", kind)).lower()
    if params or {"adam": "adamw"}.get(name, name) != kind:
        said = f"params.{next(iter(params))}" if params else f"type {section['type']}"
        raise ArgumentError(
            f"the configuration's optimizer has {said}, which the optimizer that was given sets: "
            "remove one of the two"
        )


def is_in_use(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it belongs to an engine that is open."""
    engine = optimizer._of() if isinstance(optimizer, Followed) else None
    return engine is not None and bool(engine._runtime)


def options_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Keywords of libzero with the values of a torch optimizer's first group, without decay."""
    if not isinstance(optimizer, Followed) and optimizer.state:
        raise UnsupportedError(
            f"optimizer: the {type(optimizer).__name__} already has state of earlier steps, which "
            "cannot be imported: "
            "give a new one, before its first step"
        )
    kind = _kind_of(optimizer)
    hypers = numbers_of(optimizer, optimizer.param_groups[0], 0).hypers
    lr = float(optimizer.param_groups[0]["lr"])  # groups have factors of it
    own = {"optimizer": kind, "lr": lr if 1e-6 < lr < 1e3 else 1.0, **hypers}
    return {**own, "nesterov": bool(own["nesterov"])} if kind == "sgd" else own


def groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Its groups as model_parameters."""
    keys = group_keys(_kind_of(optimizer))
    return [{k: v for k, v in group.items() if k in keys} for group in optimizer.param_groups]


def group_keys(kind: str) -> list[str]:
    """Keys that a group of model_parameters may have."""
    own = dict.fromkeys(key for key, _ in _HYPERS[kind].values())
    return ["params", "lr", "weight_decay", *own, "name", *_options.FIXED, *_options.HARMLESS]


def lr_of(config: Any) -> float:
    """The rate that schedules and groups have a part of, with all its digits."""
    if _options.get(config, "schedule") == "constant":
        return float(lib.zr_config_lr(byref(config), 0))
    return float(_options.get(config, "lr"))


def make(config: Any, groups: list[dict[str, Any]]) -> Followed:
    """The optimizer that a configuration names."""
    kind = _options.get(config, "optimizer")
    values: dict[str, Any] = {
        "lr": lr_of(config),
        "weight_decay": float(_options.get(config, "weight_decay")),
    }
    for name, (key, index) in _HYPERS[kind].items():
        value = _options.get(config, name)
        number = value == "on" if name == "nesterov" else float(value)
        values[key] = number if index is None else (*values.get(key, ()), number)
    made = {"adamw": AdamW, "lion": Lion, "sgd": SGD}[kind]
    try:
        return made(groups, **values)
    except ValueError as error:
        raise ArgumentError(f"optimizer: {error}") from None


def check_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
    """A scheduler of the optimizer whose step() takes nothing; a function makes one."""
    name = type(scheduler).__name__
    if isinstance(scheduler, type) or not hasattr(scheduler, "step"):
        if not callable(scheduler):
            raise ArgumentError(
                f"lr_scheduler is {name}, must be a scheduler of the optimizer, or a function of "
                "it that makes one"
            )
        scheduler = scheduler(optimizer)
        name = type(scheduler).__name__
    if not hasattr(scheduler, "step"):
        raise ArgumentError(f"lr_scheduler made {name}, which has no step()")
    of = getattr(scheduler, "optimizer", optimizer)
    if getattr(of, "optimizer", of) is not optimizer:
        raise ArgumentError(
            "lr_scheduler belongs to another optimizer than the engine's: give both, optimizer= "
            "and lr_scheduler=, or a "
            "function, lr_scheduler=lambda optimizer: ..."
        )
    needed = [
        p.name
        for p in inspect.signature(scheduler.step).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise UnsupportedError(
            f"lr_scheduler: {name}.step() needs {' and '.join(needed)}, which engine.step() does "
            "not have: give the "
            "optimizer alone, and call the scheduler's step yourself, after engine.step()"
        )
    return scheduler


class Rates:
    """What an engine's optimizer says of its groups, and what the library was told of them."""

    def __init__(self, engine: Any, optimizer: torch.optim.Optimizer, config: Any) -> None:
        self.optimizer, self._config = optimizer, config
        self._is_scheduled = (
            _options.get(config, "schedule") != "constant"
        )  # the library moves the rates
        self._is_early = _options.get(config, "update_at") == "backward"
        if not self._is_scheduled and not lr_of(config):
            _options.put(config, "lr", 1.0)  # groups have factors of it
        self._base = lr_of(config)
        self._params = [list(group["params"]) for group in optimizer.param_groups]
        self._scales = [self._scale(i, numbers.lr) for i, numbers in enumerate(self._now())]
        self._engine = weakref.ref(engine)

    def _own(self) -> None:
        """The optimizer's step is the engine's from now on."""
        optimizer = self.optimizer
        if not isinstance(optimizer, Followed):
            optimizer.__class__ = _CLASSES[type(optimizer)]  # type: ignore[assignment]
        optimizer.__dict__.pop("step", None)  # that of a scheduler, which calls the former class's
        optimizer.state = _no_state()
        optimizer._of = self._engine  # type: ignore[attr-defined]

    def _now(self) -> list[Numbers]:
        return [
            numbers_of(self.optimizer, group, i)
            for i, group in enumerate(self.optimizer.param_groups)
        ]

    def _scale(self, index: int, lr: float) -> float:
        if lr == self._base:
            return 1.0
        if not self._base:
            raise ArgumentError(
                f"group {index}: lr={lr} with a schedule whose lr is 0: give lr, of which groups "
                "have a part"
            )
        return lr / self._base

    # ---- the library's groups ----

    def add_groups(self, runtime: Any) -> dict[int, int]:
        """Make the library's groups; their numbers by a parameter's id(). 0 is the config's."""
        self._runtime, self._numbers, self._told = runtime, [], self._now()
        if not self._is_scheduled:
            self._scales = [self._scale(i, numbers.lr) for i, numbers in enumerate(self._told)]
        decay = float(_options.get(self._config, "weight_decay"))
        group_of: dict[int, int] = {}
        for i, (params, numbers, scale) in enumerate(zip(self._params, self._told, self._scales)):
            number = _c.ctypes.c_int(0)
            if i or (numbers.weight_decay, scale) != (decay, 1.0):
                check(
                    lib.zr_runtime_add_group(
                        runtime,
                        byref(_c.Group(f"group {i}".encode(), numbers.weight_decay, scale)),
                        byref(number),
                    )
                )
            self._numbers.append(number.value)
            group_of.update((id(p), number.value) for p in params)
        return group_of

    def begin(self, n_updates: int) -> None:
        """Tell what groups have of their own, after commit."""
        kind = _HYPERS[_kind_of(self.optimizer)]
        usual = {
            name: float({"on": 1, "off": 0}.get(text, text))
            for name in kind
            if (text := _options.get(self._config, name))
        }
        self._told = [numbers._replace(hypers=usual) for numbers in self._told]
        self._tell(self._now(), may_start=True)
        self.show(n_updates)
        self._own()

    def show(self, n_updates: int) -> None:
        """Let groups have the rates of the library's schedule for the next update."""
        if not self._is_scheduled:
            return
        rate = lib.zr_config_lr(byref(self._config), n_updates)
        for i, (group, scale) in enumerate(zip(self.optimizer.param_groups, self._scales)):
            group["lr"] = rate * scale
            self._told[i] = self._told[i]._replace(lr=group["lr"])

    # ---- a step ----

    def begin_step(self) -> None:
        """Call hooks of the optimizer's step, and follow values that were set."""
        for hook in self._hooks(
            _torch._global_optimizer_pre_hooks, self.optimizer._optimizer_step_pre_hooks
        ):
            if hook(self.optimizer, (), {}) is not None:
                raise UnsupportedError(
                    "optimizer: a step pre-hook returned other arguments of step(), which has "
                    "none: return None"
                )
        self.follow(self._is_early)

    def begin_backward(self) -> None:
        """Values that were set, where backward updates."""
        if self._is_early:
            self.follow()

    def end_step(self, n_updates: int) -> None:
        """Hooks, and the rates of the next update."""
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # for schedulers
        self.show(n_updates)
        for hook in self._hooks(
            self.optimizer._optimizer_step_post_hooks, _torch._global_optimizer_post_hooks
        ):
            hook(self.optimizer, (), {})

    @staticmethod
    def _hooks(*hooks: Mapping[int, Any]) -> Iterator[Any]:
        return chain.from_iterable(list(h.values()) for h in hooks)

    def follow(self, is_late: bool = False) -> None:
        """Tell the library what has changed. is_late: the update was made in backward."""
        self._check_groups()
        now = self._now()
        if now == self._told:
            return
        if is_late:
            raise StateError(
                "optimizer: a group was changed between backward and step(), which is too late "
                "with update_at='backward': "
                "change it before backward, or set update_at='end'"
            )
        self._tell(now)

    def _check_groups(self) -> None:
        groups = self.optimizer.param_groups
        if type(self.optimizer.state) is not NoState:
            raise UnsupportedError(
                "optimizer.state was replaced, but the engine has its own: "
                "engine.load_checkpoint() loads that"
            )
        if len(groups) != len(self._params):
            raise UnsupportedError(
                f"optimizer: {len(groups)} groups, but the engine was made with "
                f"{len(self._params)}: initialize again "
                "to have others"
            )
        for i, (group, params) in enumerate(zip(groups, self._params)):
            if len(group["params"]) != len(params) or not all(
                map(operator.is_, group["params"], params)
            ):
                raise UnsupportedError(
                    f"optimizer: the parameters of group {i} have changed since the engine was "
                    "made: initialize again"
                )

    def _tell(self, now: list[Numbers], may_start: bool = False) -> None:
        for i, (number, before, after) in enumerate(zip(self._numbers, self._told, now)):
            if self._is_scheduled and before.lr != after.lr:
                raise UnsupportedError(
                    f"group {i} of the optimizer: lr was set to {after.lr}, and the "
                    "configuration's scheduler sets it "
                    f"to {before.lr}: remove the scheduler (schedule='constant') to set rates "
                    "yourself"
                )
            if not self._is_scheduled:
                self._scales[i] = self._scale(i, after.lr)
            if before[:2] != after[:2]:
                check(
                    lib.zr_runtime_change_group(
                        self._runtime, number, after.weight_decay, self._scales[i]
                    )
                )
            for name, value in after.hypers.items():
                if before.hypers[name] == value:
                    continue
                if name == "momentum" and not may_start and 0 in (before.hypers[name], value):
                    raise UnsupportedError(
                        f"group {i} of the optimizer: momentum changes from {before.hypers[name]} "
                        f"to {value} in "
                        "training, which starts or ends another rule: use a small number, such as "
                        "1e-8, instead of 0"
                    )
                check(lib.zr_runtime_change_hyper(self._runtime, number, name.encode(), value))
        self._told = copy.copy(now)


def as_list(params: Any) -> list[torch.Tensor]:
    """Parameters of a group: a tensor, or some, with names as of named_parameters() or without."""
    found: Iterable[Any] = [params] if isinstance(params, torch.Tensor) else params
    return [p[1] if isinstance(p, tuple) else p for p in found]
