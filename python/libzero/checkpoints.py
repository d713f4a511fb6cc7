"""Checkpoints, with buffers and the caller's own state, and their signatures."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from . import _c
from ._c import ArgumentError, UnsupportedError, byref, c_void_p, check, lib
from .exchange import model_of, names_in
from .units import UnitPlan, library_dims

_BUFFERS_MOST_BYTES = 16 << 20


class Checkpoints:
    """A part of Engine."""

    def save_checkpoint(
        self, save_dir: str | os.PathLike[str], tag: None = None, client_state: Mapping[str, Any] | None = None,
        keep: int = 0,
    ) -> pathlib.Path:
        """Save parameters, optimizer state, buffers and client_state. All ranks call it, after step().

        client_state: any JSON value; load_checkpoint returns it. Rank 0's is saved
        keep: number of newest checkpoints to keep; 0: all
        Returns the checkpoint's folder, in save_dir.
        """
        self._check("save_checkpoint")
        if tag is not None:
            raise UnsupportedError("save_checkpoint: checkpoints are named for their step; tag must be None")
        self._check_between_steps("save_checkpoint")
        self._follow_changes()
        if self._saved_model is None and self.rank == 0:
            self._saved_model = model_of(self.module) or {}
        state = {"client_state": dict(client_state or {}), "buffers": _encode_buffers(self.module)}
        left_out = {self._saved_names[id(p.tensor)]: lib.zr_param_n_left_out(p.handle) for p in self._trained}
        if any(left_out.values()):
            state["updates_left_out"] = {name: n for name, n in left_out.items() if n}
        if self._saved_model:
            state["model"] = self._saved_model  # for zero-train
        options = _c.SaveOptions(os.fsencode(save_dir), json.dumps(state).encode(), False, keep)
        options.secret = self._secret
        report = _c.SaveReport()
        check(lib.zr_runtime_save(self._runtime, byref(options), byref(report)))
        return pathlib.Path(save_dir) / report.name.decode()

    def load_checkpoint(self, load_dir: str | os.PathLike[str], tag: str | None = None) -> tuple[pathlib.Path, dict[str, Any]]:
        """Continue from a checkpoint of any stage, placement and number of ranks. All ranks call it.

        It may be one of zero-train with the same architecture; zero-train continues from one of a GPT-2 or Llama.

        load_dir: a folder of checkpoints, whose newest complete one is loaded, or one of them
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
            names = self._compare(checkpoint, info, path)
            buffers = _decode_buffers(self.module, state.get("buffers", {}), path)
            self._saved_names = names
            self._saved_model = state.get("model", self._saved_model)
            self._load(checkpoint)
            self._report.step, self._report.n_skipped = info.step, info.step - info.n_updates
            self._rates.show(info.n_updates)
        finally:
            lib.zr_checkpoint_close(byref(checkpoint))
        for p in self._trained:
            lib.zr_param_set_n_left_out(p.handle, state.get("updates_left_out", {}).get(names[id(p.tensor)], 0))
        for buffer, value in buffers:
            buffer.data.copy_(value)
        return path, state.get("client_state", {})

    def _compare(self, checkpoint: c_void_p, info: Any, path: pathlib.Path) -> dict[int, str]:
        """Refuse a checkpoint that does not fit, while the engine is as it was. Returns the names of parameters in it."""
        found = [lib.zr_checkpoint_tensor(checkpoint, i).contents for i in range(info.n_tensors)]
        saved = {t.name.decode(): t for t in found}
        names = names_in(list(saved), self._saved_names)
        for p in self._params.values():
            tensor = saved.pop(names[id(p.tensor)], None)
            if tensor is None:
                raise ArgumentError(f"{path} has no parameter {names[id(p.tensor)]}: it is of a different model")
            shape = [tensor.dims[i] for i in range(tensor.n_dims)]
            if shape != library_dims(p.shape):
                raise ArgumentError(f"{path}: parameter {names[id(p.tensor)]} has shape {shape}, the model's {list(p.shape)}")
        if saved:
            raise ArgumentError(f"{path} has {len(saved)} parameters that the model lacks, such as {next(iter(saved))}: it is of a different model")
        own = self._get("optimizer")
        if any(t.has_moments for t in found) and self._trained and info.optimizer.decode().lower() != own.lower():
            raise ArgumentError(f"{path} has the state of optimizer {info.optimizer.decode()!r}, and this engine's is {own!r}")
        return names

    def _load(self, checkpoint: c_void_p) -> None:
        """With a new runtime: one begins with what a checkpoint has, or its first values."""
        plans = [UnitPlan(u.name, [(p.name, p.tensor) for p in u.params]) for u in self._units]
        self._let_go()
        lib.zr_runtime_destroy(byref(self._runtime))
        try:
            self._build(plans, checkpoint)
            self._add_hooks()
            self._is_mixed, self._failed = False, ""
        except BaseException as error:
            lib.zr_runtime_destroy(byref(self._runtime))
            self._failed = f"{type(error).__name__} in load_checkpoint"
            raise


def read_secret(sign: str, path: str | os.PathLike[str] | None) -> Any:
    """A pointer to what checkpoints are signed with; None: they are not."""
    if sign not in ("off", "write", "require"):
        raise ArgumentError(f"checkpoint_sign={sign!r}: allowed: 'off', 'write' and 'require'")
    if sign == "off":
        if path is not None:
            raise ArgumentError("comm_secret has no effect without checkpoint_sign='write' or 'require'; ranks take theirs from ZR_COMM_SECRET")
        return None
    secret = _c.Secret()
    if path is not None:
        check(lib.zr_secret_read(byref(_c.LOG), os.fsencode(path), byref(secret)))
    else:
        check(lib.zr_secret_take_from_environment(byref(_c.LOG), byref(secret)))
    if not secret.is_given:
        raise ArgumentError(f"checkpoint_sign={sign!r}: there is no secret to sign with; give comm_secret=FILE, or the variable ZR_COMM_SECRET")
    return ctypes.pointer(secret)


def buffers_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Those that a state_dict has."""
    found = {}
    for prefix, m in module.named_modules(remove_duplicate=False):
        for name, buffer in m._buffers.items():
            if buffer is not None and name not in m._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer
    return found


def _encode_buffers(module: nn.Module) -> dict[str, Any]:
    buffers = buffers_of(module)
    size = sum(b.numel() * b.itemsize for b in buffers.values())
    if size > _BUFFERS_MOST_BYTES:
        raise UnsupportedError(f"save_checkpoint: the module's buffers have {size} bytes; up to {_BUFFERS_MOST_BYTES} can be saved")
    return {
        name: [str(b.dtype).removeprefix("torch."), list(b.shape),
               base64.b64encode(bytes(b.detach().contiguous().view(-1).view(torch.uint8).tolist())).decode()]
        for name, b in buffers.items()
    }


def _decode_buffers(module: nn.Module, saved: Mapping[str, Any], path: pathlib.Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The module's buffers, and their values."""
    buffers, found = buffers_of(module), []
    for name, (dtype, shape, text) in saved.items():
        if name not in buffers or list(buffers[name].shape) != shape:
            raise ArgumentError(f"{path}: the module has no buffer {name} of shape {shape}")
        data = bytearray(base64.b64decode(text))
        value = torch.frombuffer(data, dtype=getattr(torch, dtype)).view(shape) if data else torch.empty(shape)
        found.append((buffers[name], value))
    return found
