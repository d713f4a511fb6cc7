"""Options of a run as keywords: made from the library's table of rows, as the programs' options are."""

from __future__ import annotations

import ctypes
import difflib
import functools
import json
import os
import pathlib
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _c
from ._c import byref, c_size_t, c_void_p, check, lib

#: Options that mean something in C, and nothing here. They are refused.
_REFUSED = {
    "order": "PyTorch takes each micro-batch through all layers",
}


#: Keywords of torch.optim's optimizers with the only value that the update has, and the way out.
FIXED = {
    "amsgrad": (False, "leave it out"),
    "maximize": (False, "minimize the negative loss"),
    "differentiable": (False, "leave it out"),
    "dampening": (0, "leave it out"),
}

#: Keywords of theirs that say how torch computes, with equal results.
HARMLESS = ("foreach", "fused", "capturable", "decoupled_weight_decay")

#: PyTorch's defaults, of the package's options; libzero.optim's for Lion.
_USUAL = {
    "adamw": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0},
    "lion": {"lr": 1e-4, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
    "sgd": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0},
}

#: DeepSpeed's, where a file has `optimizer` (0.19.8), and of files.
_USUAL_OF_FILES = {"adamw": {}, "lion": {"lr": 1e-3}, "sgd": {}}
_CLIP_OF_FILES = 1.0

#: Options of the drives, which not only state and parameters may be on.
_OF_DRIVES = ("block_size", "files_per_path", "nvme_capacity", "nvme_path", "nvme_verify", "queue_depth", "submit_batch")


class Row(NamedTuple):
    option: Any  # POINTER(Option)
    what: dict[str, Any]  # of zr_options_json


@functools.cache
def rows() -> dict[str, Row]:
    """Keyword: row. A keyword is the option's name on a command line, or the last part of its key."""
    text = c_void_p()
    check(lib.zr_options_json(byref(text)))
    n = c_size_t()
    first = lib.zr_options(byref(n))
    found: dict[str, Row] = {}
    for i, what in enumerate(json.loads(_c.take_text(text))):
        name = what["name"] or (what["key"] or what["field"]).split(".")[-1]
        pointer = ctypes.pointer(first[i])
        found.setdefault(name.replace("-", "_"), Row(pointer, what))
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return ",".join(os.fspath(v) for v in value)
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _set(config: _c.Config, keyword: str, value: Any) -> None:
    row = rows()[keyword]
    if value == "auto" and "auto" not in (row.what["choices"] or ()):
        raise _c.UnsupportedError(f"{keyword}='auto' is not supported from Python yet: zero-plan finds a value")
    if row.what["type"] in ("int", "count", "bytes") and isinstance(value, float) and value.is_integer():
        value = int(value)
    put(config, keyword, value)


def _check_meaning(config: _c.Config, keyword: str, value: Any) -> None:
    """Refuse what would have no effect."""
    row = rows()[keyword]
    when = lib.zr_option_idle(row.option, byref(config))
    if not when or lib.zr_option_is_redundant(row.option, _text(value).encode()):
        return
    message = f"{keyword}={value!r} has no effect: {when.contents.otherwise.decode()}"
    if when.contents.warns:
        warnings.warn(message, stacklevel=4)
    else:
        raise _c.ArgumentError(message)


def _read(config: _c.Config, source: Any, notes: list[str]) -> dict[str, Any]:
    """DeepSpeed's JSON: a file, or a dictionary. Returns it; notes get what the library says."""
    if source is None:
        return {}
    name = "config" if isinstance(source, dict) else os.fspath(source)
    text = json.dumps(source) if isinstance(source, dict) else pathlib.Path(source).read_text()
    with tempfile.NamedTemporaryFile("w", prefix="config-", suffix=".json") as file:
        file.write(text)
        file.flush()

        @_c.SINK
        def hear(context: int, level: int, rank: int, message: bytes) -> None:
            if level == 0:
                _c.LOG.sink(context, level, rank, message)
            else:
                notes.append(message.decode(errors="replace").replace(file.name, name))

        log = _c.Log(hear, None, 2, -1)
        try:
            check(lib.zr_config_read_json(file.name.encode(), byref(log), byref(config)))
        except _c.Error as error:
            raise type(error)(str(error).replace(file.name, name)) from None
    return _parse(text)


