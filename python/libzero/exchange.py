"""Checkpoints that zero-train goes on from, and those that it has saved: names of parameters, and what says of which model."""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from collections.abc import Iterable
from typing import Any

from torch import nn

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
