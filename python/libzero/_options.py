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
    check(
        lib.zr_option_set(row.option, keyword.encode(), _text(value).encode(), byref(_c.LOG), byref(config))
    )


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


def get(config: _c.Config, keyword: str) -> str:
    """What an option is, as the library writes it; "": nothing."""
    return lib.zr_option_text(rows()[keyword].option, byref(config)).text.decode()


def describe() -> str:
    """All keywords, a line each: name, default, DeepSpeed's key, and what it means."""
    lines = []
    for keyword, row in rows().items():
        allowed = f" ({', '.join(row.what['choices'])})" if row.what["choices"] else ""
        default = row.what["default"] or None
        lines.append(f"{keyword} = {default}{allowed}\n    {row.what['help'] or ''}")
        if row.what["key"]:
            lines[-1] += f"\n    DeepSpeed: {row.what['key']}"
    return "\n".join(lines)