def _parse(text: str) -> dict[str, Any]:
    """DeepSpeed's JSON, which the library has read without an error."""
    strict, n = text.encode(), c_size_t()
    copy = c_void_p(lib.zr_json_make_strict(strict, len(strict), byref(n)))
    if not copy:
        raise MemoryError
    found = json.loads(_c.take_text(copy))
    return found if isinstance(found, dict) else {}


def section_of(source: Any, name: str) -> dict[str, Any]:
    """A section of a configuration; {}: it has none."""
    if source is None:
        return {}
    found = source if isinstance(source, dict) else _parse(pathlib.Path(source).read_text())
    section = found.get(name)
    return section if isinstance(section, dict) else {}


def _automatic(found: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Keys of a file whose value is "auto"."""
    for key, value in found.items():
        if isinstance(value, dict):
            yield from _automatic(value, f"{prefix}{key}.")
        elif value == "auto" or (isinstance(value, list) and "auto" in value):
            yield prefix + key


def _note_automatic(config: _c.Config, found: dict[str, Any], notes: list[str]) -> None:
    """What became of "auto"."""
    became = []
    for key in _automatic(found):
        values = [f"{k} {get(config, k) or None}" for k, row in rows().items() if (row.what["key"] or "").split("[")[0] == key]
        became += values or ([f"{key} false"] if key == "fp16.enabled" else [])
    if became:
        notes.append('"auto" in the configuration became: ' + ", ".join(became))


def size_of(keyword: str, value: Any) -> int:
    """Bytes of a size such as "8GiB", that a keyword has which is no option of the library's."""
    config = lib.zr_config_default()
    row = rows()["host_memory"]
    check(lib.zr_option_set(row.option, keyword.encode(), _text(value).encode(), byref(_c.LOG), byref(config)))
    return int(get(config, "host_memory"))


def pair(value: Any, keyword: str) -> tuple[float, float]:
    """Two numbers."""
    try:
        first, second = value
        return float(first), float(second)
    except (TypeError, ValueError):
        message = f"{keyword} is {value!r}, must be two numbers, such as (0.9, 0.999)"
        raise _c.ArgumentError(message) from None


def from_torch(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keywords as torch.optim's optimizers have them become the library's."""
    result = dict(keywords)
    for keyword, (value, way_out) in FIXED.items():
        given = result.pop(keyword, None)
        if given is not None and given != value:
            message = f"{keyword}={given!r} is not supported, only {value}: {way_out}"
            raise _c.UnsupportedError(message)
    for keyword in HARMLESS:
        given = result.pop(keyword, None)
        if keyword == "decoupled_weight_decay" and given is False:
            raise _c.UnsupportedError(
                "decoupled_weight_decay=False is not supported: weight decay is AdamW's"
            )
    for keyword, own in (("betas", ("beta1", "beta2")), ("eps", ("epsilon",))):
        given = result.pop(keyword, None)
        if given is None:
            continue
        both = [name for name in own if result.get(name) is not None]
        if both:
            raise _c.ArgumentError(f"{keyword} and {both[0]} say the same: remove one of the two")
        result.update(zip(own, pair(given, keyword) if len(own) == 2 else (given,)))
    for keyword in {k for usual in _USUAL.values() for k in usual}:
        if hasattr(result.get(keyword), "item"):  # a tensor
            result[keyword] = result[keyword].item()
    return result


def _set_usual(config: _c.Config, found: dict[str, Any], keywords: dict[str, Any]) -> None:
    """Defaults of what nobody gives: PyTorch's, or DeepSpeed's for a file's."""
    kind = get(config, "optimizer")
    section = found.get("optimizer") or {}
    given = {**section, **(section.get("params") or {})}
    usual: dict[str, float] = {**_USUAL[kind], **(_USUAL_OF_FILES[kind] if section else {})}
    for keyword, value in usual.items():
        key, _, index = rows()[keyword].what["key"].removeprefix("optimizer.params.").partition("[")
        told = given.get(key, "auto")
        told = told[int(index[:-1])] if index and isinstance(told, list) else told
        if keywords.get(keyword) is None and told in ("auto", None):
            put(config, keyword, value)
    if found and keywords.get("clip") is None and found.get("gradient_clipping", "auto") == "auto":
        put(config, "clip", _CLIP_OF_FILES)


def _check_rate(config: _c.Config, found: dict[str, Any], lr: float | None) -> None:
    """A scheduler's rate after warm-up comes before the optimizer's."""
    own = ((found.get("scheduler") or {}).get("params") or {}).get("warmup_max_lr", "auto")
    if lr is None or "scheduler" not in found:
        return
    if own in ("auto", None):  # DeepSpeed's default is no wish
        put(config, "warmup_max_lr", lr)
    elif float(own) != float(lr):
        raise _c.ArgumentError(f"lr={lr!r} has no effect: the rate after warm-up is scheduler.params.warmup_max_lr of the configuration, {own}; "
                               "remove one of the two")


def configure(
    source: Any, keywords: dict[str, Any], n_ranks: int, uses_drives: bool = False, notes: list[str] | None = None
) -> _c.Config:
    """zr_config_t: the defaults, over them DeepSpeed's JSON, over that the keywords.

    uses_drives: options of drives have a meaning, whatever the others say
    notes: gets what became of "auto", and what has no effect
    """
    config = lib.zr_config_default()
    notes = [] if notes is None else notes
    found = _read(config, source, notes)
    for keyword, value in keywords.items():
        if keyword not in rows():
            near = difflib.get_close_matches(keyword, rows(), 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"libzero: unknown option {keyword!r}{meant}")
        if value is not None:
            _set(config, keyword, value)
    _set_usual(config, found, keywords)
    _check_rate(config, found, keywords.get("lr"))
    for keyword, value in keywords.items():
        if value is not None and not (uses_drives and keyword in _OF_DRIVES):
            _check_meaning(config, keyword, value)
    check(lib.zr_config_resolve(byref(config), n_ranks, byref(_c.LOG)))
    _note_automatic(config, found, notes)
    for keyword, reason in _REFUSED.items():
        if get(config, keyword) != rows()[keyword].what["default"]:
            raise _c.UnsupportedError(
                f"{keyword} ({rows()[keyword].what['key'] or rows()[keyword].what['field']}) is "
                f"{get(config, keyword)}, which is not supported from Python yet: {reason}"
            )
    return config


def put(config: _c.Config, keyword: str, value: Any) -> None:
    """Set an option to what it may be."""
    option, text = rows()[keyword].option, _text(value).encode()
    check(lib.zr_option_set(option, keyword.encode(), text, byref(_c.LOG), byref(config)))


def get(config: _c.Config, keyword: str) -> str:
    """What an option is, as the library writes it; "": nothing."""
    return lib.zr_option_text(rows()[keyword].option, byref(config)).text.decode()


def describe() -> str:
    """All keywords, a line each: name, default, DeepSpeed's key, and what it means."""
    lines = []
    for keyword, row in rows().items():
        allowed = f" ({', '.join(row.what['choices'])})" if row.what["choices"] else ""
        default = _USUAL["adamw"].get(keyword, row.what["default"] or None)
        lines.append(f"{keyword} = {default}{allowed}\n    {row.what['help'] or ''}")
        if row.what["key"]:
            lines[-1] += f"\n    DeepSpeed: {row.what['key']}"
    return "\n".join(lines)
