"""Modules that are built without their values, and values from files, of which each rank reads its part.

Files are of others. What their headers say is checked before a byte is used: what is wrong ends in an error that names the file,
and nothing outside of the folder is opened for what an index says.
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
import mmap
import os
import pathlib
import stat
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ._c import ArgumentError, FormatError, UnsupportedError, logger, printable

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
           "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}  # fmt: skip
_MAX_HEADER_BYTES = 100 << 20  # as safetensors itself has it
_MAX_JSON_BYTES = 100 << 20

#: Files that are often given instead of weights, by what they begin with.
_OTHERS = (
    (b"version https://git-lfs", "a pointer of git-lfs, not the file itself; fetch it with git lfs pull"),
    (b"GGUF", "quantised weights of llama.cpp (GGUF), which are not read; give the model that they were made of"),
)
#: Endings of names of quantised weights: GPTQ and AWQ, bitsandbytes, compressed tensors, FP8.
_QUANTISED = (".qweight", ".qzeros", ".absmax", ".quant_map", ".SCB", ".weight_packed", ".weight_scale_inv")
_UNQUANTISED = "quantised weights are not supported; give the model that they were made of, in fp32, bf16 or fp16"


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


# ---- files --------------------------------------------------------------------------------------


def _open(path: pathlib.Path) -> int:
    """A regular file, or a link to one, for reading. A pipe is not waited for."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"cannot open {path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ArgumentError(f"{path} is not a file")
    begin = os.pread(file, 32, 0)
    for magic, what in _OTHERS:
        if begin.startswith(magic):
            os.close(file)
            raise FormatError(f"{path}: {what}")
    return file


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"duplicate key {key!r}")
        found[key] = value
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")


def _object(text: bytes, where: str) -> dict[str, Any]:
    """An object of JSON, whatever is in the file."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where} is not an object of JSON")
    return value


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    with open(_open(path), "rb") as file:
        text = file.read(_MAX_JSON_BYTES + 1)
    if len(text) > _MAX_JSON_BYTES:
        raise FormatError(f"{path} has more than {_MAX_JSON_BYTES} bytes, and is not an index")
    return _object(text, str(path))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


class _File:
    """A safetensors file, mapped: what is not asked for is not read."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        with open(_open(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little") if size >= 8 else size
            if length > size - 8 or length > _MAX_HEADER_BYTES:
                raise FormatError(f"{path}: its header has {length} bytes, the file {size}: truncated, or not a safetensors file")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.header = _object(self._map[8 : 8 + length], f"{path}: its header")
        self.header.pop("__metadata__", None)
        self._begin = 8 + length
        ranges = sorted(self._check(name, tensor, size - self._begin) for name, tensor in self.header.items())
        end = 0
        for begin, next_end, name in [*ranges, (size - self._begin, 0, "the end of the file")]:
            if begin != end:
                raise FormatError(f"{path}: the data of {name} begin at byte {begin}, those before end at {end}")
            end = next_end

    def _check(self, name: str, tensor: Any, n_bytes: int) -> tuple[int, int, str]:
        """Where its data are, if all of it is as it must be."""
        where = f"{self.path}: {name!r}"
        if not isinstance(tensor, dict) or set(tensor) != {"dtype", "shape", "data_offsets"}:
            raise FormatError(f"{where} is not an object of dtype, shape and data_offsets")
        kind, shape, offsets = tensor["dtype"], tensor["shape"], tensor["data_offsets"]
        dtype = _DTYPES.get(kind) if isinstance(kind, str) else None
        if dtype is None:
            what = f"; {_UNQUANTISED}" if str(kind).startswith(("F8", "F4", "F6")) else ""
            raise FormatError(f"{where} has dtype {str(kind)[:40]!r}; known: {', '.join(_DTYPES)}{what}")
        if not isinstance(shape, list) or len(shape) > 32 or not all(map(_is_size, shape)):
            raise FormatError(f"{where}: its shape is not a list of at most 32 sizes")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
            raise FormatError(f"{where}: its data_offsets are not two whole numbers")
        begin, end = offsets
        if not begin <= end <= n_bytes or end - begin != math.prod(shape) * dtype.itemsize:
            raise FormatError(f"{where} of shape {shape} lies at bytes {begin} to {end} of {n_bytes}")
        return begin, end, repr(name)

    def dtype(self, name: str) -> torch.dtype:
        return _DTYPES[self.header[name]["dtype"]]

    def read(self, name: str, first: int, n_elems: int) -> torch.Tensor:
        """Elements [first, first + n_elems): a view of the file."""
        dtype = self.dtype(name)
        if not n_elems:
            return torch.empty(0, dtype=dtype)
        offset = self._begin + self.header[name]["data_offsets"][0] + first * dtype.itemsize
        return torch.frombuffer(self._map, dtype=dtype, count=n_elems, offset=offset)


