"""Parameters of an engine, as other code sees them.

A parameter keeps its identity: the object that the module has is the one that the script has. Its class says which values it has:

Present   with values. It is the parameter's own class, but for `data` and `grad`, which have to know who reads or writes them
Absent    without: its unit is sharded or offloaded, and not gathered now. It answers what needs no values, such as its shape. Anything else
          gathers it where that is possible, and is an error that names it elsewhere
Shadow    `data` or `detach()` of an absent parameter: a tensor that behaves likewise; or `grad` of one whose gradient is in the library

Tensors that other code has made of a parameter's memory are followed by weak references. Memory is kept as long as they are there, within a
step; where it cannot be kept, they are sealed: whoever reads one gets an error that says why.
"""

from __future__ import annotations

import functools
import math
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ._c import StateError, UnsupportedError, c_char

if TYPE_CHECKING:
    from .units import Param

_without_dispatch = torch._C.DisableTorchFunctionSubclass
_DATA, _GRAD = torch.Tensor.data, torch.Tensor.grad
_known: dict[int, Param] = {}  # by id of the tensor: parameters of open engines


def known(tensor: Any) -> Param | None:
    """The engine's record of a parameter; None: no open engine has it."""
    return _known.get(id(tensor))


def register(param: Param) -> None:
    _known[id(param.tensor)] = param


def forget(param: Param) -> None:
    _known.pop(id(param.tensor), None)


# ---- values, below the classes -------------------------------------------------------------------


def data_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values that it has now, on its memory."""
    with _without_dispatch():
        return _DATA.__get__(tensor)


def set_data(param: Param, data: torch.Tensor, *, is_absent: bool = False) -> None:
    """Let a parameter have this memory."""
    tensor = param.tensor
    tensor.__class__ = param.kind
    tensor.data = data
    tensor.__class__ = _classes(param.kind)[is_absent]


def grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """What PyTorch has as its gradient."""
    with _without_dispatch():
        return _GRAD.__get__(tensor)


def set_grad(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    with _without_dispatch():
        _GRAD.__set__(tensor, gradient)


def checksum(tensor: torch.Tensor) -> int:
    """Changes with any element, or nearly so."""
    data = data_of(tensor).contiguous()
    size = data.numel() * data.itemsize
    return zlib.crc32((c_char * size).from_address(data.data_ptr())) if size else 0


# ---- memory that is taken away -------------------------------------------------------------------

_seal = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)


def seal(storage: torch.UntypedStorage, message: str) -> bool:
    """Let every access to a storage's memory be an error. False: this PyTorch cannot."""
    if _seal is None:
        return False
    _seal(storage._cdata, message)
    return True


def seal_alive(references: list[StorageWeakRef], message: str) -> bool:
    """The same of storages that are still there. False: one is, and this PyTorch cannot."""
    is_done = True
    for reference in references:
        storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        if storage is not None:
            is_done = seal(storage, message) and is_done
    return is_done


def without_values(param: Param, dtype: torch.dtype, message: str) -> torch.Tensor:
    """What stands for a parameter's values: its shape over one element, which nobody can read."""
    element = torch.full((), float("nan"), dtype=dtype, device=param.tensor.device)
    result = element.expand(param.shape)
    if result.device.type != "meta":
        seal(element.untyped_storage(), message)
    return result


# ---- classes -------------------------------------------------------------------------------------


class _Managed:
    """What both have in common."""

    __slots__ = ()

    @property
    def grad(self) -> torch.Tensor | None:
        param = known(self)
        gradient = grad_of(self)  # type: ignore[arg-type]
        if gradient is None and param is not None and param.is_pending:
            return _make_shadow(GradientShadow, param)
        return gradient

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        param = known(self)
        if param is not None and not param.shows_grad and (param.is_pending or value is not None):
            raise UnsupportedError(
                f"the gradient of parameter {param.name} is the library's and cannot be set: change it in backward, by "
                "parameter.register_hook(), or drop all by engine.zero_grad(); with stage 0, one rank and reduce='auto' `grad` can be set")
        set_grad(self, value)  # type: ignore[arg-type]

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = _copy_of(self)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: int) -> Any:
        return _copy_of(self).__reduce_ex__(protocol)


