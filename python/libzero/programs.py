"""The programs that come with the package, and what they say as objects."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from ._c import ArgumentError, Error

#: Programs, by the word after `python -m libzero`.
NAMES = ("plan", "capacity", "checkpoint")


def path_of(name: str) -> pathlib.Path:
    """Programs such as zero-plan: next to this file in an installed package, or in a build."""
    folder = os.environ.get("LIBZERO_LIBRARY_DIR")
    path = (pathlib.Path(folder) if folder else pathlib.Path(__file__).parent) / "bin" / f"zero-{name}"
    if not path.exists():
        raise ArgumentError(f"{path} is missing: the package was built without programs (-DZR_NN=OFF)")
    return path


def hardware_path(name: str | os.PathLike[str]) -> pathlib.Path:
    """A description of hardware: a file, or one that comes with the package by its name."""
    path = pathlib.Path(name)
    if path.exists():
        return path
    folder = path_of("plan").parent.parent / "share" / "libzero" / "hardware"
    named = folder / f"{name}.json"
    if not named.exists():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.json")))
        raise ArgumentError(f"hardware {str(name)!r} is neither a file nor one of {known}")
    return named


def _arguments(keywords: Mapping[str, Any], folder: str) -> list[str]:
    """An option of the program for each keyword: micro_batch=4 is --micro-batch=4."""
    arguments = []
    for keyword, value in keywords.items():
        option = "--" + keyword.replace("_", "-")
        if keyword == "config" and isinstance(value, Mapping):
            file = pathlib.Path(folder) / "config.json"
            file.write_text(json.dumps(value))
            value = file
        if value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            arguments.append(f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return arguments


def run(name: str, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """What a program says with --json."""
    with tempfile.TemporaryDirectory(prefix="libzero-") as folder:
        command = [str(path_of(name)), "--json", *_arguments(keywords, folder)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0 or (done.returncode == 1 and done.stdout.strip()):
        return json.loads(done.stdout)
    message = done.stderr.strip().removeprefix(f"zero-{name}: ")
    raise (ArgumentError if done.returncode == 2 else Error)(message)


class Result(Mapping[str, Any]):
    """The JSON object that a program has printed; str() of it is its text."""

    def __init__(self, name: str, keywords: Mapping[str, Any]) -> None:
        self._name, self._keywords = name, dict(keywords)
        self.json = run(name, keywords)

    def __getitem__(self, key: str) -> Any:
        return self.json[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.json)

    def __len__(self) -> int:
        return len(self.json)

    def __str__(self) -> str:
        with tempfile.TemporaryDirectory(prefix="libzero-") as folder:
            command = [str(path_of(self._name)), *_arguments(self._keywords, folder)]
            return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    __repr__ = __str__

    def _repr_png_(self) -> bytes | None:
        """A notebook shows the picture, where gnuplot is there to draw it."""
        with tempfile.TemporaryDirectory(prefix="libzero-") as folder:
            file = pathlib.Path(folder) / "picture.png"
            command = [str(path_of(self._name)), f"--plot={file}", *_arguments(self._keywords, folder)]
            subprocess.run(command, capture_output=True, text=True)
            return file.read_bytes() if file.exists() else None
