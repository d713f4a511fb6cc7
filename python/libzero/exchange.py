"""Files of other programs: checkpoints that zero-train goes on from, and those that it has saved
(names of parameters, and what says of which model); and adapters of PEFT."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from . import programs
from ._c import Error

#: Models whose published names have no prefix of the part without the head.
_WITHOUT_BASE = ("gpt2",)


def _published(model: nn.Module) -> tuple[str, Any] | None:
    """The prefix of a model of transformers within a module, and its configuration."""
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        if hasattr(module, "base_model_prefix") and hasattr(config, "to_dict"):
            prefix = name + "." if name else ""
            is_base = not hasattr(module, module.base_model_prefix)
            if config.model_type in _WITHOUT_BASE and not is_base:
                prefix += module.base_model_prefix + "."
            return prefix, config
    return None


def saved_names(model: nn.Module) -> dict[int, str]:
    """Names of parameters in checkpoints, by id: those of published files, where it is a model of transformers."""
    names = {id(p): n for n, p in model.named_parameters()}
    found = _published(model)
    if found is None or not all(name.startswith(found[0]) for name in names.values()):
        return names
    return {i: name.removeprefix(found[0]) for i, name in names.items()}


def _common(names: Iterable[str]) -> str:
    """The modules that all names begin with."""
    prefix = os.path.commonprefix(list(names))
    return prefix[: prefix.rfind(".") + 1]


def names_in(saved: list[str], names: dict[int, str]) -> dict[int, str]:
    """How a checkpoint with the tensors `saved` calls parameters: as this model, or with another prefix of all names. What
    does not fit stays as it is, and is refused by name."""
    if set(saved) == set(names.values()):
        return names
    prefix, own = _common(saved), _common(names.values())
    found = {i: prefix + name.removeprefix(own) for i, name in names.items()}
    return found if set(found.values()) == set(saved) else names


def model_of(model: nn.Module) -> dict[str, Any] | None:
    """What a checkpoint says of its model to zero-train; None where that knows no such model."""
    found = _published(model)
    if found is None:
        return None
    with tempfile.TemporaryDirectory(prefix="libzero-") as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(found[1].to_dict(), default=str))
        try:
            plan = programs.run("plan", {"model": folder, "ranks": 1, "stage": 0, "micro_batch": 1, "seq": 1, "hardware": "8x-a100-80g"})
        except Error:
            return None
    return {key: value for key, value in plan["model"].items() if key not in ("name", "parameters")}


# ---- adapters of PEFT --------------------------------------------------------------------------


class _Uses(TorchFunctionMode):
    """Notes the tensors that functions are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.update(id(a) for a in args if isinstance(a, torch.Tensor))
        return function(*args, **(kwargs or {}))


def prompt_encoders(model: nn.Module) -> nn.Module | None:
    """Modules of prompt learning. To save them PEFT calls them, and reads no state_dict."""
    return getattr(model, "prompt_encoder", None) if hasattr(model, "peft_config") else None


def adapter_names(
    model: nn.Module, buffers: Mapping[str, torch.Tensor],
    selected_adapters: Iterable[str] | None = None, save_embedding_layers: str | bool = "auto",
) -> set[str] | None:
    """Names of the parameters that a PEFT model's adapters are saved with, frozen or not; None: the
    model has no adapters.

    PEFT's own function is asked, with tensors of one element, repeated, which take no memory.
    """
    if not hasattr(model, "peft_config"):
        return None
    import peft

    params = dict(model.named_parameters(remove_duplicate=False))
    asked = {name: torch.zeros(()).expand(p.shape) for name, p in params.items()}
    wanted: set[int] = set()
    for adapter in model.peft_config if selected_adapters is None else selected_adapters:
        if model.peft_config[adapter].is_prompt_learning:
            continue
        with warnings.catch_warnings(), _Uses() as uses:
            warnings.simplefilter("ignore")
            saved = peft.get_peft_model_state_dict(
                model, {**asked, **buffers}, adapter_name=adapter,
                save_embedding_layers=save_embedding_layers)
        wanted |= uses.seen | {id(value) for value in saved.values()}
    prompts = prompt_encoders(model)
    own = {id(p) for p in prompts.parameters()} if prompts is not None else set()
    return {n for n, value in asked.items() if id(value) in wanted or id(params[n]) in own}


@contextlib.contextmanager
def with_values(
    module: nn.Module, prefix: str, values: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """A context in which a module has other parameters, of these values."""
    own = {m: m._parameters for m in module.modules()}
    try:
        for name, m in module.named_modules():
            place = f"{prefix}{name}." if name else prefix
            m._parameters = {n: p if p is None else nn.Parameter(values[place + n], False)
                             for n, p in own[m].items()}
        yield
    finally:
        for m, parameters in own.items():
            m._parameters = parameters
