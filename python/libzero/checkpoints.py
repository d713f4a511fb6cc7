"""Checkpoints, with buffers and the caller's own state, and their signatures; and files of the
module's own save_pretrained."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import _c
from ._c import ArgumentError, Error, StateError, UnsupportedError, byref, c_void_p, check, lib
from .exchange import adapter_names, model_of, names_in, prompt_encoders, with_values
from .portable import decode, decode_buffers, encode, encode_buffers
from .units import UnitPlan, library_dims


class Checkpoints:
    """A part of Engine."""

    def save_checkpoint(
        self, save_dir: str | os.PathLike[str], tag: None = None, client_state: Mapping[str, Any] | None = None,
        keep: int = 0,
    ) -> pathlib.Path:
        """Save parameters, optimizer state, buffers and client_state. All ranks call it, after step().

        client_state: a dictionary of numbers, texts, bytes, None, and dictionaries, lists, tuples and
            sets of these; load_checkpoint returns its like. Rank 0's is saved
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
        state, refusal = {}, None
        try:
            if self.rank == 0:
                state["client_state"] = encode(dict(client_state or {}), "client_state")
                state["buffers"] = encode_buffers(buffers_of(self.module))
        except Error as error:
            refusal = error
        if self.average(refusal is not None):
            raise refusal or StateError("save_checkpoint: rank 0 has refused what it was to save")
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
            buffers = _find_buffers(self.module, state.get("buffers", {}), path)
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
        return path, decode(state.get("client_state", {}))

    def save_pretrained(self, folder: str | os.PathLike[str], **keywords: Any) -> None:
        """Write the module for from_pretrained(), as its own save_pretrained does: a model of
        transformers, or the adapters of one of PEFT, in the dtypes that the parameters had before
        the engine. All ranks call it, outside of micro-batches; rank 0 writes.

        keywords: of the module's save_pretrained
        """
        if not hasattr(self.module, "save_pretrained"):
            raise ArgumentError(f"save_pretrained: {type(self.module).__name__} has no "
                                "save_pretrained; save engine.state_dict(rank=0)")
        if keywords.get("path_initial_model_for_weight_conversion") is not None:
            raise UnsupportedError(
                "save_pretrained: path_initial_model_for_weight_conversion loads another adapter "
                "into the model: save without it, and convert the adapter with PEFT afterwards")
        choices = ("selected_adapters", "save_embedding_layers")
        selection = {key: keywords[key] for key in choices if key in keywords}
        with self.saved_state(0, **selection) as state:
            if self.rank == 0:
                self.module.save_pretrained(folder, state_dict=state, **keywords)
        self.average(0)  # until it is written

    @contextlib.contextmanager
    def saved_state(
        self, rank: int | None = 0, **selection: Any
    ) -> Iterator[dict[str, torch.Tensor]]:
        """A context in which the module's save_pretrained(state_dict=state) writes it. All ranks
        enter it.

        rank: the only one that gets the state; None: all do
        selection: PEFT's `selected_adapters` and `save_embedding_layers`
        """
        names = adapter_names(self.module, buffers_of(self.module), **selection)
        if names is not None and not self._is_the_same(zlib.crc32(repr(sorted(names)).encode())):
            raise StateError("save_pretrained: the ranks differ in what an adapter is saved with: "
                             "save_embedding_layers='auto' asks for the published model; give True or False")
        prompts = prompt_encoders(self.module)
        with contextlib.ExitStack() as stack:
            if prompts is not None:
                stack.enter_context(self.gathered(list(prompts.parameters())))
            state = self.state_dict(rank, names=names)
            cast: dict[int, torch.Tensor] = {}  # tied parameters stay one tensor
            for name, tensor in self.module.named_parameters(remove_duplicate=False):
                if name in state:
                    state[name] = cast.get(id(tensor), state[name].to(self._given_dtypes[name]))
                    cast[id(tensor)] = state[name]
            if prompts is not None and state:
                stack.enter_context(with_values(prompts, "prompt_encoder.", state))
            yield state

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


def _find_buffers(
    module: nn.Module, saved: Mapping[str, Any], path: pathlib.Path
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The module's buffers, and their values."""
    buffers = buffers_of(module)
    found = []
    for name, value in decode_buffers(saved).items():
        if name not in buffers or buffers[name].shape != value.shape:
            raise ArgumentError(f"{path}: the module has no buffer {name} of shape {list(value.shape)}")
        found.append((buffers[name], value))
    return found