class _Present(_Managed):
    __slots__ = ()

    @property
    def data(self) -> torch.Tensor:
        param = known(self)
        if param is not None:
            param.note_access()
        return data_of(self)  # type: ignore[arg-type]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        param = known(self)
        if param is None:
            return _DATA.__set__(self, value)
        _check_values(param, value)
        with torch.no_grad():  # its memory stays, and takes the values
            self.copy_(value)  # type: ignore[attr-defined]

    def set_(self, source: Any = None, *rest: Any, **keywords: Any) -> Any:
        """torch's parametrizations set a parameter to what it is already."""
        is_same = isinstance(source, torch.Tensor) and not rest and not keywords and (
            source.data_ptr() == data_of(self).data_ptr() and source.shape == self.shape and source.stride() == self.stride())
        return self if is_same else super().set_(source, *rest, **keywords)  # type: ignore[misc]


class _Absent(_Managed):
    __slots__ = ()

    @property
    def data(self) -> torch.Tensor:
        param = known(self)
        if param is not None and param.owner().look_up(param):
            return self.data  # it is present now
        return shadow_of(self)  # type: ignore[arg-type]

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        param = known(self)
        if param is not None and not (value is self or getattr(value, "param", None) is param):
            _check_values(param, value)
            with torch.no_grad():
                self.copy_(value)  # type: ignore[attr-defined]

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class Shadow(torch.Tensor):
    """`data` of an absent parameter."""

    param: Param

    @property
    def data(self) -> torch.Tensor:
        return self

    @data.setter
    def data(self, value: torch.Tensor) -> None:
        raise _absence(self.param, "data =")

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return _dispatch(func, args, kwargs or {})


class GradientShadow(Shadow):
    """`grad` of a parameter whose gradient is in the library."""


def _check_values(param: Param, value: torch.Tensor) -> None:
    own = param.absent
    if value.shape != param.shape or value.dtype != own.dtype or value.device != own.device:
        raise UnsupportedError(
            f"parameter {param.name} is the library's memory, {own.dtype} of shape {tuple(param.shape)} on {own.device}: it cannot "
            f"become {value.dtype} of shape {tuple(value.shape)} on {value.device}; close the engine first")


@functools.cache
def _classes(kind: type) -> tuple[type, type]:
    """Of parameters of a class: with values, and without."""
    return type(kind)(kind.__name__, (_Present, kind), {}), type(kind)(kind.__name__, (_Absent, kind), {})


def _copy_of(tensor: Any) -> nn.Parameter:
    """A parameter of its own class with a copy of its values, and without an engine."""
    values = (tensor.data if is_absent(tensor) else data_of(tensor)).clone()
    kind = _known[id(tensor)].kind
    return nn.Parameter(values, tensor.requires_grad) if kind is nn.Parameter else values.as_subclass(kind).requires_grad_(tensor.requires_grad)


def is_absent(value: Any) -> bool:
    return isinstance(value, (_Absent, Shadow))


def shadow_of(tensor: torch.Tensor) -> Shadow:
    return _make_shadow(Shadow, _known[id(tensor)])


def _make_shadow(kind: type[Shadow], param: Param) -> Shadow:
    with _without_dispatch():
        shadow = torch.Tensor._make_subclass(kind, param.absent)
    shadow.param = param
    return shadow


def param_of(value: Any) -> Param:
    return value.param if isinstance(value, Shadow) else _known[id(value)]


# ---- what others do with absent ones -------------------------------------------------------------

#: Properties and functions that need no values.
_GET = {
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn", "_grad_fn", "output_nr", "_version", "names",
    "name", "itemsize", "nbytes", "retains_grad", "_backward_hooks", "_post_accumulate_grad_hooks", "is_cpu", "is_cuda", "is_meta",
    "is_sparse", "is_sparse_csr", "is_quantized", "is_mkldnn", "is_nested", "is_mps", "is_xla", "is_xpu", "is_hpu", "is_ipu", "is_mtia",
    "is_ort", "is_maia", "is_vulkan", "is_inference", "_is_param", "_cdata",
}  # fmt: skip
_SET = {"requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks"}
_CALL = {
    "size", "dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "is_signed", "get_device",
    "requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "is_same_size", "has_names", "__hash__",
    "__len__", "_has_compatible_shallow_copy_type", "is_tensor", "is_inference", "result_type", "can_cast", "zeros_like", "ones_like",
    "empty_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "is_neg",
    "is_conj", "is_storage", "untyped_storage", "__dlpack_device__", "is_distributed",
}  # fmt: skip
#: Calls that return the tensor itself where there is nothing to do.
_SAME = {"to", "cpu", "cuda", "float", "bfloat16", "half", "double", "type", "type_as"}


