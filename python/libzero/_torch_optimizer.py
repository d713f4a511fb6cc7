"""An optimizer of torch's as the library's options: which it is, its numbers, and its groups."""

from __future__ import annotations

from typing import Any

import torch

from ._c import UnsupportedError

#: What has to be so, since the library's update is so. Other keys of a group say how torch computes.
_FIXED = {"amsgrad": False, "maximize": False, "dampening": 0, "differentiable": False}


def options_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Keywords of libzero that say the same as a torch optimizer, but for what is a group's own."""
    name = type(optimizer).__name__
    if type(optimizer) not in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adam):
        raise UnsupportedError(f"optimizer: {name} is not supported; allowed: AdamW, SGD, and Adam without weight decay")
    if optimizer.state:
        raise UnsupportedError(f"optimizer: the {name} already has state of earlier steps, which cannot be imported")
    groups = optimizer.param_groups
    for group in groups:
        for key, value in _FIXED.items():
            if group.get(key, value) != value:
                raise UnsupportedError(f"optimizer: {key}={group[key]} of {name} is not supported, only {value}")
        if type(optimizer) is torch.optim.Adam and group["weight_decay"] and not group.get("decoupled_weight_decay"):
            raise UnsupportedError("optimizer: torch's Adam adds weight decay to the gradient, which is not supported; use AdamW")
    if type(optimizer) is torch.optim.SGD:
        shared = _shared(groups, ("momentum", "nesterov"))
        return {"optimizer": "sgd", "momentum": shared["momentum"], **({"nesterov": True} if shared["nesterov"] else {})}
    shared = _shared(groups, ("betas", "eps"))
    beta1, beta2 = (float(b) for b in shared["betas"])
    return {"optimizer": "adamw", "beta1": beta1, "beta2": beta2, "epsilon": shared["eps"]}


def _shared(groups: list[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, Any]:
    for key in keys:
        if any(group[key] != groups[0][key] for group in groups):
            raise UnsupportedError(f"optimizer: groups differ in {key}; they may differ in lr and weight_decay")
    return {key: groups[0][key] for key in keys}


def rates_of(optimizer: torch.optim.Optimizer) -> list[tuple[float, float]]:
    """Weight decay and learning rate of each group, now."""
    return [(float(g["weight_decay"]), float(g["lr"])) for g in optimizer.param_groups]