class _TorchFile:
    """A file of torch.save's with tensors by name, mapped: what is not asked for is not read."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        os.close(_open(path))
        try:
            self._tensors = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:
            # Its first sentence: the rest tells how to trust the file, with escape sequences.
            cause = str(error).partition("\n")[0].partition(" This file")[0]
            cause = "".join(c for c in cause if c.isprintable())
            raise FormatError(f"{path}: torch.load cannot read it: {cause}") from None
        if not isinstance(self._tensors, dict):
            raise FormatError(f"{path}: it has {type(self._tensors).__name__}, not tensors by name")
        for name, tensor in self._tensors.items():
            self._check(name, tensor)
        self.header = {name: {"shape": list(tensor.shape)} for name, tensor in self._tensors.items()}

    def _check(self, name: Any, tensor: Any) -> None:
        where = f"{self.path}: {name!r}"
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise FormatError(f"{where} is {type(tensor).__name__}: its values are not tensors by name")
        if tensor.is_quantized:
            raise FormatError(f"{where} is quantised; {_UNQUANTISED}")
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_nested:
            raise FormatError(f"{where} is {tensor.layout} on {tensor.device}; dense tensors with values are read")
        if tensor.dtype not in _DTYPES.values():
            raise FormatError(f"{where} has dtype {tensor.dtype}; known: {', '.join(map(str, _DTYPES.values()))}")

    def dtype(self, name: str) -> torch.dtype:
        return self._tensors[name].dtype

    def read(self, name: str, first: int, n_elems: int) -> torch.Tensor:
        """Elements [first, first + n_elems)."""
        tensor = self._tensors[name]
        if not tensor.is_contiguous():
            tensor = self._tensors[name] = tensor.contiguous()
        return tensor.detach().view(-1)[first : first + n_elems]


#: Names of weights in a folder, one file or the index of several, in the order of preference; and their reader.
_FORMATS = (("model.safetensors", _File), ("pytorch_model.bin", _TorchFile))


def _open_index(path: pathlib.Path, reader: Any) -> list[Any]:
    """The files of an index, in its folder. A link there may lead anywhere; a name may not."""
    map_ = _read_object(path).get("weight_map")
    if not isinstance(map_, dict) or not map_:
        raise FormatError(f"{path}: its weight_map is missing, empty, or not an object")
    ending = ".safetensors" if reader is _File else ".bin"
    for tensor, name in map_.items():
        if not isinstance(name, str) or not name.endswith(ending) or name.startswith(".") or "/" in name or "\\" in name:
            raise FormatError(f"{path}: weight_map has {tensor!r} in {str(name)[:200]!r}; allowed: names of {ending} files in its folder")
    files = {}
    for name in dict.fromkeys(map_.values()):
        try:
            files[name] = reader(path.parent / name)
        except ArgumentError as error:
            raise FormatError(f"{path} names {name!r}: {error}") from None
    for tensor, name in map_.items():
        if tensor not in files[name].header:
            raise FormatError(f"{path}: {tensor!r} is not in {name!r}")
    for name, file in files.items():
        for tensor in file.header:
            if map_.get(tensor) != name:
                raise FormatError(f"{path}: {tensor!r} of {name!r} is in {map_.get(tensor, 'no file')!r} there")
    return list(files.values())


def _open_files(path: pathlib.Path) -> list[Any]:
    if not path.is_dir():
        if path.name.endswith(".index.json"):
            return _open_index(path, _File if ".safetensors." in path.name else _TorchFile)
        return [_TorchFile(path) if path.suffix in (".bin", ".pt", ".pth") else _File(path)]
    for name, reader in _FORMATS:
        index, single = path / f"{name}.index.json", path / name
        has_index, has_single = os.path.lexists(index), os.path.lexists(single)
        if has_index and has_single:
            raise ArgumentError(f"{path} has both {name} and {index.name}; give the path of one of them")
        if has_index:
            return _open_index(index, reader)
        if has_single:
            return [reader(single)]
    if (path / "adapter_config.json").exists():
        raise ArgumentError(f"{path} is a folder of adapters: load the folder of the model that they are for, and then the adapters with PeftModel.from_pretrained (programs: zero-checkpoint import MODEL --adapter {path})")
    raise ArgumentError(f"{path}: found neither {' nor '.join(name for name, _ in _FORMATS)}, nor an index of several")


# ---- names that transformers has changed --------------------------------------------------------


class _Converted:
    """Tensors that transformers makes of others in files: experts that lie apart there and together in the module. Its own
    operations make them, of an expert at a time where that is how they are merged."""

    def __init__(self, converter: Any, layer: str, sources: dict[str, list[tuple[Any, str]]], model: Any) -> None:
        self.path = next(iter(sources.values()))[0][0].path
        self._converter, self._layer, self._model = converter, layer, model
        first = converter.operations[0]
        counts = {len(places) for places in sources.values()}
        self._pieces = [sources]
        if type(first).__name__ == "MergeModulelist" and first.dim == 0 and len(counts) == 1:
            self._pieces = [{k: [v[i]] for k, v in sources.items()} for i in range(counts.pop())]
        shapes = [{k: list(v.shape) for k, v in self._make(i, "meta").items()} for i in range(len(self._pieces))]
        if any(s != shapes[0] for s in shapes):
            raise FormatError(f"{self.path}: the parts of {layer} have different shapes")
        self.header = {k: {"shape": [len(shapes) * v[0], *v[1:]] if len(shapes) > 1 else v} for k, v in shapes[0].items()}
        self._last: tuple[int, dict[str, torch.Tensor]] = (-1, {})

    def _make(self, index: int, device: str) -> dict[str, torch.Tensor]:
        converter = copy.deepcopy(self._converter)
        for pattern, places in self._pieces[index].items():
            for file, name in places:
                shape = file.header[name]["shape"]
                values = torch.empty(shape, device="meta") if device == "meta" else file.read(name, 0, math.prod(shape)).view(shape)
                converter.collected_tensors[pattern].append(values)
        try:
            made = converter.convert(self._layer, model=self._model, config=self._model.config)
        except Exception as error:
            raise FormatError(f"{self.path}: transformers cannot make {self._layer}: {type(error).__name__}: {error}") from None
        return {_made(k): v[0] if isinstance(v, list) else v for k, v in made.items()}

    def dtype(self, name: str) -> torch.dtype:
        file, source = next(iter(self._pieces[0].values()))[0]
        dtype: torch.dtype = file.dtype(source)
        return dtype

    def read(self, name: str, first: int, n_elems: int) -> torch.Tensor:
        size = math.prod(self.header[name]["shape"]) // len(self._pieces)
        parts = [torch.empty(0)]
        for i in range(first // size, -(-(first + n_elems) // size)) if n_elems else ():
            if self._last[0] != i:
                self._last = (i, self._make(i, "cpu"))
            parts.append(self._last[1][name].reshape(-1)[max(first - i * size, 0) : first + n_elems - i * size])
        return torch.cat(parts[1:]) if n_elems else parts[0]


def _made(name: str) -> str:
    """The name of a tensor that no file has, which a file might."""
    return f"{name} (as transformers makes it)"


def _number_last(name: str) -> list[tuple[int, str]]:
    """A key that sorts experts 2, 10 by their numbers."""
    return [(len(part) if part.isdigit() else 0, part) for part in name.split(".")]


def _convert_names(where: dict[str, Any], model: nn.Module, targets: list[str]) -> tuple[dict[str, str], set[str]]:
    """Names in files by those of the module, where transformers changes them on loading; `where` gets what it makes of several.
    Also names of which something is made."""
    try:
        from transformers import PreTrainedModel
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:  # it has no such names, or is not there
        return {}, set()
    found = next(((n, m) for n, m in model.named_modules() if isinstance(m, PreTrainedModel)), None)
    if found is None:
        return {}, set()
    prefix, root = f"{found[0]}." if found[0] else "", found[1]
    mapping = get_model_conversion_mapping(root)
    renamings = [m for m in mapping if isinstance(m, WeightRenaming)]
    converters = [m for m in mapping if isinstance(m, WeightConverter)]
    by_pattern = {p: c for c in converters for p in c.source_patterns}
    known = {name.removeprefix(prefix): True for name in targets}
    names: dict[str, str] = {}
    groups: dict[str, dict[str, list[tuple[Any, str]]]] = {}
    for name in sorted(where, key=_number_last):
        target, pattern = rename_source_key(name, renamings, converters, root.base_model_prefix, known)
        if target in known and pattern is not None:
            groups.setdefault(target, {}).setdefault(pattern, []).append((where[name], name))
        elif target in known and name not in known:
            names[prefix + target] = name
    sources = set()
    for layer, patterns in groups.items():
        made = _Converted(by_pattern[next(iter(patterns))], layer, patterns, root)
        sources.update(name for places in patterns.values() for _, name in places)
        for output in made.header:
            where[output] = made
            names[prefix + output.removesuffix(_made(""))] = output
    return names, sources


class Weights:
    """Tensors of a folder that Hugging Face's save_pretrained or DeepSpeed's zero_to_fp32 has written, or of one file."""

    def __init__(self, path: str | os.PathLike[str], model: nn.Module) -> None:
        self.path = pathlib.Path(path)
        self._where: dict[str, Any] = {}
        for file in _open_files(self.path):
            for name in file.header:
                if name in self._where:
                    raise FormatError(f"{self._where[name].path} and {file.path} both have {name!r}")
                self._where[name] = file
        self._prefix = next((m.base_model_prefix for m in model.modules() if getattr(m, "base_model_prefix", "")), "")
        self.names: dict[int, str] = {}  # by id of a parameter or buffer
        lacking = []
        params = list(model.named_parameters(remove_duplicate=False))
        tensors = [*params, *model.named_buffers(remove_duplicate=False)]
        in_files = set(self._where)
        renamed, used = _convert_names(self._where, model, [name for name, _ in tensors])
        for name, tensor in tensors:
            found = renamed.get(name) or next((n for n in self._candidates(name) if n in self._where), None)
            if found is not None:
                self._check(name, tensor, found)
                self.names.setdefault(id(tensor), found)
        for name, tensor in params:
            if id(tensor) not in self.names and tensor.numel():
                lacking.append(name)
        if lacking:
            quantised = next((name for name in in_files if name.endswith(_QUANTISED)), None)
            if quantised is not None:
                raise UnsupportedError(f"{self.path} has {quantised!r}: {_UNQUANTISED}")
            raise ArgumentError(f"{self.path} has no tensor for {len(lacking)} of the model's parameters, such as {lacking[0]}")
        unused = sorted(in_files - set(self.names.values()) - self._tied(tensors) - set(renamed.values()) - used)
        if unused:
            logger.warning("%s: %d tensors are not the model's, such as %s", self.path, len(unused), printable(unused[0]))

    def _candidates(self, name: str) -> Iterator[str]:
        """A file of the model without its head has names without the prefix."""
        yield name
        if self._prefix:
            yield name.removeprefix(self._prefix + ".")
            yield f"{self._prefix}.{name}"

    def _tied(self, tensors: list[tuple[str, torch.Tensor]]) -> set[str]:
        return {n for name, _ in tensors for n in self._candidates(name)}

    def _check(self, name: str, tensor: torch.Tensor, found: str) -> None:
        file = self._where[found]
        shape = file.header[found]["shape"]
        if tensor.is_floating_point() and not file.dtype(found).is_floating_point:
            raise UnsupportedError(f"{self.path}: {found} has dtype {file.dtype(found)}, the model's {name} {tensor.dtype}: {_UNQUANTISED}")
        if list(tensor.shape) != shape:
            raise ArgumentError(f"{self.path}: {found} has shape {shape}, the model's {name} {list(tensor.shape)}")

    def filler(self, tensor: nn.Parameter) -> Callable[[int, int], torch.Tensor]:
        """Elements of a parameter, as they are asked for."""
        name = self.names.get(id(tensor))
        if name is None:  # nothing is asked for
            return lambda first, n_elems: torch.empty(n_elems)
        return lambda first, n_elems: self._read(name, first, n_elems)

    def _read(self, name: str, first: int, n_elems: int) -> torch.Tensor:
        """Values from which training can go on."""
        values: torch.Tensor = self._where[name].read(name, first, n_elems)
        if not values.isfinite().all():
            place = first + int((~values.isfinite()).nonzero()[0])
            raise FormatError(f"{self.path}: element {place} of {name!r} is not finite: use weights without such values")
        return values

    def load_buffers(self, model: nn.Module) -> None:
        for buffer in model.buffers():
            name = self.names.get(id(buffer))
            if name is not None:
                buffer.data.copy_(self._where[name].read(name, 0, buffer.numel()).view(buffer.shape))


_NOTED = "_libzero_pretrained"  # an attribute of a module: where its values are


def load_pretrained(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    Weights(path, model)  # refuses what does not match
    note_pretrained(model, path)
    return model


def note_pretrained(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Keep for initialize where the values are."""
    setattr(model, _NOTED, os.fspath(path))


def take_pretrained(model: nn.Module) -> str | None:
    """What load_pretrained has noted, once."""
    return model.__dict__.pop(_NOTED, None)


def give_places(model: nn.Module, dtype: torch.dtype) -> None:
    """Parameters without values are on the CPU from now on, still without memory."""
    for param in model.parameters():
        if param.device.type == "meta":
            place = torch.full((), float("nan"), dtype=dtype).expand(param.shape)
            torch.utils.swap_tensors(param, nn.Parameter(place, requires_grad=param.requires_grad))
