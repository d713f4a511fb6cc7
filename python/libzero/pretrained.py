"""Modules that are built without their values, and values from files, of which each rank reads its part."""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ._c import ArgumentError, FormatError, logger

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
           "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}  # fmt: skip


@contextlib.contextmanager
def init() -> Iterator[None]:
    """Modules that are built in this context have parameters without values, which take no memory.

    libzero.initialize sets the values from `pretrained`. Buffers have their values.
    """
    register = nn.Module.register_parameter

    def register_without_values(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and param.device.type != "meta":
            module._parameters[name] = nn.Parameter(param.data.to("meta"), requires_grad=param.requires_grad)

    nn.Module.register_parameter = register_without_values  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


class _File:
    """A safetensors file, mapped: what is not asked for is not read."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little") if size >= 8 else size
        if length > size - 8:
            raise FormatError(f"{path}: its header has {length} bytes, the file {size}: truncated, or not a safetensors file")
        try:
            self.header: dict[str, Any] = json.loads(self._map[8 : 8 + length])
            self.header.pop("__metadata__", None)
        except ValueError as error:
            raise FormatError(f"{path}: its header is not JSON: {error}") from None
        self._begin = 8 + length
        for name, tensor in self.header.items():
            begin, end = tensor["data_offsets"]
            dtype = _DTYPES.get(tensor["dtype"])
            if dtype is None:
                raise FormatError(f"{path}: {name} has dtype {tensor['dtype']}; known: {', '.join(_DTYPES)}")
            if not 0 <= begin <= end <= size - self._begin or end - begin != math.prod(tensor["shape"]) * dtype.itemsize:
                raise FormatError(f"{path}: {name} of shape {tensor['shape']} lies at bytes {begin} to {end} of {size - self._begin}")

    def read(self, name: str, first: int, n_elems: int) -> torch.Tensor:
        """Elements [first, first + n_elems): a view of the file."""
        tensor = self.header[name]
        dtype = _DTYPES[tensor["dtype"]]
        offset = self._begin + tensor["data_offsets"][0] + first * dtype.itemsize
        return torch.frombuffer(self._map, dtype=dtype, count=n_elems, offset=offset)


class _TorchFile:
    """A file of torch.save's with tensors by name, mapped: what is not asked for is not read."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        try:
            self._tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except OSError:
            raise
        except Exception as error:
            raise FormatError(f"{path}: torch.load cannot read it: {error}") from None
        if not isinstance(self._tensors, dict) or not all(isinstance(t, torch.Tensor) for t in self._tensors.values()):
            raise FormatError(f"{path}: its values are not tensors by name")
        self.header = {name: {"shape": list(tensor.shape)} for name, tensor in self._tensors.items()}

    def read(self, name: str, first: int, n_elems: int) -> torch.Tensor:
        """Elements [first, first + n_elems)."""
        tensor = self._tensors[name]
        if not tensor.is_contiguous():
            tensor = self._tensors[name] = tensor.contiguous()
        return tensor.detach().view(-1)[first : first + n_elems]


#: Names of weights in a folder, one file or the index of several, in the order of preference; and their reader.
_FORMATS = (("model.safetensors", _File), ("pytorch_model.bin", _TorchFile))


class Weights:
    """Tensors of a folder that Hugging Face's save_pretrained or DeepSpeed's zero_to_fp32 has written, or of one file."""

    def __init__(self, path: str | os.PathLike[str], model: nn.Module) -> None:
        self.path = pathlib.Path(path)
        self._where = {name: file for file in self._files() for name in file.header}
        self._prefix = next((m.base_model_prefix for m in model.modules() if getattr(m, "base_model_prefix", "")), "")
        self.names: dict[int, str] = {}  # by id of a parameter or buffer
        lacking = []
        tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        n_params = len(list(model.named_parameters(remove_duplicate=False)))
        for name, tensor in tensors:
            found = next((n for n in self._candidates(name) if n in self._where), None)
            if found is not None:
                self._check_shape(name, tensor, found)
                self.names.setdefault(id(tensor), found)
        for name, tensor in tensors[:n_params]:
            if id(tensor) not in self.names and tensor.numel():
                lacking.append(name)
        if lacking:
            raise ArgumentError(f"{self.path} has no tensor for {len(lacking)} of the model's parameters, such as {lacking[0]}")
        unused = sorted(set(self._where) - set(self.names.values()) - self._tied(tensors))
        if unused:
            logger.warning("%s: %d tensors are not the model's, such as %s", self.path, len(unused), unused[0])

    def _files(self) -> list[Any]:
        if self.path.is_file():
            is_torch = self.path.suffix in (".bin", ".pt", ".pth")
            return [_TorchFile(self.path) if is_torch else _File(self.path)]
        for name, reader in _FORMATS:
            index, single = self.path / f"{name}.index.json", self.path / name
            if index.exists():
                names = json.loads(index.read_text())["weight_map"].values()
                return [reader(self.path / name) for name in dict.fromkeys(names)]
            if single.exists():
                return [reader(single)]
        raise ArgumentError(f"{self.path}: found neither {' nor '.join(name for name, _ in _FORMATS)}, nor an index of several")

    def _candidates(self, name: str) -> Iterator[str]:
        """A file of the model without its head has names without the prefix."""
        yield name
        if self._prefix:
            yield name.removeprefix(self._prefix + ".")
            yield f"{self._prefix}.{name}"

    def _tied(self, tensors: list[tuple[str, torch.Tensor]]) -> set[str]:
        return {n for name, _ in tensors for n in self._candidates(name)}

    def _check_shape(self, name: str, tensor: torch.Tensor, found: str) -> None:
        shape = self._where[found].header[found]["shape"]
        if list(tensor.shape) != shape:
            raise ArgumentError(f"{self.path}: {found} has shape {shape}, the model's {name} {list(tensor.shape)}")

    def filler(self, tensor: nn.Parameter) -> Callable[[int, int], torch.Tensor]:
        """Elements of a parameter, as they are asked for."""
        name = self.names.get(id(tensor))
        if name is None:  # nothing is asked for
            return lambda first, n_elems: torch.empty(n_elems)
        return lambda first, n_elems: self._where[name].read(name, first, n_elems)

    def load_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            name = self.names.get(id(buffer))
            if name is not None:
                buffer.data.copy_(self._where[name].read(name, 0, buffer.numel()).view(buffer.shape))


_NOTED = "_libzero_pretrained"  # an attribute of a module: where its values are


def load_pretrained(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    Weights(path, model)  # refuses what does not match
    setattr(model, _NOTED, os.fspath(path))
    return model


def take_pretrained(model: nn.Module) -> str | None:
    """What load_pretrained has noted, once."""
    return model.__dict__.pop(_NOTED, None)


def give_places(model: nn.Module, dtype: torch.dtype) -> None:
    """Parameters without values are on the CPU from now on, still without memory."""
    for param in model.parameters():
        if param.device.type == "meta":
            place = torch.full((), float("nan"), dtype=dtype).expand(param.shape)
            torch.utils.swap_tensors(param, nn.Parameter(place, requires_grad=param.requires_grad))