def _name_of(func: Callable[..., Any]) -> tuple[str, str]:
    """How a function is called: "shape" and "__get__", or a function's name and ""."""
    name = getattr(func, "__name__", "?")
    if name in ("__get__", "__set__", "__delete__"):
        return getattr(func.__self__, "__name__", "?"), name  # type: ignore[attr-defined]
    return name, ""


def _dispatch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, access = _name_of(func)
    is_free = name in {"__get__": _GET, "__set__": _SET, "__delete__": set()}.get(access, _CALL)
    if is_free or (name == "type" and len(args) == 1 and not kwargs):
        with _without_dispatch():
            return func(*args, **kwargs)
    first = args[0] if args else None
    if is_absent(first):
        shape = param_of(first).shape
        if name == "stride":
            strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
            return tuple(strides) if len(args) == 1 and not kwargs else strides[args[1] if len(args) > 1 else kwargs["dim"]]
        if name == "is_contiguous":
            return True
        if name == "storage_offset":
            return 0
        if name in ("detach", "alias"):
            return first if isinstance(first, Shadow) else shadow_of(first)
        if name == "contiguous" or (name == "copy_" and len(args) > 1 and args[1] is first):
            return first
        if name == "__repr__":
            return f"<parameter {param_of(first).name} of shape {tuple(shape)}, whose values are not here now>"
        if name in _SAME and _is_as_asked(func, args, kwargs):
            return first
    values = list(absent_in((args, kwargs)))
    gradient = next((v for v in values if isinstance(v, GradientShadow)), None)
    if gradient is not None:
        raise StateError(
            f"the gradient of parameter {gradient.param.name} is in the library until step(), summed and sharded over the ranks: `clip=` and "
            "engine.get_global_grad_norm() clip and give the norm, parameter.register_hook() sees and changes each gradient in "
            "backward, engine.zero_grad() drops them; with stage 0, one rank and reduce='auto' `grad` is the gradient")
    params = list(dict.fromkeys(map(param_of, values)))
    return params[0].owner().use(func, args, kwargs, params)


def _is_as_asked(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        with _without_dispatch():
            return func(*args, **kwargs) is args[0]
    except RuntimeError:  # it would read values
        return False


def absent_in(value: Any) -> Iterator[Any]:
    """Absent parameters and their shadows, within lists and dictionaries, too."""
    if is_absent(value):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from absent_in(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from absent_in(v)


def replace_shadows(value: Any, data: dict[int, torch.Tensor]) -> Any:
    """The same with tensors instead of shadows, by id of their parameters' records."""
    if isinstance(value, Shadow):
        return data[id(value.param)]
    if isinstance(value, dict):
        return {k: replace_shadows(v, data) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(replace_shadows(v, data) for v in value)
    return value


def _absence(param: Param, what: str) -> StateError:
    return StateError(
        f"{what} of parameter {param.name}: its values are sharded over the ranks or offloaded, and its unit {param.unit.name!r} is not "
        "gathered now. Use it in the forward of the engine's module, in `with engine.in_forward():`, or in "
        "`with engine.gathered(parameter, modifier_rank=0):`, where it may be changed, too; engine.state_dict() has all values")


def absence(params: list[Param], func: Callable[..., Any]) -> StateError:
    """What to say of a call that needs values."""
    name, access = _name_of(func)
    return _absence(params[0], {"__get__": name, "__set__": f"{name} ="}.get(access, f"{name}()"))


def closed_message(name: str) -> str:
    return (f"libzero: parameter {name} has no values any more: the engine that had them was closed, or has loaded a checkpoint. "
            "Take copies (clone(), engine.state_dict()) of what is needed afterwards")


def weak_reference(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def owner_of(engine: Any) -> Any:
    """A weak reference that raises where the engine is gone."""
    reference = weakref.ref(engine)

    def owner() -> Any:
        found = reference()
        if found is None:
            raise StateError("the engine of this parameter is gone: keep it as long as the model is used, or load the model's values again")
        return found

    return owner
