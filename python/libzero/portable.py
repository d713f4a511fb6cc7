"""Values in a checkpoint's JSON: a caller's state and a module's buffers, which come back as they were.

JSON has no tuples, sets, bytes, NaN, keys that are no text, and whole numbers of more than 64 bits;
these are objects with a key of their own. A value that could not come back is refused by its path.
"""

from __future__ import annotations

import base64
import ctypes
import math
from collections.abc import Mapping
from typing import Any

import torch

from ._c import ArgumentError, UnsupportedError

_KIND = "python"  # the key of an object that stands for another value
_MAX_DEPTH = 62  # of the 64 levels of a manifest, two are around a caller's state
_MAX_BUFFER_BYTES = 16 << 20
_LISTS = {kind.__name__: kind for kind in (tuple, set, frozenset)}


def _is_plain_text(value: Any) -> bool:
    """Whether JSON of the library's reader has it: it takes no byte 0 and no half of a pair."""
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def encode(value: Any, path: str, depth: int = 1) -> Any:
    """A value as JSON that decode() takes. Subclasses, such as OrderedDict, come back as their base.

    path: its name, for messages
    depth: levels of objects and lists with its own
    """
    def stand_in(kind: str, what: Any) -> Any:
        return {_KIND: kind, "value": what}

    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else stand_in("int", hex(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else stand_in("float", str(float(value)))
    if isinstance(value, str):
        if _is_plain_text(value):
            return str(value)
        return stand_in("str", value.encode("utf-8", "surrogatepass").hex())
    if isinstance(value, bytes):
        return stand_in("bytes", value.hex())
    if not isinstance(value, (dict, list, *_LISTS.values())):
        raise ArgumentError(
            f"save_checkpoint: {path} is of type {type(value).__name__}; allowed: numbers, texts, bytes, "
            "None, and dictionaries, lists, tuples and sets of these; convert it (.item(), .tolist()), "
            "or save it to a file of its own")
    is_object = isinstance(value, dict) and _KIND not in value and all(map(_is_plain_text, value))
    is_list = isinstance(value, list)
    inner = depth + (1 if is_object or is_list else 3 if isinstance(value, dict) else 2)
    if inner - 1 > _MAX_DEPTH:
        raise ArgumentError(
            f"save_checkpoint: {_shorten(path)} is nested too deep: {_MAX_DEPTH} levels are allowed "
            "(a tuple or a set counts as two, a dictionary with keys that are no texts as three); "
            "flatten it, or save it as a text (json.dumps)")
    if is_object:
        return {str(k): encode(v, f"{path}[{k!r}]", inner) for k, v in value.items()}
    if isinstance(value, dict):
        return stand_in("dict", [
            [encode(k, f"the key {k!r} of {path}", inner), encode(v, f"{path}[{k!r}]", inner)]
            for k, v in value.items()])
    found = [encode(v, f"{path}[{i}]", inner) for i, v in enumerate(value)]
    if is_list:
        return found
    return stand_in(next(n for n, kind in _LISTS.items() if isinstance(value, kind)), found)


def _shorten(path: str) -> str:
    return path if len(path) <= 120 else f"{path[:60]}...{path[-50:]}"


def decode(value: Any) -> Any:
    """The value that encode() has made this of."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if not isinstance(kind, str) or set(value) != {_KIND, "value"}:
        return {k: decode(v) for k, v in value.items()}
    what = value["value"]
    if kind == "dict":
        return {decode(k): decode(v) for k, v in what}
    if kind in _LISTS:
        return _LISTS[kind](decode(v) for v in what)
    if kind == "int":
        return int(what, 16)
    if kind == "float":
        return float(what)
    if kind in ("str", "bytes"):
        data = bytes.fromhex(what)
        return data if kind == "bytes" else data.decode("utf-8", "surrogatepass")
    raise ArgumentError(f"a checkpoint's client_state has a value of kind {kind!r}, which this version does not know")


def encode_buffers(buffers: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A buffer with several names is saved under the first; the others say which."""
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(b), name) for name, b in buffers.items()}
    size = sum(buffers[name].nbytes for name in first.values())
    if size > _MAX_BUFFER_BYTES:
        raise UnsupportedError(
            f"save_checkpoint: the module's buffers have {size} bytes; up to {_MAX_BUFFER_BYTES} can be "
            "saved: register large ones with persistent=False, and save them by torch.save, or make them "
            "parameters with requires_grad=False")
    return {name: _encode_tensor(buffers[name], name) if name == other else other
            for name, other in names.items()}


def _encode_tensor(tensor: torch.Tensor, name: str) -> list[Any]:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise UnsupportedError(
            f"save_checkpoint: buffer {name} is on {tensor.device}, of layout {tensor.layout} and "
            f"{tensor.dtype}: only dense ones with values can be saved; register it with persistent=False")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = ctypes.string_at(plain.data_ptr(), plain.nbytes) if plain.numel() else b""
    kind = str(plain.dtype).removeprefix("torch.")
    return [kind, list(plain.shape), base64.b64encode(data).decode()]


def decode_buffers(saved: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    values: dict[str, torch.Tensor] = {}
    for name, what in saved.items():
        if isinstance(what, str):
            values[name] = values[what]
            continue
        kind, shape, text = what
        data, dtype = bytearray(base64.b64decode(text)), getattr(torch, kind)
        values[name] = torch.frombuffer(data, dtype=dtype).view(shape) if data else torch.empty(shape, dtype=dtype)
    return values
